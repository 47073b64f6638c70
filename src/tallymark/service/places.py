"""Where a consumer is, as it tells its user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from tallymark.spans import Log, Partition, Position


@dataclass(frozen=True)
class Place:
    """Where a consumer is in a partition.

    ``committed`` is in the ledger, ``current`` is the next record to be handed out. ``last_stable`` is the end of what
    can be read; the ``high_watermark`` counts records of open transactions, too. ``lag_seconds`` is the age of the last
    record that was committed, while there are others behind it.
    """

    partition: Partition
    committed: int
    current: int
    last_stable: int
    high_watermark: int
    lag_seconds: float | None

    @property
    def log_end(self) -> int:
        """What tools call LOG-END-OFFSET: of a log the brokers show nothing beyond the high watermark."""
        return self.high_watermark

    @property
    def lag(self) -> int:
        return max(0, self.log_end - self.committed)


def place(position: Position, log: Log, current: int | None) -> Place:
    lag = log.end - position.next_offset
    age = None
    if position.record_time is not None:
        age = max(0.0, (datetime.now(timezone.utc) - position.record_time).total_seconds())
    return Place(
        position.partition,
        committed=position.next_offset,
        current=position.next_offset if current is None else current,
        last_stable=log.stop,
        high_watermark=log.end,
        lag_seconds=age if lag > 0 else 0.0,
    )
