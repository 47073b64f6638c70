"""Create the ledger on first use, upgrade an older ledger, and refuse the ledger of a newer tallymark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from sqlalchemy import Connection, Table, func, insert, inspect, select, text

from tallymark.errors import BadInput
from tallymark.stores.sql.ledger.skips import void_before_resets
from tallymark.stores.sql.ledger.tables import VERSION, dead_letters, metadata, positions, schema, status_view


def ledger_version(connection: Connection) -> int | None:
    """Return the version of the ledger in this database; None if there is no ledger."""
    if not inspect(connection).has_table(schema.name):
        return None
    version: int | None = connection.scalar(select(func.max(schema.c.version)))
    return version


def create_ledger(connection: Connection) -> None:
    """Create what is missing. The version row is written last: without it the ledger is incomplete."""
    found = ledger_version(connection)
    if found is not None and found > VERSION:
        raise BadInput(f"the ledger has version {found}, this tallymark knows {VERSION}: upgrade tallymark")
    if found == VERSION:
        return
    with _alone(connection):
        _create(connection, ledger_version(connection))


def _create(connection: Connection, found: int | None) -> None:
    if found == VERSION:
        return
    metadata.create_all(connection)
    if found == 1:
        void_before_resets(connection)
    if found is not None and found < 3:
        _add_columns(connection, dead_letters, ["changed_at", "changed_by"])
    if found is not None and found < 4:
        _add_columns(connection, positions, ["leader_epoch"])
    if "tallymark_status" not in inspect(connection).get_view_names():
        dialect = "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name
        connection.execute(text(status_view(dialect)))
    connection.execute(insert(schema), {"version": VERSION, "applied_at": datetime.now(timezone.utc)})


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Lock out other processes that create a ledger: creating a table concurrently can fail."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tallymark_ledger'))"))
    if connection.dialect.name not in ("mysql", "mariadb"):
        yield
        return
    connection.execute(text("SELECT GET_LOCK('tallymark_ledger', 30)"))
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK('tallymark_ledger')"))


def _add_columns(connection: Connection, table: Table, names: list[str]) -> None:
    """Add the columns that an older ledger lacks."""
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for name in names:
        if name not in there:
            kind = table.c[name].type.compile(connection.dialect)
            connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))
