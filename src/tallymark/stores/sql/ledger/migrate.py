"""Create the ledger, upgrade an older ledger, and refuse the ledger of a newer tallymark.

``statements`` returns the statements for both. A store executes them; ``tallymark ledger sql`` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection, Dialect, Table, TextClause, Update, func, inspect, select, text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from tallymark.errors import AccessDenied, BadInput
from tallymark.stores.sql.errors import DENIED, first_line, judged
from tallymark.stores.sql.ledger.skips import void_before_resets
from tallymark.stores.sql.ledger.tables import SINCE, VERSION, VIEW, metadata, schema, status_view, version_row

Statement = CreateTable | CreateIndex | Update | TextClause
TABLES = list(metadata.tables.values())
DIALECTS: Mapping[str, type[Dialect]] = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "sqlite": sqlite.dialect,
}


@dataclass(frozen=True)
class Existing:
    """The part of the ledger that exists: its version, the columns of each table, and whether it has the view."""

    version: int | None = None
    columns: Mapping[str, Collection[str]] = field(default_factory=dict)
    view: bool = False

    @classmethod
    def found(cls, connection: Connection) -> Existing:
        inspector = inspect(connection)
        names = set(inspector.get_table_names())
        columns = {
            table.name: {column["name"] for column in inspector.get_columns(table.name)}
            for table in TABLES
            if table.name in names
        }
        return cls(ledger_version(connection), columns, VIEW in inspector.get_view_names())

    @classmethod
    def of_version(cls, version: int) -> Existing:
        check_version(version)
        columns = {
            table.name: {column.name for column in table.c if column.info.get(SINCE, 1) <= version}
            for table in TABLES
            if table.info.get(SINCE, 1) <= version
        }
        return cls(version, columns, view=True)


def ledger_version(connection: Connection) -> int | None:
    """Return the version of the ledger in this database; None if there is no ledger."""
    if not inspect(connection).has_table(schema.name):
        return None
    version: int | None = connection.scalar(select(func.max(schema.c.version)))
    return version


def check_version(found: int) -> None:
    if found > VERSION:
        raise BadInput(f"the ledger has version {found}, this tallymark supports {VERSION}: upgrade tallymark")


@contextmanager
def explaining_denials(store: str, version: Callable[[], int | None]) -> Iterator[None]:
    """Name the command for an administrator if the user may not create or upgrade the ledger."""
    try:
        yield
    except DBAPIError as error:
        # Without a statement it was the login that was refused.
        if judged(error.orig) is not DENIED or error.statement is None:
            raise
        found, words = None, first_line(error.orig)
        # MySQL does not say whether a table exists that the user may not read.
        with suppress(AccessDenied):
            found = version()
        raise AccessDenied(
            f"{store} has no ledger that this user may use, and the user may not create one: {words}; have an "
            "administrator run tallymark ledger create, or the statements of tallymark ledger sql"
            if found is None
            else f"the ledger in {store} has version {found}, this tallymark needs {VERSION}, and the user may not "
            f"upgrade it: {words}; have an administrator run tallymark ledger upgrade, or the statements of tallymark "
            "ledger sql"
        ) from error


def create_ledger(connection: Connection) -> None:
    """Create what is missing."""
    found = ledger_version(connection)
    check_version(found or 0)
    if found == VERSION:
        return
    with _alone(connection):
        for statement in statements(connection.dialect, Existing.found(connection)):
            connection.execute(statement)


def statements(dialect: Dialect, existing: Existing) -> Iterator[Statement]:
    """Yield what creates or upgrades the ledger. The version is written last: without it the ledger is incomplete."""
    if existing.version == VERSION:
        return
    for table in TABLES:
        if table.name in existing.columns:
            yield from _new_columns(dialect, table, existing.columns[table.name])
        else:
            yield CreateTable(table)
            yield from (CreateIndex(index) for index in sorted(table.indexes, key=lambda index: str(index.name)))
    if existing.version == 1:
        yield void_before_resets()
    if not existing.view:
        yield text(status_view(dialect.name))
    yield text(version_row(dialect.name))


def script(dialect: Dialect, existing: Existing) -> str:
    """Return the statements as text, with the permissions that an application needs as comments."""
    written = [_text(dialect, statement) for statement in statements(dialect, existing)]
    if not written:
        return f"-- The ledger has version {existing.version}: there is nothing to do.\n"
    # MySQL commits after each of these statements anyway.
    atomic = dialect.name != "mysql"
    lines = [f"-- The ledger of tallymark, version {VERSION}, for {dialect.name}."]
    lines += ["BEGIN;"] if atomic else []
    lines += [f"{statement};" for statement in written]
    lines += ["COMMIT;"] if atomic else []
    return "\n\n".join([*lines, *_grants(dialect.name)]) + "\n"


def _text(dialect: Dialect, statement: Statement) -> str:
    compiled = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return "\n".join(line.rstrip() for line in str(compiled).strip().expandtabs(4).splitlines())


def _grants(dialect: str) -> list[str]:
    if dialect == "sqlite":
        return []
    lines = ["-- The permissions of an application that may not create tables, here of the user application:"]
    lines += [f"-- GRANT SELECT, INSERT, UPDATE, DELETE ON {table.name} TO application;" for table in TABLES]
    if dialect == "postgresql":
        numbered = [table.name for table in TABLES if "id" in table.c]
        lines += [f"-- GRANT USAGE ON SEQUENCE {name}_id_seq TO application;" for name in numbered]
    return ["\n".join([*lines, f"-- GRANT SELECT ON {VIEW} TO application;"])]


def _new_columns(dialect: Dialect, table: Table, there: Collection[str]) -> Iterator[Statement]:
    for column in table.c:
        if column.name not in there:
            yield text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.type.compile(dialect)}")


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Lock out other processes that create a ledger: creating a table concurrently can fail."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tallymark_ledger'))"))
    if connection.dialect.name != "mysql":
        yield
        return
    connection.execute(text("SELECT GET_LOCK('tallymark_ledger', 30)"))
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK('tallymark_ledger')"))
