"""The pipeline a user writes: a source, a store, and a function for every table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from tallymark.backfill import backfill, check_order
from tallymark.books import LetterQuery
from tallymark.brokers import Brokers
from tallymark.commit import Destination
from tallymark.errors import BadInput, TallymarkError
from tallymark.heartbeat import Heartbeat, words
from tallymark.job import Job
from tallymark.loop import Loop, Until
from tallymark.observe import observed
from tallymark.openletters import OpenLetters
from tallymark.patience import patiently
from tallymark.plan import Limits
from tallymark.replay import check_delivery, replay
from tallymark.setup import Setup, new_owner
from tallymark.shape import TableSpec, Write
from tallymark.signals import leaving_on_signals, noticing_interrupts
from tallymark.source import Kafka
from tallymark.spans import Owner, Tally
from tallymark.steps import OnStep, ignore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from tallymark.setup import Settings
    from tallymark.spark.reader import SparkReader

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

    ``start`` says where a partition without a saved position begins (see ``Start``); ``limits`` how large a batch gets;
    ``on_loss="record"`` goes on when Kafka deleted records before they were read, or a log was truncated, and writes
    down which; ``budget`` says how many dead letters are too many; ``patience`` for how many seconds brokers and store
    may be away; ``spark`` holds settings for the Spark session.

    Runs with the same group share its partitions, as members of a Kafka group: ``membership=Group(...)`` says how, and
    ``Standalone()`` reads alone. ``catch_up=SkipAhead(...)`` jumps ahead when a partition is too far behind.
    ``metrics_port`` serves metrics for Prometheus, at ``metrics_host`` (this machine alone unless told otherwise), and
    ``tracing=True`` makes OpenTelemetry spans (docs/metrics.md). ``mirror=True`` writes the positions to the Kafka
    group, too, for tools that show lag from there; nothing reads them.

    ``delivery`` other than exactly-once writes rows and positions one after the other, and then ``ledger`` may name
    another store for the positions. ``road`` is how rows get to the store: through the driver, staged by the executors,
    or by the size of the batch (``limits.memory``).
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
        **settings: Unpack[Settings],
    ) -> None:
        self.setup = Setup(group, source, store, **settings)
        if road not in get_args(Road):
            raise BadInput(f"road={road!r} is not known; write {', '.join(get_args(Road))}")
        self.limits = limits or Limits()
        self.road = road
        self.spark = dict(spark or {})
        self._tables: dict[str, tuple[TableSpec, TableFunction]] = {}

    @property
    def group(self) -> str:
        return self.setup.group

    @property
    def tables(self) -> list[tuple[TableSpec, TableFunction]]:
        """What is filled, and by which functions."""
        return list(self._tables.values())

    def table(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        write: Write = "append",
        version: str | None = None,
        delete: str | None = None,
        provenance: bool = False,
        create: bool = True,
        evolve: bool = False,
        per_batch: bool = False,
    ) -> Callable[[TableFunction], TableFunction]:
        """Fill a table with what the decorated function makes of the records.

        The function gets a DataFrame with key, value, topic, partition, offset, timestamp and headers, and returns the
        rows. ``write="upsert"`` overwrites by ``key``, and the newest record of a key wins; ``version`` names a column
        that decides which row is newer, also against what earlier batches wrote; ``delete="tombstone"``, or a condition
        on the record such as ``"value.op = 'd'"``, deletes the row of the key. ``write="ignore"`` leaves a row alone
        that is there. ``provenance`` adds columns that say which record of which batch wrote a row. ``create=False``
        refuses a table that is absent, ``evolve=True`` adds columns that it lacks.

        A function that merges records (an aggregate, say) sees one batch at a time. With a key it is refused, because
        its rows would replace those of earlier batches, unless ``per_batch=True`` says that this is wanted.
        """
        columns = (key,) if isinstance(key, str) else tuple(key)
        spec = TableSpec(name, columns, write, version, delete, provenance, create, evolve, per_batch)
        if name in self._tables:
            raise BadInput(f"table {name} has two functions; a table is filled by one")

        def register(function: TableFunction) -> TableFunction:
            self._tables[name] = (spec, function)
            return function

        return register

    def run(self, until: Until = "stopped", *, on_step: OnStep = ignore) -> Tally:
        """Run until stopped, or ``until="caught-up"``: all that is in the topics now is in the tables.

        Ctrl-C and SIGTERM finish the batch that is being committed and leave; a second one leaves at once.
        Returns what this run did. ``on_step`` is told at every named step of every batch.
        """
        if until not in get_args(Until):
            raise BadInput(f"until={until!r} is not known; write {' or '.join(get_args(Until))}")
        owner = new_owner()
        with self.setup.destination() as destination, observed(self.setup, owner.run, on_step) as watch:
            try:
                loop = self._loop(destination, watch, owner)
            except TallymarkError as error:
                Heartbeat(destination.ledger, self.group, owner).end(words(error))
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
        """Fill in what was skipped, exactly once, while the group goes on in other processes.

        Tables with ``write="upsert"`` need ``version=``, or older records could overwrite newer rows; ``overwrite``
        allows that.
        """
        stop = threading.Event()
        with self.setup.destination() as destination, leaving_on_signals(stop.set):
            job, brokers = self._job(), self._brokers(destination, stop)
            check_order(job.tables, overwrite=overwrite)
            with self._reading(destination, job.owner) as reader:
                filled = partial(backfill, topic=topic, partition=partition, overwrite=overwrite)
                return filled(job, brokers, destination, reader, on_step, stop)

    def replay(self, letters: LetterQuery | None = None, *, overwrite: bool = False, on_step: OnStep = ignore) -> Tally:
        """Try open dead letters again with the present functions, all or those chosen, while the group goes on.

        What is applied is settled in the same transaction; what dies again stays dead, with its new words. Returns how
        many became which. Tables with ``write="upsert"`` need ``version=``, or ``overwrite``, as for ``backfill``.
        """
        stop = threading.Event()
        with self.setup.destination() as destination, leaving_on_signals(stop.set):
            job = self._job()
            check_delivery(destination.delivery)
            check_order(job.tables, overwrite=overwrite)
            query = letters or LetterQuery()
            found = patiently(
                lambda: OpenLetters(job.group, destination.ledger, job.topics, query), stop, self.setup.patience
            )
            if not len(found):
                return Tally()
            brokers = Brokers(self.setup.source.cluster, stop)
            with self._reading(destination, job.owner) as reader:
                return replay(job, brokers, destination, reader, found, on_step, stop, overwrite=overwrite)

    @contextmanager
    def _reading(self, destination: Destination, owner: Owner) -> Iterator[SparkReader]:
        """A reader that stages nothing, for one piece of work."""
        reader = self._reader(destination, owner, stages=False)
        try:
            yield reader
        finally:
            reader.cancel()

    def _loop(self, destination: Destination, on_step: OnStep, owner: Owner | None = None) -> Loop:
        job, brokers = self._job(owner), self._brokers(destination)
        member = self.setup.member(brokers, job.owner)
        return Loop(job, brokers, destination, self._reader(destination, job.owner), on_step, member)

    def _brokers(self, destination: Destination, stop: threading.Event | None = None) -> Brokers:
        """The cheap questions first: Spark takes seconds to start."""
        brokers = Brokers(self.setup.source.cluster, stop)
        patiently(lambda: brokers.find(self.setup.source.topic_names), brokers.stop, self.setup.patience)
        destination.ping(brokers.stop, self.setup.patience)
        return brokers

    @property
    def specs(self) -> list[TableSpec]:
        """Its tables."""
        return [spec for spec, _ in self._tables.values()]

    def _job(self, owner: Owner | None = None) -> Job:
        if not self._tables:
            raise BadInput("the pipeline has no table; write a function and decorate it with @pipeline.table('name')")
        setup = self.setup
        return Job(
            group=setup.group,
            topics=setup.source.topic_names,
            tables=self.specs,
            owner=owner or new_owner(),
            start=setup.starts,
            limits=self.limits,
            on_loss=setup.on_loss,
            budget=setup.budget,
            patience=setup.patience,
            catch_up=setup.catch_up,
        )

    def _reader(self, destination: Destination, owner: Owner, *, stages: bool = True) -> SparkReader:
        from tallymark.spark.reader import SparkReader
        from tallymark.spark.session import session
        from tallymark.spark.stage import can_stage

        wanted = stages and self.road != "driver" and can_stage()
        stage = destination.rows.stages(self.group, owner.run) if wanted else None
        if stages and self.road == "executors" and stage is None:
            raise BadInput(
                f"road='executors': executors can't stage rows in {destination.rows.name}, "
                "or pandas is not installed, which Spark wants for that; leave it out"
            )
        memory = 0 if self.road == "executors" and stages else self.limits.memory
        tables = list(self._tables.values())
        with noticing_interrupts() as listen:
            spark = session(self.spark)
            listen()
            return SparkReader(spark, self.setup.source, tables, owner.run, memory, stage)
