"""Staging: executors write a large batch to staging tables in parallel, and one transaction promotes the rows.

Staged rows are not visible in the user's tables. Every task attempt writes under its own id, and only attempts that
Spark reports as successful are promoted, so a task that is repeated or that lingers adds nothing. The name of a staging
table identifies its group and run: the next owner of the group drops the tables that a crashed run has left.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    UUID,
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Select,
    Table,
    Text,
    cast,
    func,
    inspect,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError

from tallymark.core.tables import Staged, TableSpec, no_key
from tallymark.errors import BatchTooLarge, DataRefused
from tallymark.stores.sql.columns import columns_for, has_own_text, is_uuid, most_characters
from tallymark.stores.sql.errors import translated

if TYPE_CHECKING:
    from tallymark.stores.sql.dialect import Dialect

log = logging.getLogger(__name__)

PREFIX = "tallymark_stage"
ATTEMPT = "tallymark_attempt"
ROWS = TableSpec("stage")
PIECE = 16 << 20
"""Bytes that an executor buffers and sends at once."""
REPORT = pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("refused", pa.string())])
"""What a task reports to the driver: its attempt, the number of rows it wrote, or why the database refused a row."""


@dataclass(frozen=True)
class Loader:
    """Runs on executors: writes the rows of a task to a staging table and reports the result.

    The columns of the rows are in the order of ``schema``, under any names.
    Rows with NULL or NaN in ``key`` are refused even if the table would accept them; the driver finds their records.
    """

    url: str = field(repr=False)
    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt, refused = new_attempt(), None
        rows = 0
        try:
            rows = self._load(batches, attempt)
        except DataRefused as error:
            refused = str(error)
        yield pa.RecordBatch.from_pylist([{"attempt": attempt, "rows": rows, "refused": refused}], REPORT)

    def _load(self, batches: Iterable[pa.RecordBatch], attempt: int) -> int:
        from tallymark.stores.opening import open_sql

        rows = 0
        with closing(open_sql(self.url)) as store, store.transaction() as connection:
            for piece in pieces(batches):
                self.put(store.dialect, connection, piece.rename_columns(self.schema.names), attempt)
                rows += piece.num_rows
        return rows

    def put(self, dialect: Dialect, connection: Connection, rows: pa.Table, attempt: int) -> None:
        """Write rows under the id of an attempt."""
        self._check_keys(rows)
        table = stage_table(self.name, columns_for(self.schema, ()))
        named = rows.cast(self.schema).append_column(ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), rows.num_rows))
        dialect.put(connection, table, ROWS, named)

    def _check_keys(self, rows: pa.Table) -> None:
        for name in self.key:
            if pc.any(no_key(rows[name])).as_py():
                raise DataRefused(f"key column {name} is NULL or NaN")

    def staged(self, reports: Iterable[Mapping[str, Any]]) -> Staged:
        """Combine the reports. Raises ``BatchTooLarge`` if a row was refused."""
        written = {}
        for report in reports:
            if report["refused"] is not None:
                raise BatchTooLarge(f"a staged row was refused ({report['refused']}): split the batch to find it")
            if report["rows"]:
                written[report["attempt"]] = report["rows"]
        return Staged(self.name, tuple(self.schema.names), tuple(written), sum(written.values()))


class Stages:
    """The staging tables of one run."""

    def __init__(self, engine: Engine, store: str, group: str, run: str) -> None:
        self._engine = engine
        self._store = store
        self._name = f"{_group_prefix(group)}{_run_prefix(run)}"
        self._made = 0

    def open(self, schema: pa.Schema) -> Loader:
        """Create a staging table for rows of this schema."""
        self._made += 1
        loader = Loader(self._engine.url.render_as_string(hide_password=False), f"{self._name}{self._made}", schema)
        with translated(self._store), self._engine.begin() as connection:
            # Not in PostgreSQL's WAL: a staging table need not survive a crash, because the batch is staged again.
            prefixes = ["UNLOGGED"] if connection.dialect.name == "postgresql" else []
            stage_table(loader.name, columns_for(schema, ()), prefixes).create(connection)
        return loader

    def drop(self, names: Iterable[str]) -> None:
        drop_tables(self._engine, names)

    @contextmanager
    def kept(self, names: Iterable[str]) -> Iterator[None]:
        """Drop the staging tables if the block raises, including tables that the block has added to ``names``."""
        try:
            yield
        except BaseException:
            self.drop(names)
            raise


def clear_stages(engine: Engine, group: str, of: str | None, keep: Collection[str]) -> None:
    """Drop the staging tables of the run ``of``, or those of all runs of the group except ``keep``."""
    with engine.connect() as connection:
        names = [name for name in inspect(connection).get_table_names() if name.startswith(_group_prefix(group))]
    chosen = tuple(f"{_group_prefix(group)}{_run_prefix(run)}" for run in ([of] if of else keep))
    found = [name for name in names if name.startswith(chosen) == bool(of)]
    drop_tables(engine, found)
    if found and not of:
        log.info("dropped staging tables of earlier runs group=%s tables=%d", group, len(found))


def drop_tables(engine: Engine, names: Iterable[str]) -> None:
    """Drop tables if possible: a table that a lingering task still writes to is left to the next owner."""
    for name in names:
        try:
            with engine.begin() as connection, impatient(connection):
                stage_table(name, ()).drop(connection, checkfirst=True)
        except DBAPIError as error:
            log.warning("staging table not dropped table=%s error=%s", name, error.orig)


@contextmanager
def impatient(connection: Connection) -> Iterator[None]:
    """Wait at most two seconds for a lock."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        yield
        return
    connection.exec_driver_sql("SET SESSION lock_wait_timeout = 2")
    try:
        yield
    finally:
        # The connection returns to the pool, and other users need the server's default.
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = DEFAULT")


