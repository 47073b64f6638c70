"""Remembers deletions, so that a record that arrives late and is older does not bring the row back.

A table with ``version=`` and ``delete=`` has a second table, which holds the key and the version of its deletions. Both
change in the same transaction. ``prune`` removes old deletions by ``Retention(deletions=...)``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    TEXT,
    VARCHAR,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Select,
    String,
    Table,
    TableClause,
    Text,
    delete,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table
from sqlalchemy.schema import CreateTable

from tallymark.core.claims import Entry
from tallymark.core.tables import Changes, TableSpec, WrittenTable
from tallymark.errors import AccessDenied, TableMismatch
from tallymark.stores.sql.columns import plain
from tallymark.stores.sql.errors import translated
from tallymark.stores.sql.ledger.runs import record_tables
from tallymark.stores.sql.ledger.tables import tables
from tallymark.stores.sql.tables import fits, has_table, reflected

if TYPE_CHECKING:
    from tallymark.stores.sql.dialect import Dialect

PREFIX = "tallymark_deleted_"
AT = "tallymark_deleted_at"
"""When a deletion was written, in microseconds since 1970."""
MOST_BYTES = 63
"""The longest name of a table in PostgreSQL; MySQL allows 64 characters."""
BESIDE = "tallymark_deletions"
"""The key of ``Table.info`` that holds the table of deletions."""


def name_of(table: str) -> str:
    """Return the name of the table that remembers the deletions of this one."""
    name = f"{PREFIX}{table}"
    return name if len(name.encode()) <= MOST_BYTES else f"{PREFIX}{zlib.crc32(table.encode()):08x}"


def add_deletions(connection: Connection, spec: TableSpec, table: Table, *, empty: bool) -> Table:
    """Create or find the table of deletions, and return the user's table with it. ``empty`` forgets old deletions."""
    beside = _new(connection, spec, table)
    if not has_table(connection, beside.name):
        _create(connection, spec, beside)
    elif empty:
        connection.execute(delete(beside))
    return with_deletions(connection, spec, table)


def with_deletions(connection: Connection, spec: TableSpec, table: Table) -> Table:
    """Return the user's table with its table of deletions, if there is one."""
    name = name_of(spec.name)
    if has_table(connection, name):
        beside = reflected(connection, name)
        for column in (*spec.key, str(spec.version)):
            there = beside.c.get(column)
            if there is None or not fits(plain(table.c[column]), there.type):
                found = "does not exist" if there is None else f"is {there.type}"
                raise TableMismatch(
                    f"table {spec.name} has column {column} of type {table.c[column].type}, which {found} in {name}, "
                    f"where its deletions are remembered; change the column there, or drop {name} to forget them"
                )
        table.info[BESIDE] = beside
    return table


def deletions_of(table: Table) -> Table | None:
    found: Table | None = table.info.get(BESIDE)
    return found


def _new(connection: Connection, spec: TableSpec, table: Table) -> Table:
    def kind(column: Column[Any]) -> Any:
        found = plain(column)
        # Compared by bytes, as the keys and versions of a batch; an index works only for its own collation.
        bytewise = connection.dialect.name == "postgresql" and type(found) in (String, Text, VARCHAR, TEXT)
        return Text(collation="C") if bytewise else found

    key = [Column(name, kind(table.c[name]), primary_key=True, autoincrement=False) for name in spec.key]
    others: list[Column[Any]] = [
        Column(str(spec.version), kind(table.c[str(spec.version)])),
        Column(AT, BigInteger, nullable=False),
    ]
    return Table(name_of(spec.name), MetaData(), *key, *others, mysql_engine="InnoDB", mysql_charset="utf8mb4")


