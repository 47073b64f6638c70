"""The offsets and the lag of a consumer, for its user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tallymark.core.spans import Log, Partition, Position


@dataclass(frozen=True)
class PartitionProgress:
    """The offsets of a consumer in a partition.

    ``committed`` is the position in the ledger, ``current`` the next offset to be delivered. ``last_stable`` is the end
    of what can be read; ``high_watermark`` includes records of open transactions. ``lag_seconds`` is the age of the
    last committed record, or 0 if no record follows it.
    """

    partition: Partition
    committed: int
    current: int
    last_stable: int
    high_watermark: int
    lag_seconds: float | None

    @property
    def log_end(self) -> int:
        """LOG-END-OFFSET of Kafka's tools: brokers report no offset above the high watermark."""
        return self.high_watermark

    @property
    def lag(self) -> int:
        return max(0, self.log_end - self.committed)


def progress_of(position: Position, log: Log, current: int | None) -> PartitionProgress:
    lag = log.end - position.next_offset
    age = None
    if position.record_time is not None:
        age = max(0.0, (datetime.now(UTC) - position.record_time).total_seconds())
    return PartitionProgress(
        position.partition,
        committed=position.next_offset,
        current=position.next_offset if current is None else current,
        last_stable=log.stop,
        high_watermark=log.end,
        lag_seconds=age if lag > 0 else 0.0,
    )
