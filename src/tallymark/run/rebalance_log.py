"""What a run learns from rebalances: which changes of ownership it records, and which fences it tolerates."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime

from tallymark.core.journal import Rebalance
from tallymark.core.spans import Owner, Partition
from tallymark.errors import TallymarkError
from tallymark.stores.contract import Store

log = logging.getLogger(__name__)

MOST_FENCES = 5
FENCES_SECONDS = 600.0
"""How often other owners may claim a partition that the group assigns to this run, and within which time."""
listeners: list[Callable[[Rebalance], None]] = []
"""Callbacks for every rebalance that a run of this process takes part in."""


class RebalanceLog:
    """Records the rebalances of one run in the ledger, and passes them to the listeners.

    A run without a group has no rebalances: then it is not ``enabled``.
    """

    def __init__(self, ledger: Store, group: str, owner: Owner, *, enabled: bool) -> None:
        self.count = 0
        """Number of rebalances in this run; the ledger records the latest."""
        self._ledger, self._group, self._owner, self._enabled = ledger, group, owner, enabled

    def record(
        self,
        kind: str,
        *,
        since: float,
        held: int,
        gained: Collection[Partition] = (),
        lost: Collection[Partition] = (),
        written: bool = True,
    ) -> None:
        """Record partitions gained or lost. ``held`` is the number of partitions afterwards; ``since`` is monotonic."""
        if not self._enabled:
            return
        self.count += 1
        rebalance = Rebalance(
            at=datetime.now(UTC),
            run=self._owner.run,
            host=self._owner.host,
            seconds=max(0.0, time.monotonic() - since),
            gained=tuple(sorted(gained)),
            lost=tuple(sorted(lost)),
            kind=kind,
        )
        log.info("rebalance=%s group=%s gained=%d lost=%d held=%d seconds=%.2f",
                 kind, self._group, len(gained), len(lost), held, rebalance.seconds)  # fmt: skip
        for listener in tuple(listeners):
            listener(rebalance)
        # Informational entries must not stop the run.
        with suppress(TallymarkError):
            if written:
                self._ledger.record_rebalances(self._group, [rebalance])


class Fences:
    """When other owners have claimed partitions of this run, by partition."""

    def __init__(self) -> None:
        self._times: dict[Partition, list[float]] = defaultdict(list)

    def add(self, partition: Partition) -> bool:
        """Note that the partition was fenced now. Returns whether that happened too often."""
        now = time.monotonic()
        self._times[partition] = [*(at for at in self._times[partition] if now - at < FENCES_SECONDS), now]
        return len(self._times[partition]) > MOST_FENCES

    def within(self, partition: Partition, seconds: float) -> bool:
        """Whether the partition was fenced less than ``seconds`` ago."""
        return any(time.monotonic() - at < seconds for at in self._times.get(partition, ())[-1:])