def _create(connection: Connection, spec: TableSpec, beside: Table) -> None:
    try:
        # With checkfirst, PostgreSQL does not create the key's enum type again. On MySQL it would lock the name.
        with translated(""):
            beside.create(connection, checkfirst=connection.dialect.name != "mysql")
    except AccessDenied as denied:
        statement = " ".join(str(CreateTable(beside).compile(dialect=connection.dialect)).split())
        raise AccessDenied(
            f"table {spec.name}: its deletions are remembered in {beside.name}, which this user may not create; have "
            f"an administrator create it: {statement}"
        ) from denied


def remember(dialect: Dialect, connection: Connection, table: Table, spec: TableSpec, rows: pa.Table) -> None:
    """Remember deletions that have a version. A deletion without one forgets those of its key."""
    beside = deletions_of(table)
    if beside is None:
        return
    key, version = list(spec.key), str(spec.version)
    has_version = pc.is_valid(rows[version])
    final, versioned = rows.filter(pc.invert(has_version)), rows.filter(has_version)
    if final.num_rows:
        dialect.delete(connection, beside, TableSpec("deletions", spec.key, "upsert"), final.select(key))
    if versioned.num_rows:
        now = pa.repeat(pa.scalar(_micros(datetime.now(UTC)), pa.int64()), versioned.num_rows)
        versioned = versioned.select([*key, version]).append_column(AT, now)
        dialect.put(connection, beside, TableSpec("deletions", spec.key, "upsert", spec.version), versioned)


def is_deleted(
    table: Table,
    spec: TableSpec,
    given: Mapping[str, ColumnElement[Any]],
    bytewise: Callable[[ColumnElement[Any]], ColumnElement[Any]] = lambda text: text,
) -> ColumnElement[bool] | None:
    """Condition that a deletion of the same key has a higher version; None if the table remembers no deletions.

    ``bytewise`` makes the database compare text by its bytes, as within a batch.
    """
    beside = deletions_of(table)
    if beside is None or spec.version is None:
        return None
    there, new = beside.c[spec.version], given[spec.version]
    higher = (bytewise(there) if isinstance(there.type, String) else there) > new
    return exists().where(*(beside.c[name] == given[name] for name in spec.key), or_(new.is_(None), higher))


def undeleted(
    table: Table,
    spec: TableSpec,
    incoming: TableClause,
    bytewise: Callable[[ColumnElement[Any]], ColumnElement[Any]],
) -> Select[Any]:
    """Select the incoming rows, without those that are older than a deletion of their key."""
    rows = select(incoming)
    deleted = is_deleted(table, spec, dict(incoming.c), bytewise)
    return rows if deleted is None else rows.where(~deleted)


def lock(connection: Connection, entry: Entry, changes: Sequence[Changes]) -> None:
    """Have batches of a group with rows, and batches with deletions, wait for each other.

    A backfill does not own its partition. Without the lock it could miss the deletion of a batch that commits at the
    same time, and bring the row back.
    """
    concerned = {change.spec.name: change for change in changes if change.spec.remembers and len(change)}
    for name, change in sorted(concerned.items()):
        lock_table(connection, entry.group, [each for each in entry.tables if each.name == name], entry.now, change)


def lock_table(
    connection: Connection, group: str, written: Sequence[WrittenTable], now: datetime, change: Changes
) -> None:
    """Lock a table that remembers deletions: for a batch without deletions, together with others of that kind."""
    record_tables(connection, group, written, now)
    row = select(tables.c.table_name).where(tables.c.group_name == group, tables.c.table_name == change.spec.name)
    connection.execute(row.with_for_update(read=not change.deletes.num_rows))


def prune_deletions(connection: Connection, names: Collection[str], before: datetime, *, execute: bool) -> int:
    """Count the remembered deletions of these tables that are older, and forget them if ``execute``."""
    count = 0
    for beside in (sql_table(name_of(name), sql_column(AT)) for name in sorted(names)):
        if has_table(connection, beside.name):
            old = beside.c[AT] < _micros(before)
            count += connection.scalar(select(func.count()).select_from(beside).where(old)) or 0
            if execute:
                connection.execute(delete(beside).where(old))
    return count


def _micros(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)
