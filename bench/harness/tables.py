"""The tables of a lap: empty for appends, full of old rows for upserts, and counted at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Literal

import pyarrow as pa
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from bench.harness.race import Course, Lap
from bench.harness.records import SCHEMA, pieces, rows
from tallymark.core.tables import Changes, TableSpec
from tallymark.errors import TallymarkError
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.store import SqlStore

Mode = Literal["append", "upsert"]

NAMES = ", ".join(SCHEMA.names)
OLD = -1.0
"""The amount of a row that was not overwritten: no order has it. Every table of a race has a column ``amount``."""
ITEMS = "_items"
"""The end of the name of the second table, where a race has two."""


def spec(course: Course, mode: Mode) -> TableSpec:
    return TableSpec(course.table, ("id",), "upsert") if mode == "upsert" else TableSpec(course.table)


def prepare(course: Course, mode: Mode = "append", schema: pa.Schema = SCHEMA) -> None:
    """A new table: an empty one without a key, or one that has an old row for every key."""
    with closing(open_sql(course.url)) as store:
        drop(store, course.table)
        store.create_tables([spec(course, mode)], {course.table: schema})
        if mode == "upsert":
            for start, stop in pieces(course.records, 250_000):
                put(store, course, mode, _old_rows(start, stop))
        tidy(store, course.table)


def put(store: SqlStore, course: Course, mode: Mode, found: pa.Table) -> None:
    """Write rows by the store's own bulk load, without a ledger."""
    store.apply([Changes(spec(course, mode), found, found.slice(0, 0))], None)


def plain_insert(table: str) -> str:
    """The statement for a row with named parameters, as SQLAlchemy takes it."""
    return f"INSERT INTO {table} ({NAMES}) VALUES ({', '.join(f':{name}' for name in SCHEMA.names)})"


def insert(store: SqlStore, table: str, mode: Mode) -> str:
    """The statement for a row with named parameters, as the database's driver takes it."""
    dialect, others = store.dialect.name, [name for name in SCHEMA.names if name != "id"]
    overwrite = ""
    if mode == "upsert" and dialect == "mysql":
        overwrite = f" ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in others)}"
    elif mode == "upsert":
        overwrite = f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in others)}"
    return for_driver(store, plain_insert(table) + overwrite)


def for_driver(store: SqlStore, statement: str) -> str:
    """Named parameters as the database's driver spells them."""
    return statement if store.dialect.name == "sqlite" else re.sub(r":(\w+)", r"%(\1)s", statement)


def written(course: Course) -> int:
    """How many rows of this lap the table has."""
    with closing(open_sql(course.url)) as store, store.look() as connection:
        counted = connection.execute(text(f"SELECT COUNT(*) FROM {course.table} WHERE amount <> {OLD}"))
        return int(counted.scalar_one())


def lap(
    course: Course,
    name: str,
    records: int,
    seconds: float,
    first: tuple[int, float] = (0, 0.0),
    rows: Mapping[str, int] | None = None,
) -> Lap:
    """Return a lap of so many records if every table has its ``rows``; by default the table has a row for each record.

    ``first`` has records and seconds of the first commit.
    """
    for table, expected in (rows or {course.table: records}).items():
        found = written(replace(course, table=table))
        if found != expected:
            raise TallymarkError(
                f"{name} went through {records:,} records and left {found:,} rows in {table} instead of {expected:,}"
            )
    return Lap(records, seconds, *first)


def drop(store: SqlStore, *tables: str) -> None:
    with store.transaction() as connection:
        for table in tables:
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))


def _old_rows(start: int, stop: int) -> pa.Table:
    """Rows in the order of their keys, as in a table that was filled long ago."""
    found = rows(start, stop, stop)
    keys = pa.array(range(start, stop), pa.int64())
    amounts = pa.array([OLD] * found.num_rows, pa.float64())
    return found.set_column(0, SCHEMA.field("id"), keys).set_column(2, SCHEMA.field("amount"), amounts)


def tidy(store: SqlStore, table: str) -> None:
    """Let PostgreSQL do now what it would do during a later lap."""
    if store.dialect.name != "postgresql":
        return
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"VACUUM ANALYZE {table}"))
        # Only administrators may run it.
        with suppress(DBAPIError):
            connection.execute(text("CHECKPOINT"))
