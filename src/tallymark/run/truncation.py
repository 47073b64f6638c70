"""Detects truncated logs: records that were read are gone, and other records have taken or will take their offsets.

An unclean leader election truncates a log, as does a broker that restarts without its last records. In both cases the
partition gets a leader with a higher epoch. Therefore every position is stored with the leader epoch, and a log is
checked only if its current leader has a higher epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tallymark.core.claims import Claim, PositionChanges, Restart, check_held
from tallymark.core.spans import Log, Mark, Owner, Partition, Position, Truncation
from tallymark.errors import LogTruncated
from tallymark.kafka.brokers import Brokers
from tallymark.run.until import Retrying
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)


def refusal(truncations: Sequence[Truncation]) -> LogTruncated:
    """The error for truncated logs, with the possible remedies."""
    first, more = truncations[0], len(truncations) - 1
    others = f" ({more} more partitions are truncated)" if more else ""
    return LogTruncated(
        f"{first}, and new records reuse these offsets{others}; to continue at {first.at}, set on_loss='record', which "
        f"records the loss, or run tallymark reset --topic {first.partition.topic}:{first.partition.number} "
        f"--to-offset {first.at}",
        truncations,
    )


def may_be_truncated(mark: Mark, log: Log) -> bool:
    """Whether a leader was elected since the mark was valid, and the log has offsets before the mark."""
    if mark.leader_epoch is None or log.leader_epoch is None:
        return False
    return log.leader_epoch > mark.leader_epoch and mark.offset > log.start


def cut_back(
    ledger: Store, group: str, owner: Owner, claims: Mapping[Partition, Claim], truncations: Iterable[Truncation]
) -> dict[Partition, Claim]:
    """Move claimed positions back to where their logs were truncated. Positions that have moved since stay."""
    restarts = {
        cut.partition: Restart(cut.at, str(cut), leader_epoch=cut.leader_epoch, truncated_from=cut.position)
        for cut in truncations
        if cut.partition in claims and claims[cut.partition].position.next_offset == cut.position
    }

    def decide(saved: Sequence[Position]) -> PositionChanges:
        check_held(
            {partition: claims[partition] for partition in restarts},
            {position.partition: position for position in saved},
        )
        return PositionChanges({}, restarts)

    for to in restarts.values():
        log.warning("log truncated group=%s reason=%s", group, to.reason)
    now = replace(owner, since=datetime.now(UTC))
    return ledger.claim(group, now, restarts, decide, claims) if restarts else {}


class Validation:
    """Checks once for each leader election whether a log still holds the records that were read."""

    def __init__(self, brokers: Brokers, retrying: Retrying) -> None:
        self._brokers, self._retrying = brokers, retrying
        self._holding: dict[Partition, tuple[Mark, Mark]] = {}
        """Marks that are valid under a newer leader: the original mark, and the mark with the newer epoch."""

    def elected(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> set[Partition]:
        """The partitions with a new leader since their logs were known to hold all records before these marks."""
        return {
            partition
            for partition, mark in marks.items()
            if may_be_truncated(self._newest(partition, mark), logs[partition])
        }

    def check(self, marks: Mapping[Partition, Mark], logs: Mapping[Partition, Log]) -> None:
        """Raise ``LogTruncated`` if a log no longer holds the records that were read."""
        doubtful = {partition: marks[partition] for partition in self.elected(marks, logs)}
        if not doubtful:
            return
        epochs = {partition: (mark.offset, mark.leader_epoch or 0) for partition, mark in doubtful.items()}
        cut = self._retrying(lambda: self._brokers.truncated(epochs))
        if cut:
            raise refusal(
                [Truncation(one, marks[one].offset, at, logs[one].leader_epoch) for one, at in sorted(cut.items())]
            )
        self._holding |= {
            partition: (mark, Mark(mark.offset, logs[partition].leader_epoch)) for partition, mark in doubtful.items()
        }

    def _newest(self, partition: Partition, mark: Mark) -> Mark:
        original, newest = self._holding.get(partition, (mark, mark))
        return newest if original == mark else mark
