"""How far a run that is to end has to come: to the ends of the topics as it found them, with the help of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from tallymark.plan import caught_up
from tallymark.spans import Log, Partition, Position, Span

LOOK_SECONDS = 0.5
"""How often to look how far the other members are."""


class Goals:
    """The ends of all partitions at one moment. ``saved`` tells the positions of the group."""

    def __init__(self, logs: Iterable[Log], saved: Callable[[], Mapping[Partition, Position]]) -> None:
        self._goals = [Span(log.partition, 0, log.stop) for log in logs]
        self._ask = saved
        self._looked, self._others = 0.0, dict[Partition, int]()

    def reached(self, ours: Mapping[Partition, int]) -> bool:
        """Whether we are there with ours, and the others with the rest."""
        mine = [goal for goal in self._goals if goal.partition in ours]
        left = [goal for goal in self._goals if goal.partition not in ours]
        return caught_up(ours, mine) and (not left or caught_up(self._saved(), left))

    def _saved(self) -> Mapping[Partition, int]:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._others = {partition: position.next_offset for partition, position in self._ask().items()}
            self._looked = time.monotonic()
        return self._others