def staged_rows(connection: Connection, staged: Staged, like: Table, key: Collection[str]) -> Select[Any]:
    """Select the rows to promote. Raises if the database has lost any of them."""
    source = stage_table(staged.name, [Column(name, like.c[name].type) for name in staged.columns])
    ours = source.c[ATTEMPT].in_(staged.attempts)
    found = connection.scalar(select(func.count()).select_from(source).where(ours))
    if found != staged.rows:
        raise BatchTooLarge(f"{found} of {staged.rows} staged rows are left: read the batch again")
    limits = {name: most_characters(like.c[name]) for name in staged.columns}
    odd = [func.char_length(source.c[name]) > most for name, most in limits.items() if most is not None]
    chosen: dict[str, Any] = {name: source.c[name] for name in staged.columns}
    if connection.dialect.name == "postgresql":
        # Staged as text, which PostgreSQL does not convert implicitly.
        texts = [name for name in staged.columns if has_own_text(like.c[name])]
        chosen |= {name: cast(source.c[name], like.c[name].type) for name in texts}
        uuids = [name for name in key if is_uuid(like.c[name])]
        odd += [cast(source.c[name], Text()) != cast(cast(source.c[name], UUID()), Text()) for name in uuids]
    if odd and connection.scalar(select(func.count()).where(ours, or_(*odd))):
        # The server would truncate trailing spaces, or store two spellings of a UUID as the same value.
        raise BatchTooLarge("staged rows have texts that the table can't store: split the batch to find them")
    return select(*chosen.values()).where(ours)


def new_attempt() -> int:
    """Return a random id. A collision is detected: promotion counts the rows of the id and finds too many."""
    return secrets.randbits(63)


def stage_table(name: str, columns: Iterable[Column[Any]], prefixes: Iterable[str] = ()) -> Table:
    attempt: Column[int] = Column(ATTEMPT, BigInteger, nullable=False)
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "prefixes": list(prefixes)}
    return Table(name, MetaData(), *columns, attempt, **options)


def _group_prefix(group: str) -> str:
    # Hashed, because databases limit the length of names.
    return f"{PREFIX}_{zlib.crc32(group.encode()):08x}_"


def _run_prefix(run: str) -> str:
    return f"{run.replace('-', '_')}_"


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into pieces that are large enough for a statement and small enough for memory."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(part.nbytes for part in held) >= PIECE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
