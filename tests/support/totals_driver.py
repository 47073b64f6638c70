"""Drivers that add records to merged tables: a service or the loop of a pipeline, in a process with a planned fault."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import tallymark as tm
from tallymark.core.budget import Budget
from tallymark.core.journal import LetterQuery
from tallymark.core.plan import Limits
from tallymark.core.progress import OnStep, Progress, Step, ignore
from tallymark.core.records import Reading
from tallymark.core.retry import retrying
from tallymark.core.skip_ahead import SkipAhead
from tallymark.core.spans import Tally
from tallymark.core.start import Start
from tallymark.core.tables import TableSpec
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.member import Member
from tallymark.kafka.membership import Group
from tallymark.run.claimed import run_loop
from tallymark.run.commit import Destination
from tallymark.run.letters import OpenLetters, replay
from tallymark.run.setup import Job
from tallymark.run.skips import backfill
from tallymark.run.until import Until, leaving_on_signals
from tallymark.stores.opening import open_store
from tests.support import databases, redis
from tests.support.children import PROCESSES
from tests.support.crash import new_owner
from tests.support.reader import Filled, PlainReader
from tests.support.storm_member import QUICK
from tests.support.totals import BAD_KIND, FULL, MOST_POINTS

log = logging.getLogger(__name__)

Engine = Literal["service", "pipeline"]
Kind = Literal["run", "backfill", "replay"]
JSON = (
    "id BIGINT, kind BIGINT, shop STRING, day INT, flag BIGINT, points BIGINT, amount DECIMAL(12,2), word STRING, "
    "state STRING, at BIGINT, since TIMESTAMP"
)
NUMBER, PRICE, MONEY = pa.int64(), pa.decimal128(12, 2), pa.decimal128(24, 2)
LENIENT = Budget(max_dead_per_batch=None, max_dead_ratio_per_batch=None)


# The tables


def _price(value: Mapping[str, Any]) -> Decimal | None:
    return None if (amount := value.get("amount")) is None else Decimal(amount)


def _since(value: Mapping[str, Any]) -> datetime | None:
    since = value.get("since")
    return datetime.fromisoformat(since) if isinstance(since, str) else since


def _total(_: int, __: int, value: Mapping[str, Any]) -> Sequence[Any]:
    points, amount, state = value.get("points"), _price(value), (value.get("state"), value.get("at"), _since(value))
    return value.get("shop"), 1, value.get("flag"), points, amount, amount, points, value.get("word"), *state


TOTALS = Filled(
    TableSpec(
        "totals",
        ("shop",),
        "merge",
        "last",
        merge=(
            ("records", "count"),
            ("flagged", "count"),
            ("points", "sum"),
            ("amount", "sum"),
            ("lowest", "min"),
            ("highest", "max"),
            ("word", "max"),
            ("state", "newest"),
            ("since", "min"),
        ),
    ),
    {
        "shop": pa.string(),
        "records": NUMBER,
        "flagged": NUMBER,
        "points": NUMBER,
        "amount": MONEY,
        "lowest": PRICE,
        "highest": NUMBER,
        "word": pa.string(),
        "state": pa.string(),
        "last": NUMBER,
        "since": pa.timestamp("us", "UTC"),
    },
    _total,
)
ORIGINS = Filled(
    TableSpec("origins", ("shop", "day"), "merge", "begun", merge=(("records", "count"), ("state", "oldest"))),
    {"shop": pa.string(), "day": pa.int32(), "records": NUMBER, "state": pa.string(), "begun": NUMBER},
    lambda _, __, value: (value.get("shop"), value.get("day"), 1, value.get("state"), value.get("at")),
)
GROUPED = Filled(
    TableSpec("grouped", ("shop",), "merge", merge=(("orders", "count"), ("revenue", "sum"))),
    {"shop": pa.string(), "orders": NUMBER, "revenue": MONEY},
    lambda _, __, value: (value.get("shop"), 1, _price(value)),
)
"""Its rows are those of a function that groups the records of a batch: none comes from a single record."""
MARKS = Filled(
    TableSpec("marks", ("id",), "ignore"),
    {"id": NUMBER, "kind": NUMBER},
    lambda _, __, value: (value["id"], value["kind"]),
)
"""Refuses the records of one kind, until it is repaired."""
TABLES = (TOTALS, ORIGINS, GROUPED, MARKS)


def prepare(url: str, bad: Sequence[int]) -> None:
    """Create the tables: ``marks`` refuses a kind, which on Redis are the ids ``bad``; one total is at its maximum."""
    if not url.startswith("redis"):
        check = "" if url.startswith("sqlite") else f", CONSTRAINT kinds CHECK (kind <> {BAD_KIND})"
        databases.execute(url, f"CREATE TABLE marks (id BIGINT PRIMARY KEY, kind BIGINT{check})")
    store = open_store(url)
    store.create_ledger()
    store.create_tables([table.spec for table in TABLES], {table.spec.name: table.schema for table in TABLES})
    store.close()
    if url.startswith("redis"):
        client = redis.client(url)
        for number in bad:
            client.rpush(redis.key(url, f"marks:{number}"), "not a row")
        client.hset(redis.key(url, f"totals:{FULL}"), mapping={"shop": FULL, "records": 0, "points": MOST_POINTS})
        client.close()
        return
    databases.execute(url, f"INSERT INTO totals (shop, records, points) VALUES ('{FULL}', 0, {MOST_POINTS})")
    if url.startswith("sqlite"):
        refuse = f"BEGIN SELECT RAISE(ABORT, 'kind {BAD_KIND}'); END"
        databases.execute(url, f"CREATE TRIGGER kinds BEFORE INSERT ON marks WHEN NEW.kind = {BAD_KIND} {refuse}")


def repair(url: str, bad: Sequence[int]) -> None:
    """Remove the causes for which records were refused."""
    if url.startswith("redis"):
        client = redis.client(url)
        client.delete(redis.key(url, f"totals:{FULL}"), *(redis.key(url, f"marks:{number}") for number in bad))
        client.close()
        return
    drop = "DROP TRIGGER kinds" if url.startswith("sqlite") else "ALTER TABLE marks DROP CONSTRAINT kinds"
    databases.execute(url, f"DELETE FROM totals WHERE shop = '{FULL}'", drop)


# The drivers


@dataclass(frozen=True)
class Fault:
    """What a driver does to itself at the n-th time that a batch passes a step."""

    step: Step
    occurrence: int
    number: int
    """The signal: SIGKILL, or SIGSTOP."""


@dataclass(frozen=True)
class Driver:
    """One process that runs, backfills or replays a group."""

    brokers: str
    store: str = field(repr=False)
    group: str
    topic: str
    engine: Engine
    kind: Kind = "run"
    name: str = "driver"
    most: int = 50
    fault: Fault | None = None
    catch_up: SkipAhead | None = None
    session: float = 2.0
    logs: Path | None = None
    alone: bool = False
    """Whether a run reads all partitions without joining the group."""
    as_dicts: bool = False
    """Whether a service writes dicts instead of Arrow."""

    @property
    def settings(self) -> dict[str, Any]:
        return QUICK | {"session.timeout.ms": int(self.session * 1000)}

    def work(self, on_step: OnStep = ignore, until: Until = "stopped") -> Tally:
        return (self._serve if self.engine == "service" else self._pipe)(on_step, until)

    def _serve(self, on_step: OnStep, until: Until) -> Tally:
        app = tm.App(
            brokers=self.brokers, store=self.store, kafka=self.settings, budget=LENIENT, catch_up=self.catch_up
        )

        @app.listen(self.topic, group=self.group, value=tm.Json(JSON), batch=True, max_records=self.most)
        def add(records: Any, db: Any) -> None:
            values = [record.value for record in records]
            for table in TABLES:
                rows = _rows(table, values)
                if table is GROUPED:
                    rows = _grouped(rows)
                given = rows.to_pylist() if self.as_dicts else rows
                spec = table.spec
                merge = dict(spec.merge) or None
                db.write(spec.name, given, key=spec.key, write=spec.write, version=spec.version, merge=merge)

        if self.kind == "run":
            return app.run(until, on_step=on_step)
        return app.backfill(on_step=on_step) if self.kind == "backfill" else app.replay(on_step=on_step)

    def _pipe(self, on_step: OnStep, until: Until) -> Tally:
        store, reader, stop = open_store(self.store), GroupingReader(self.brokers, TABLES), threading.Event()
        brokers, where = Brokers(self.brokers, stop), Destination(store, store)
        specs, starts = [table.spec for table in TABLES], Start.parse("uncommitted-earliest")
        job = Job(self.group, [self.topic], specs, new_owner(), starts, Limits(self.most), budget=LENIENT)
        job = replace(job, catch_up=self.catch_up)
        try:
            with leaving_on_signals(stop.set):
                return self._looping(job, brokers, where, reader, on_step, stop, until)
        finally:
            reader.close()
            store.close()

    def _looping(
        self,
        job: Job,
        brokers: Brokers,
        where: Destination,
        reader: PlainReader,
        on_step: OnStep,
        stop: threading.Event,
        until: Until,
    ) -> Tally:
        if self.kind == "backfill":
            return backfill(job, brokers, where, reader, on_step, stop)
        if self.kind == "replay":
            query = partial(OpenLetters, self.group, where.ledger, [self.topic], LetterQuery(), brokers)
            return replay(job, where, reader, retrying(query, stop), on_step, stop)
        source = tm.Kafka(self.brokers, self.topic, settings=self.settings)
        member = None if self.alone else Member(self.group, source, Group(), f"tallymark-{job.owner.run}")
        return run_loop(job, brokers, where, reader, on_step, member).run(until)


def _rows(table: Filled, values: Sequence[Mapping[str, Any]]) -> pa.Table:
    rows = [table.row(0, 0, value) for value in values]
    return pa.table([[row[at] for row in rows] for at in range(len(table.schema))], schema=table.schema)


def _grouped(rows: pa.Table) -> pa.Table:
    """One row for each shop, as a function that groups returns it. Records without a shop are left out."""
    orders: dict[str, int] = {}
    revenue: dict[str, Decimal | None] = {}
    for row in rows.to_pylist():
        if (shop := row["shop"]) is not None:
            orders[shop] = orders.get(shop, 0) + row["orders"]
            known = [each for each in (revenue.get(shop), row["revenue"]) if each is not None]
            revenue[shop] = sum(known[1:], known[0]) if known else None
    return pa.table([list(orders), list(orders.values()), list(revenue.values())], schema=GROUPED.schema)


class GroupingReader(PlainReader):
    """A reader whose table ``grouped`` has one row for each shop of a batch."""

    def _shaped(self, found: Any) -> Reading:
        reading = super()._shaped(found)
        return replace(reading, rows={**reading.rows, "grouped": _grouped(reading.rows["grouped"])})


# Processes


def start(driver: Driver) -> Any:
    """Start the driver in a process, which leaves on SIGTERM; returns the process."""
    process = PROCESSES.Process(target=_process, args=(driver,), name=driver.name, daemon=True)
    process.start()
    return process


def stopped(driver: Driver) -> Path:
    """The file that a driver creates before it stops itself."""
    assert driver.logs is not None
    return driver.logs / f"{driver.name}.stopped"


def _process(driver: Driver) -> None:
    if driver.logs is not None:
        form = f"%(asctime)s {driver.name} %(name)s %(message)s"
        logging.basicConfig(filename=driver.logs / f"{driver.name}.log", level=logging.INFO, format=form)
    try:
        driver.work(breaking(driver))
    except BaseException:
        log.exception("ended by an error")
        raise


def breaking(driver: Driver) -> Callable[[Step, Progress], None]:
    """Watches the steps of a driver, and gives it the signal of its fault."""
    passed = 0

    def watch(step: Step, _: Progress) -> None:
        nonlocal passed
        fault = driver.fault
        if fault is None or step is not fault.step:
            return
        passed += 1
        if passed == fault.occurrence:
            log.info("gets signal %d at %s", fault.number, step)
            if fault.number == signal.SIGSTOP:
                stopped(driver).touch()
            os.kill(os.getpid(), fault.number)

    return watch
