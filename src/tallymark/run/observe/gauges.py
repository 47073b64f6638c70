"""Prometheus gauges, refreshed periodically: positions and lag of the partitions of this process, and pauses.

All values come from the ledger and the brokers, so they cost the batches nothing, and a partition that has moved to
another process disappears from the metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tallymark.core.drift import limited, total
from tallymark.core.spans import Partition, Position
from tallymark.errors import TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.lag import Lag, measure
from tallymark.run.setup import Setup
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store

log = logging.getLogger(__name__)

Value = Callable[[Position, Lag], float | None]

MOST_FIELDS = 20
"""Number of fields that the schema does not name which have a series; the others share one."""
REFRESH_SECONDS = 10.0
SOON_SECONDS = 1.0
"""Refresh interval while this process owns no partition."""
LAST_WAIT = 2.0
"""Longest time in seconds that ``end`` waits for a refresh in progress."""


@dataclass(frozen=True)
class Observation:
    """A snapshot of a group; ``at`` is its time, or the start of the watch until there is a snapshot."""

    positions: Sequence[Position] = ()
    lags: Mapping[Partition, Lag] = field(default_factory=dict)
    paused: bool = False
    at: float = field(default_factory=time.time)


class Watch:
    """Refreshes the snapshot of one group as long as a run of this process is a member."""

    def __init__(self, setup: Setup) -> None:
        self.group = setup.group
        self.seen = Observation()
        self._setup = setup
        self._runs: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tallymark-metrics", daemon=True)

    def add(self, run: str) -> None:
        self._runs = {*self._runs, run}
        if not self._thread.ident:
            self._thread.start()

    def remove(self, run: str) -> bool:
        """Remove a run. Returns whether no run is left."""
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
                    # Keep the last snapshot: it carries its time, and is no worse than no values.
                    if not failing:
                        unforeseen = not isinstance(error, TallymarkError)
                        log.warning("lag not measured group=%s error=%s", self.group, error, exc_info=unforeseen)
                    failing = True
                self._ended.wait(REFRESH_SECONDS if self.seen.positions else SOON_SECONDS)
        finally:
            store.close()

    def _ask(self, brokers: Brokers, store: Store) -> None:
        if not store.has_ledger():
            return
        saved, state = store.positions(self.group).get(self.group, []), store.state(self.group)
        owned = [position for position in saved if position.owner is not None and position.owner.run in self._runs]
        self.seen = Observation(owned, measure(brokers, owned), state is not None and state.paused)


class Gauges(Collector):
    """The latest snapshots of all groups of a server."""

    def __init__(self) -> None:
        self.watches: Mapping[str, Watch] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        watches = list(self.watches.values())
        for name, words, value in BY_PARTITION:
            yield _family(name, words, watches, value)
        paused = GaugeMetricFamily("tallymark_paused", "1 if the ledger marks the group as paused.", labels=["group"])
        measured = GaugeMetricFamily(
            "tallymark_measured_timestamp_seconds",
            "Time of the latest measurement of positions and lag; before the first, the start of the run.",
            labels=["group"],
        )
        for watch in watches:
            paused.add_metric([watch.group], watch.seen.paused)
            measured.add_metric([watch.group], watch.seen.at)
        yield from (paused, measured, _drift(watches))


def _drift(watches: Iterable[Watch]) -> GaugeMetricFamily:
    words = "Records with a field that the schema does not name, from the ledger."
    family = GaugeMetricFamily("tallymark_drift_records", words, labels=["group", "field"])
    for watch in watches:
        found = limited(total(position.drift for position in watch.seen.positions), MOST_FIELDS)
        for name, seen in found.items():
            family.add_metric([watch.group, name], seen.records)
    return family


def _log_end(_: Position, lag: Lag) -> float | None:
    return lag.log.end if lag.log is not None else None


def _records(_: Position, lag: Lag) -> float | None:
    return lag.records if lag.log is not None else None


BY_PARTITION: Sequence[tuple[str, str, Value]] = (
    ("position", "The next offset to read, from the ledger.", lambda position, _: position.next_offset),
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
        # Read once, because another thread may replace it at any time.
        seen = watch.seen
        for position in seen.positions:
            measured = value(position, seen.lags[position.partition])
            if measured is not None:
                family.add_metric([watch.group, position.partition.topic, str(position.partition.number)], measured)
    return family
