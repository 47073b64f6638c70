"""The destination: one database that holds the user's tables and the ledger, reached by one URL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import pyarrow as pa
from sqlalchemy import Connection, Table, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from tallymark.errors import BadInput
from tallymark.ledger.create import create_ledger, ledger_version
from tallymark.shape import TableSpec
from tallymark.stores.dialects import READ_ONLY, Dialect
from tallymark.stores.failures import translated
from tallymark.stores.mysql import Mysql
from tallymark.stores.postgresql import Postgresql
from tallymark.stores.sqlite import Sqlite
from tallymark.stores.targets import create_table, existing_table

T = TypeVar("T")

DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": Sqlite,
    "postgresql": Postgresql,
    "postgres": Postgresql,
    "mysql": Mysql,
    "mariadb": Mysql,
}


class Store:
    """Rows and offsets in one place, so that one transaction can hold both."""

    def __init__(self, url: str) -> None:
        parsed = _parse(url)
        self.dialect = DIALECTS[parsed.get_backend_name()]()
        self.name = _without_secrets(parsed)
        self._tables: dict[str, Table] = {}
        try:
            self.engine = self.dialect.engine(parsed)
        except ModuleNotFoundError as error:
            raise BadInput(
                f"{self.name} needs {error.name}, which is not installed: pip install 'tallymark[{self.dialect.extra}]'"
            ) from None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that commits at the end of the block, or not at all."""
        with translated(self.name), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """A connection for reading; it waits for no writer."""
        with translated(self.name), self.engine.connect() as connection:
            yield connection.execution_options(**{READ_ONLY: True})

    def ping(self) -> None:
        """Raise what keeps us from using the database, if anything does."""
        with self.look() as connection:
            connection.execute(text("SELECT 1"))

    def create_ledger(self) -> None:
        """Make the ledger if there is none. Two processes may do this at once: the slower one finds it made."""
        with translated(self.name):
            _second_chance(partial(self._in_transaction, create_ledger))

    def has_ledger(self) -> bool:
        with self.look() as connection:
            return ledger_version(connection) is not None

    def check_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        """Refuse tables that exist and do not fit. Nothing is created."""
        with self.look() as connection:
            for spec in specs:
                self._existing_table(connection, spec, schemas[spec.name])

    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        """Create the tables that are absent, and check the others."""
        for spec in specs:
            work = partial(self._in_transaction, self._create_table, spec, schemas[spec.name])
            with translated(self.name):
                _second_chance(work)

    def write(self, connection: Connection, spec: TableSpec, rows: pa.Table) -> None:
        """Put finished rows into a table, as part of the caller's transaction."""
        if not rows.num_rows:
            return
        if spec.write == "upsert":
            self.dialect.upsert(connection, self._tables[spec.name], rows, spec.key)
        else:
            self.dialect.append(connection, self._tables[spec.name], rows)

    def close(self) -> None:
        self.engine.dispose()

    def _create_table(self, connection: Connection, spec: TableSpec, schema: pa.Schema) -> None:
        found = self._existing_table(connection, spec, schema)
        self._tables[spec.name] = create_table(connection, spec, schema) if found is None else found

    def _existing_table(self, connection: Connection, spec: TableSpec, schema: pa.Schema) -> Table | None:
        table = existing_table(connection, spec, schema)
        if table is not None:
            self.dialect.check_table(connection, table, spec, schema.names)
        return table

    def _in_transaction(self, work: Callable[..., T], *arguments: object) -> T:
        with self.engine.begin() as connection:
            return work(connection, *arguments)


def _second_chance(work: Callable[[], None]) -> None:
    """Looking for a table and creating it is not atomic: the loser of a race fails, and finds it at the next try."""
    for pause in (0.1, 0.5):
        try:
            return work()
        except DBAPIError:
            time.sleep(pause)
    return work()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise BadInput("the store URL can't be read; write it like postgresql://user@host/database") from None
    if parsed.get_backend_name() not in DIALECTS:
        known = ", ".join(sorted(DIALECTS))
        raise BadInput(f"no store for {parsed.get_backend_name()}:// URLs; tallymark knows {known}")
    return parsed


def _without_secrets(url: URL) -> str:
    """The URL for messages: no password, and no query, which may hold one too."""
    return url.set(query={}).render_as_string(hide_password=True)
