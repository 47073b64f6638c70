"""Detects truncated logs: records that were read are gone, and other records have taken or will take their offsets.

An unclean leader election truncates a log, as does a broker that restarts without its last records. In both cases the
partition gets a leader with a higher epoch. Therefore every position is stored with the leader epoch, and a log is
checked only if its current leader has a higher epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from tallymark.core.claims import Claim, PositionChanges, Restart, check_held
from tallymark.core.retry import retrying
from tallymark.core.spans import Log, Mark, Owner, Partition, Position, Truncation
from tallymark.errors import LogTruncated
from tallymark.kafka.brokers import Brokers
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)


def refusal(found: Sequence[Truncation]) -> LogTruncated:
    """The error for truncated logs, with the possible remedies."""
    first, others = found[0], f" ({len(found) - 1} more partitions are truncated)" if len(found) > 1 else ""
    return LogTruncated(
        f"{first}, and new records reuse these offsets{others}; to continue at {first.at}, set on_loss='record', which "
        f"records the loss, or run tallymark reset --topic {first.partition.topic}:{first.partition.number} "
        f"--to-offset {first.at}",
        found,
    )


def may_be_truncated(mark: Mark, log: Log) -> bool:
    """Whether a leader was elected since the mark was valid, and the log has offsets before the mark."""
    if mark.leader_epoch is None or log.leader_epoch is None:
        return False
    return log.leader_epoch > mark.leader_epoch and mark.offset > log.start


def cut_back(
    ledger: Store, group: str, owner: Owner, claims: Mapping[Partition, Claim], found: Iterable[Truncation]
) -> dict[Partition, Claim]:
    """Move claimed positions back to where their logs were truncated. Positions that have moved since stay."""
    restarts = {
        one.partition: Restart(one.at, str(one), leader_epoch=one.leader_epoch, truncated_from=one.position)
        for one in found
        if one.partition in claims and claims[one.partition].position.next_offset == one.position
    }

    def decide(saved: Sequence[Position]) -> PositionChanges:
        check_held({one: claims[one] for one in restarts}, {position.partition: position for position in saved})
        return PositionChanges({}, restarts)

    for to in restarts.values():
        log.warning("log truncated group=%s reason=%s", group, to.reason)
    now = replace(owner, since=datetime.now(timezone.utc))
    return ledger.claim(group, now, restarts, decide, claims) if restarts else {}


class Validation:
    """Checks once for each leader election whether a log still holds the records that were read."""

    def __init__(self, brokers: Brokers, stop: threading.Event, patience: float | None) -> None:
        self._brokers, self._stop, self._patience = brokers, stop, patience
        self._holding: dict[Partition, tuple[Mark, Mark]] = {}
        """Marks that are valid under a newer leader: the original mark, and the mark with the newer epoch."""

    def elected(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> set[Partition]:
        """The partitions with a new leader since their logs were known to hold all records before these marks."""
        return {one for one, mark in marks.items() if may_be_truncated(self._newest(one, mark), logs[one])}

    def check(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> None:
        """Raise ``LogTruncated`` if a log no longer holds the records that were read."""
        doubtful = {one: marks[one] for one in self.elected(marks, logs)}
        if not doubtful:
            return
        asked = {one: (mark.offset, mark.leader_epoch or 0) for one, mark in doubtful.items()}
        cut = retrying(lambda: self._brokers.truncated(asked), self._stop, self._patience)
        if cut:
            found = sorted(cut.items())
            raise refusal([Truncation(one, marks[one].offset, at, logs[one].leader_epoch) for one, at in found])
        self._holding |= {one: (mark, Mark(mark.offset, logs[one].leader_epoch)) for one, mark in doubtful.items()}

    def _newest(self, partition: Partition, mark: Mark) -> Mark:
        given, newest = self._holding.get(partition, (mark, mark))
        return newest if given == mark else mark
