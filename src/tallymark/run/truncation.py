"""Logs that were cut: records that were read are gone from them, and others have taken their offsets, or will.

An unclean leader election does that, and a broker that comes back without its last records. Either way the partition
gets a leader with a higher epoch. So the epoch stands beside every position, and only where the leader that answers has
a higher one, the log is asked whether it still holds what was read of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from tallymark.brokers import Brokers
from tallymark.errors import LogTruncated
from tallymark.fence import Claim, Restart, Wish, check_held
from tallymark.patience import patiently
from tallymark.spans import Log, Mark, Owner, Partition, Position
from tallymark.stores.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Truncation:
    """A log that was cut ``at`` an offset before the position; ``leader_epoch`` is that of its leader now."""

    partition: Partition
    position: int
    at: int
    leader_epoch: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.partition}: the log was truncated at {self.at} by an unclean leader election or by a broker that "
            f"lost records; what was applied of {self.at}..{self.position} is gone from it"
        )


def refusal(found: Sequence[Truncation]) -> LogTruncated:
    """Why reading does not go on there, and the ways out."""
    first, others = found[0], f" ({len(found) - 1} more partitions are truncated)" if len(found) > 1 else ""
    return LogTruncated(
        f"{first}, and other records take these offsets{others}; on_loss='record' writes that down and reads on "
        f"from {first.at}, and so does tallymark reset --topic {first.partition.topic}:{first.partition.number} "
        f"--to-offset {first.at}",
        found,
    )


def may_be_truncated(mark: Mark, log: Log) -> bool:
    """Whether there was an election since the mark was known to be right, and there is something before it to lose."""
    if mark.leader_epoch is None or log.leader_epoch is None:
        return False
    return log.leader_epoch > mark.leader_epoch and mark.offset > log.start


def cut_back(
    ledger: Store, group: str, owner: Owner, claims: Mapping[Partition, Claim], found: Iterable[Truncation]
) -> dict[Partition, Claim]:
    """Send positions that are ours to where their logs were truncated. Those that have moved meanwhile stay."""
    restarts = {
        one.partition: Restart(one.at, str(one), leader_epoch=one.leader_epoch, truncated_from=one.position)
        for one in found
        if one.partition in claims and claims[one.partition].position.next_offset == one.position
    }

    def decide(saved: Sequence[Position]) -> Wish:
        check_held({one: claims[one] for one in restarts}, {position.partition: position for position in saved})
        return Wish({}, restarts)

    for to in restarts.values():
        log.warning("log truncated group=%s: %s", group, to.reason)
    now = replace(owner, since=datetime.now(timezone.utc))
    return ledger.claim(group, now, restarts, decide, claims) if restarts else {}


class Validation:
    """Asks logs whether they hold what was read of them, once for each election."""

    def __init__(self, brokers: Brokers, stop: threading.Event, patience: float | None) -> None:
        self._brokers, self._stop, self._patience = brokers, stop, patience
        self._holding: dict[Partition, tuple[Mark, Mark]] = {}
        """Marks that hold under a newer leader, too: as they were given, and with its epoch."""

    def elected(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> set[Partition]:
        """Those that have another leader since their logs were known to hold what is before these marks."""
        return {one for one, mark in marks.items() if may_be_truncated(self._newest(one, mark), logs[one])}

    def check(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> None:
        """Raise if a log does not hold any more what was read of it."""
        doubtful = {one: marks[one] for one in self.elected(marks, logs)}
        if not doubtful:
            return
        asked = {one: (mark.offset, mark.leader_epoch or 0) for one, mark in doubtful.items()}
        cut = patiently(lambda: self._brokers.truncated(asked), self._stop, self._patience)
        if cut:
            found = sorted(cut.items())
            raise refusal([Truncation(one, marks[one].offset, at, logs[one].leader_epoch) for one, at in found])
        self._holding |= {one: (mark, Mark(mark.offset, logs[one].leader_epoch)) for one, mark in doubtful.items()}

    def _newest(self, partition: Partition, mark: Mark) -> Mark:
        given, newest = self._holding.get(partition, (mark, mark))
        return newest if given == mark else mark
