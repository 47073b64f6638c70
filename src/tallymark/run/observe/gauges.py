"""Where a group stands, asked from time to time: positions and lag of the partitions that are ours, pauses.

All of it comes from the ledger and the brokers, so it costs the batches nothing, and a partition that went to another
run is gone from the answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tallymark.brokers import Brokers
from tallymark.errors import TallymarkError
from tallymark.lag import Lag, measure
from tallymark.setup import Setup
from tallymark.spans import Partition, Position
from tallymark.stores.opening import open_store
from tallymark.stores.store import Store

log = logging.getLogger(__name__)

Value = Callable[[Position, Lag], float | None]

REFRESH_SECONDS = 10.0
SOON_SECONDS = 1.0
"""How soon to ask again while nothing is ours yet."""
LAST_WAIT = 2.0
"""Seconds that a question under way may hold up who leaves."""


@dataclass(frozen=True)
class Seen:
    """A group at one moment; ``at`` is when it was asked for, or began to be."""

    positions: Sequence[Position] = ()
    lags: Mapping[Partition, Lag] = field(default_factory=dict)
    paused: bool = False
    at: float = field(default_factory=time.time)


class Watch:
    """Looks after one group for as long as any run of this process is in it."""

    def __init__(self, setup: Setup) -> None:
        self.group = setup.group
        self.seen = Seen()
        self._setup = setup
        self._runs: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tallymark-metrics", daemon=True)

    def add(self, run: str) -> None:
        self._runs = {*self._runs, run}
        if not self._thread.ident:
            self._thread.start()

    def remove(self, run: str) -> bool:
        """Whether nobody is left."""
        self._runs = self._runs - {run}
        return not self._runs

    def end(self) -> None:
        self._ended.set()
        self._thread.join(LAST_WAIT)

    def _look(self) -> None:
        brokers, store, failing = Brokers(self._setup.source.cluster), open_store(self._setup.ledger_url), False
        try:
            while not self._ended.is_set():
                try:
                    self._ask(brokers, store)
                    failing = False
                except Exception as error:
                    # What was seen last stays, with its time: it is not less true than no answer at all.
                    if not failing:
                        unforeseen = not isinstance(error, TallymarkError)
                        log.warning(
                            "could not measure the lag group=%s error=%s", self.group, error, exc_info=unforeseen
                        )
                    failing = True
                self._ended.wait(REFRESH_SECONDS if self.seen.positions else SOON_SECONDS)
        finally:
            store.close()

    def _ask(self, brokers: Brokers, store: Store) -> None:
        if not store.has_ledger():
            return
        saved, state = store.positions(self.group).get(self.group, []), store.state(self.group)
        ours = [one for one in saved if one.owner is not None and one.owner.run in self._runs]
        self.seen = Seen(ours, measure(brokers, ours), state is not None and state.paused)


class Gauges(Collector):
    """All groups of a server, as they were seen last."""

    def __init__(self) -> None:
        self.watches: Mapping[str, Watch] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        watches = list(self.watches.values())
        for name, words, value in BY_PARTITION:
            yield _family(name, words, watches, value)
        paused = GaugeMetricFamily("tallymark_paused", "1 while the group is meant to pause.", labels=["group"])
        measured = GaugeMetricFamily(
            "tallymark_measured_timestamp_seconds",
            "When positions and lag were last asked for; until there is an answer, when that began.",
            labels=["group"],
        )
        for watch in watches:
            paused.add_metric([watch.group], watch.seen.paused)
            measured.add_metric([watch.group], watch.seen.at)
        yield from (paused, measured)


def _log_end(_: Position, lag: Lag) -> float | None:
    return lag.log.end if lag.log is not None else None


def _records(_: Position, lag: Lag) -> float | None:
    return lag.records if lag.log is not None else None


BY_PARTITION: Sequence[tuple[str, str, Value]] = (
    ("position", "The next offset to read, as the ledger has it.", lambda position, _: position.next_offset),
    ("log_end_offset", "The end of the partition's log.", _log_end),
    ("lag_records", "Offsets between the position and the end of the log.", _records),
    ("lag_seconds", "Age of the first unread record, 0 if there is none.", lambda _, lag: lag.seconds),
    (
        "unread_expires_seconds",
        "Time until retention may delete the first unread record.",
        lambda _, lag: lag.expires.total_seconds() if lag.expires is not None else None,
    ),
)


def _family(name: str, words: str, watches: Iterable[Watch], value: Value) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tallymark_{name}", words, labels=["group", "topic", "partition"])
    for watch in watches:
        # Once: the next look replaces it at any time.
        seen = watch.seen
        for position in seen.positions:
            found = value(position, seen.lags[position.partition])
            if found is not None:
                family.add_metric([watch.group, position.partition.topic, str(position.partition.number)], found)
    return family
