"""Prometheus counters and histograms that the steps of batches update."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Histogram, Info

from tallymark.core.journal import Rebalance
from tallymark.core.progress import OnStep, Progress, Step
from tallymark.core.spans import OUTCOMES
from tallymark.errors import Fenced
from tallymark.run.observe.stages import Stopwatch

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Instruments:
    """The instruments of one server, for all its groups."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"tallymark_{name}", words, ["group", *labels], registry=registry)

        self._records = counter("records", "Offsets committed, by outcome.", "topic", "partition", "outcome")
        self._batches = counter("batches", "Batches committed.")
        self._rows = counter("rows", "Rows written, by table.", "table")
        self._dropped = counter(
            "batches_dropped", "Attempts at a batch that ended without a commit, by error.", "error"
        )
        self._unknown = counter(
            "commit_unknown", "Commits of unknown outcome, which was then looked up in the database."
        )
        self._fenced = counter("fenced", "Commits refused because another owner has claimed a partition.")
        self._rebalances = counter("rebalances", "Rebalances of the runs of this process.", "kind")
        self._seconds = Histogram(
            "tallymark_batch_seconds",
            "Duration of a batch's stages.",
            ["group", "stage"],
            buckets=SECONDS,
            registry=registry,
        )
        Info("tallymark_build", "The running version of tallymark.", registry=registry).info(
            {"version": version("tallymark")}
        )

    def watch(self, group: str) -> OnStep:
        """The callback for the steps of one run of the group."""
        stopwatch = Stopwatch()
        # Create the series at 0: Prometheus does not see the first increase of a series that begins with 1.
        for counter in (self._batches, self._unknown, self._fenced):
            counter.labels(group)
        for kind in ("assigned", "revoked", "lost", "left"):
            self._rebalances.labels(group, kind)

        def on_step(step: Step, progress: Progress) -> None:
            for lap in stopwatch.laps(step, progress):
                self._seconds.labels(group, lap.stage).observe(lap.stop - lap.start)
            if step is Step.COMMITTED:
                self._count(group, progress)
            elif step is Step.UNKNOWN:
                self._unknown.labels(group).inc()
            elif step is Step.DROPPED:
                self._drop(group, progress.error)

        return on_step

    def rebalanced(self, group: str, run: str) -> Callable[[Rebalance], None]:
        """The callback for rebalances, which counts those of one run."""

        def on_rebalance(rebalance: Rebalance) -> None:
            if rebalance.run == run:
                self._rebalances.labels(group, rebalance.kind).inc()

        return on_rebalance

    def _count(self, group: str, progress: Progress) -> None:
        self._batches.labels(group).inc()
        for partition, tally in progress.tallies.items():
            for outcome in OUTCOMES:
                labels = group, partition.topic, str(partition.number), outcome
                self._records.labels(*labels).inc(getattr(tally, outcome))
        for table, rows in progress.rows.items():
            self._rows.labels(group, table).inc(rows)

    def _drop(self, group: str, error: BaseException | None) -> None:
        self._dropped.labels(group, type(error).__name__ if error is not None else "partitions gone").inc()
        if isinstance(error, Fenced):
            self._fenced.labels(group).inc()
