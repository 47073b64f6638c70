"""The public ``Pipeline`` class: a Kafka source, a store, and a function for every table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from tallymark.core.journal import LetterQuery
from tallymark.core.merging import MergeFunction
from tallymark.core.plan import Limits
from tallymark.core.progress import OnStep, ignore
from tallymark.core.replica import check_options, replica
from tallymark.core.retry import retrying
from tallymark.core.spans import Owner, Tally
from tallymark.core.tables import Evolve, TableSpec, Write
from tallymark.core.unmatched import Unmatched
from tallymark.errors import BadInput, TallymarkError
from tallymark.formats.debezium.changes import check_replica
from tallymark.formats.value import check_follows
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import Kafka
from tallymark.run.claimed import run_loop
from tallymark.run.commit import Destination
from tallymark.run.heartbeat import Heartbeat, error_text
from tallymark.run.interrupts import repeating_interrupts
from tallymark.run.letters import OpenLetters, check_delivery, replay
from tallymark.run.loop import Loop
from tallymark.run.observe import observed
from tallymark.run.setup import Job, Setup, new_owner
from tallymark.run.skips import backfill, check_order
from tallymark.run.until import Until, leaving_on_signals

if TYPE_CHECKING:
    from typing import Unpack

    from pyspark.sql import DataFrame

    from tallymark.run.setup import Settings
    from tallymark.spark.reader import Path, SparkReader

    TableFunction = Callable[[DataFrame], DataFrame]

Road = Literal["auto", "driver", "executors"]


class Pipeline:
    """Kafka to database, exactly once.

    >>> pipeline = Pipeline(
    ...     group="orders-to-shop",
    ...     source=Kafka("localhost:9092", "orders", value=Json("id BIGINT, amount DOUBLE")),
    ...     store="postgresql://localhost/shop",
    ... )
    >>> @pipeline.table("orders", key="id", write="upsert")
    ... def orders(records):
    ...     return records.select("value.*")
    >>> pipeline.run()

    ``start`` sets where a partition without a saved position begins (see ``Start``). ``limits`` sets the maximum size
    of a batch. ``on_loss="record"`` continues when Kafka deleted records before they were read, or a log was truncated,
    and records the affected offsets. ``on_drift`` says what becomes of fields that the schema does not name: they are
    counted ("record"), end the run ("fail"), or are not looked for ("ignore"). ``budget`` limits the number of dead
    letters. ``patience`` is how long brokers and store may be unreachable, such as "5m". ``spark`` holds settings for
    the Spark session.

    Runs with the same group share its partitions, as members of a Kafka group. ``membership=Group(...)`` configures
    that; ``Standalone()`` reads without other members. ``catch_up=SkipAhead(...)`` skips ahead when a partition is too
    far behind. ``retention=Retention(...)`` sets how long the ledger keeps history. ``metrics_port`` serves Prometheus
    metrics on ``metrics_host`` (default: this machine only), and ``tracing=True`` creates OpenTelemetry spans
    (docs/reference/metrics.md). ``mirror=True`` also writes the positions to the Kafka group, for tools that show its
    lag; tallymark does not read them.

    ``delivery`` other than exactly-once writes rows and positions one after the other; then ``ledger`` may name another
    store for the positions. ``road`` selects how rows get to the store: through the driver, staged by the executors, or
    automatically by the size of the batch (``limits.memory``).

    ``unmatched="dead"`` makes a record a dead letter if it gives no row to any table. By default it counts as applied,
    because a function may leave out records on purpose.
    """

    def __init__(
        self,
        *,
        group: str,
        source: Kafka,
        store: str,
        limits: Limits | None = None,
        road: Road = "auto",
        spark: Mapping[str, str] | None = None,
        unmatched: Unmatched = "applied",
        **settings: Unpack[Settings],
    ) -> None:
        self.setup = Setup(group, source, store, **settings)
        if road not in get_args(Road):
            raise BadInput(f"road={road!r} is not known; write {', '.join(get_args(Road))}")
        if unmatched not in get_args(Unmatched):
            raise BadInput(f"unmatched={unmatched!r} is not known; write {' or '.join(get_args(Unmatched))}")
        self.unmatched = unmatched
        self.limits = limits or Limits()
        self.road = road
        self.spark = dict(spark or {})
        self._tables: dict[str, tuple[TableSpec, TableFunction]] = {}

    @property
    def group(self) -> str:
        return self.setup.group

    @property
    def tables(self) -> list[tuple[TableSpec, TableFunction]]:
        """The tables and their functions."""
        return list(self._tables.values())

    def table(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        write: Write | Literal["replica"] = "append",
        version: str | None = None,
        delete: str | None = None,
        provenance: bool = False,
        create: bool = True,
        evolve: Evolve = False,
        per_batch: bool = False,
        merge: Mapping[str, MergeFunction] | None = None,
        inexact: bool = False,
        topics: str | None = None,
    ) -> Callable[[TableFunction], TableFunction]:
        """Fill a table with the rows that the decorated function returns.

        The function gets a DataFrame with key, value, topic, partition, offset, timestamp and headers, and returns the
        rows. ``write="upsert"`` overwrites by ``key``, and the newest record of a key wins. ``version`` names a column
        that decides which row is newer, also compared with rows of earlier batches. ``delete="tombstone"``, or a
        condition on the record such as ``"value.op = 'd'"``, deletes the row of the key. ``write="ignore"`` keeps an
        existing row. ``provenance`` adds columns with the record and the batch that wrote a row. ``create=False``
        raises an error if the table does not exist; ``evolve=True`` adds missing columns to it, and ``evolve="follow"``
        also those of schemas that are registered while a run reads their records (docs/howto/formats.md).

        ``write="merge"`` combines each column with that of the row that has the key, as ``merge`` says:
        ``{"orders": "sum", "largest": "max"}``. The functions are sum, count, min, max, newest, oldest, first
        and ``append(100)``, which keeps the last 100 elements of arrays.
        ``inexact=True`` allows other deliveries than exactly-once, which may add a batch twice or leave it out.

        ``topics`` is the topic, or the pattern of topics, whose records the table gets. ``{topic}`` in the name of a
        table makes it a table for each topic, and so does ``{1}``, the first group of the pattern
        (docs/howto/topics.md). ``write="replica"`` writes the rows of change events, which ``Debezium`` decodes
        (docs/howto/debezium.md). Without ``key``, the key has the fields of the records' keys. It needs no function;
        one that is decorated gets the rows, with the column ``source_version``, and returns those to write.

        A function that merges records (for example an aggregate) sees one batch at a time. With ``upsert`` and
        ``ignore`` it is refused, because its rows would replace those of earlier batches; ``per_batch=True`` allows it.
        """
        if name in self._tables:
            raise BadInput(f"table {name} has two functions; give each table one function")
        columns = (key,) if isinstance(key, str) else tuple(key)
        if evolve == "follow" and not self.setup.source.formats:
            check_follows(name, self.setup.source.value, self.setup.source.key)
        if write == "replica":
            check_options(name, version=version, delete=delete, per_batch=per_batch, merge=merge, inexact=inexact)
            if not self.setup.source.formats:
                check_replica(name, self.setup.source.value)
            spec = replica(name, columns, provenance=provenance, create=create, evolve=evolve, topics=topics)
            # It needs no function.
            self._tables[name] = spec, _unchanged
        else:
            functions = tuple((merge or {}).items())
            options = version, delete, provenance, create, evolve, per_batch, functions, inexact, topics
            spec = TableSpec(name, columns, write, *options)

        def register(function: TableFunction) -> TableFunction:
            self._tables[name] = spec, function
            return function

        return register

    def run(self, until: Until = "stopped", *, on_step: OnStep = ignore) -> Tally:
        """Run until stopped, or with ``until="caught-up"`` until all records now in the topics are in the tables.

        Ctrl-C and SIGTERM finish the batch that is being committed and end the run; a second signal ends it at once.
        Returns the tally of this run. ``on_step`` is called at every named step of every batch.
        """
        if until not in get_args(Until):
            raise BadInput(f"until={until!r} is not known; write {' or '.join(get_args(Until))}")
        owner = new_owner()
        with self.setup.destination() as destination, observed(self.setup, owner.run, on_step) as watch:
            try:
                loop = self._loop(destination, watch, owner)
            except TallymarkError as error:
                Heartbeat(destination.ledger, self.group, owner).end(error_text(error))
                raise
            with leaving_on_signals(loop.stop):
                return loop.run(until)

    def backfill(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        overwrite: bool = False,
        on_step: OnStep = ignore,
    ) -> Tally:
        """Fill open skips exactly once, while the group continues to run in other processes.

        Tables with ``write="upsert"`` need ``version=``, because older records could overwrite newer rows;
        ``overwrite`` allows that.
        """
        stop = threading.Event()
        with self.setup.destination() as destination, leaving_on_signals(stop.set):
            job, brokers = self._job(), self._brokers(destination, stop)
            check_order(job.tables, overwrite=overwrite)
            with self._reading(destination, job.owner) as reader:
                filled = partial(backfill, topic=topic, partition=partition, overwrite=overwrite)
                return filled(job, brokers, destination, reader, on_step, stop)

    def replay(self, letters: LetterQuery | None = None, *, overwrite: bool = False, on_step: OnStep = ignore) -> Tally:
        """Replay all or selected open dead letters with the current functions, while the group continues to run.

        A letter is settled in the transaction that applies its record; a record that fails again stays dead, with its
        new error. Returns how many were applied and how many failed. Tables with ``write="upsert"`` need ``version=``
        or ``overwrite``, as for ``backfill``.
        """
        stop = threading.Event()
        with self.setup.destination() as destination, leaving_on_signals(stop.set):
            job = self._job()
            check_delivery(destination.delivery)
            check_order(job.tables, overwrite=overwrite)
            query, brokers = letters or LetterQuery(), Brokers(self.setup.source.cluster, stop)
            in_runs = self.setup.source.has_changes
            found = partial(OpenLetters, job.group, destination.ledger, job.topics, query, brokers, in_runs=in_runs)
            open_letters = retrying(found, stop, self.setup.patience_seconds)
            if not len(open_letters):
                return Tally()
            with self._reading(destination, job.owner) as reader:
                return replay(job, destination, reader, open_letters, on_step, stop, overwrite=overwrite)

    @contextmanager
    def _reading(self, destination: Destination, owner: Owner) -> Iterator[SparkReader]:
        """A reader that stages nothing, cancelled at the end of the block."""
        reader = self._reader(destination, owner, stages=False)
        try:
            yield reader
        finally:
            reader.cancel()

    def _loop(self, destination: Destination, on_step: OnStep, owner: Owner | None = None) -> Loop:
        job, brokers = self._job(owner), self._brokers(destination)
        member = self.setup.member(brokers, job.owner)
        return run_loop(job, brokers, destination, self._reader(destination, job.owner), on_step, member)

    def _brokers(self, destination: Destination, stop: threading.Event | None = None) -> Brokers:
        """Connect to Kafka and the stores; fails fast, before Spark takes seconds to start."""
        brokers = Brokers(self.setup.source.cluster, stop)
        retrying(lambda: brokers.find(self.setup.source.topic_names), brokers.stop, self.setup.patience_seconds)
        destination.ping(brokers.stop, self.setup.patience_seconds)
        return brokers

    @property
    def specs(self) -> list[TableSpec]:
        """The specifications of the tables."""
        return [spec for spec, _ in self.tables]

    def _job(self, owner: Owner | None = None) -> Job:
        if not self._tables:
            raise BadInput("the pipeline has no table; decorate a function with @pipeline.table('name')")
        return self.setup.job(owner or new_owner(), self.specs, self.limits)

    def _reader(self, destination: Destination, owner: Owner, *, stages: bool = True) -> SparkReader:
        from tallymark.spark.executors import can_stage
        from tallymark.spark.reader import SparkReader
        from tallymark.spark.session import is_local, session

        may_stage = stages and self.road != "driver" and can_stage()
        stage = destination.rows.stages(self.group, owner.run) if may_stage else None
        forced = stages and self.road == "executors"
        if forced and stage is None:
            raise BadInput(
                f"road='executors': executors can't stage rows in {destination.rows.name}, "
                "or pandas, which Spark needs for that, is not installed; leave out road="
            )
        tables = self.tables
        with repeating_interrupts():
            spark = session(self.spark)
            if not forced and is_local(spark):
                # The executors are threads of the driver: smaller batches through the driver are faster.
                stage = None
            path: Path | None = "executors" if forced else None
            return SparkReader(
                spark,
                self.setup.source,
                tables,
                owner.run,
                self.limits.memory,
                stage,
                path,
                unmatched=self.unmatched,
                patience=self.setup.patience_seconds,
                finds_drift=self.setup.on_drift != "ignore",
            )


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows
