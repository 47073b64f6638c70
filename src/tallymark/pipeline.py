"""The pipeline a user writes: a source, a store, and a function for every table."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING, Literal, get_args

from tallymark.budget import Budget
from tallymark.commit import Delivery, Destination
from tallymark.errors import BadInput
from tallymark.loop import Job, Loop, Until
from tallymark.membership import Brokers
from tallymark.patience import PATIENCE
from tallymark.plan import Limits, OnLoss
from tallymark.positions import Start
from tallymark.shape import TableSpec, Write
from tallymark.source import Kafka
from tallymark.spans import Owner, Tally
from tallymark.steps import OnStep, ignore
from tallymark.stores.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    TableFunction = Callable[[DataFrame], DataFrame]

log = logging.getLogger(__name__)

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
    ``on_loss="record"`` goes on when Kafka deleted records before they were read, and writes down which;
    ``budget`` says how many dead letters are too many; ``patience`` for how many seconds brokers and store may be away;
    ``spark`` holds settings for the Spark session.

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
        start: str | Start = "uncommitted-earliest",
        limits: Limits | None = None,
        on_loss: OnLoss = "fail",
        budget: Budget | None = None,
        patience: float = PATIENCE,
        delivery: Delivery = "exactly-once",
        ledger: str | None = None,
        road: Road = "auto",
        spark: Mapping[str, str] | None = None,
    ) -> None:
        # Some databases do not tell names apart by the spaces at their end.
        if not group or len(group) > 255 or group != group.strip():
            raise BadInput("group= needs a name of 1 to 255 characters, without spaces around it")
        if on_loss not in get_args(OnLoss):
            raise BadInput(f"on_loss={on_loss!r} is not known; write {' or '.join(get_args(OnLoss))}")
        if road not in get_args(Road):
            raise BadInput(f"road={road!r} is not known; write {', '.join(get_args(Road))}")
        self.group = group
        self.source = source
        self.store_url = store
        self.ledger_url = ledger or store
        self.start = Start.parse(start) if isinstance(start, str) else start
        self.limits = limits or Limits()
        self.on_loss = on_loss
        self.budget = budget or Budget()
        self.patience = patience
        self.delivery = delivery
        self.road = road
        self.spark = dict(spark or {})
        self._tables: dict[str, tuple[TableSpec, TableFunction]] = {}

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
    ) -> Callable[[TableFunction], TableFunction]:
        """Fill a table with what the decorated function makes of the records.

        The function gets a DataFrame with key, value, topic, partition, offset, timestamp and headers, and returns the
        rows. ``write="upsert"`` overwrites by ``key``, and the newest record of a key wins; ``version`` names a column
        that decides which row is newer, also against what earlier batches wrote; ``delete="tombstone"``, or a condition
        on the record such as ``"value.op = 'd'"``, deletes the row of the key. ``write="ignore"`` leaves a row alone
        that is there. ``provenance`` adds columns that say which record of which batch wrote a row. ``create=False``
        refuses a table that is absent, ``evolve=True`` adds columns that it lacks.
        """
        columns = (key,) if isinstance(key, str) else tuple(key)
        spec = TableSpec(name, columns, write, version, delete, provenance, create, evolve)
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
        if not self._tables:
            raise BadInput("the pipeline has no table; write a function and decorate it with @pipeline.table('name')")
        with self._destination() as destination:
            loop = self._loop(destination, on_step)
            with _leaving_on_signals(loop.stop):
                return loop.run(until)

    @contextmanager
    def _destination(self) -> Iterator[Destination]:
        rows = open_store(self.store_url)
        ledger = rows if self.ledger_url == self.store_url else open_store(self.ledger_url)
        try:
            yield Destination(rows, ledger, self.delivery)
        finally:
            rows.close()
            ledger.close()

    def _loop(self, destination: Destination, on_step: OnStep) -> Loop:
        brokers = Brokers(self.source.brokers)
        # The cheap questions first: Spark takes seconds to start.
        brokers.topics(self.source.topic_names)
        destination.rows.ping()
        destination.ledger.ping()
        from tallymark.spark.reader import SparkReader
        from tallymark.spark.session import session
        from tallymark.spark.stage import can_stage

        owner = Owner(f"{os.getpid()}-{uuid.uuid4().hex[:8]}", socket.gethostname(), datetime.now(timezone.utc))
        tables = list(self._tables.values())
        stages = destination.rows.stages(self.group, owner.run) if self.road != "driver" and can_stage() else None
        if self.road == "executors" and stages is None:
            raise BadInput(
                f"road='executors': executors can't stage rows in {destination.rows.name}, "
                "or pandas is not installed, which Spark wants for that; leave it out"
            )
        memory = 0 if self.road == "executors" else self.limits.memory
        reader = SparkReader(session(self.spark), self.source, tables, owner.run, memory, stages)
        job = Job(
            group=self.group,
            topics=self.source.topic_names,
            tables=[spec for spec, _ in tables],
            owner=owner,
            start=self.start,
            limits=self.limits,
            on_loss=self.on_loss,
            budget=self.budget,
            patience=self.patience,
        )
        return Loop(job, brokers, destination, reader, on_step)


@contextmanager
def _leaving_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal asks to stop, a second one kills the process. Only the main thread can listen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, signal._HANDLER] = {}

    def leave(number: int, _frame: FrameType | None) -> None:
        # Whoever asks twice means it: the database rolls back what was not committed, and Spark's JVM ends with us.
        for other in before:
            signal.signal(other, signal.SIG_DFL)
        name = signal.Signals(number).name
        log.warning("stopping after the batch in flight; once more leaves at once signal=%s", name)
        stop()

    for listened in (signal.SIGINT, signal.SIGTERM):
        before[listened] = signal.signal(listened, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
