"""Staging: executors write a large batch to tables of its own, in parallel, and one transaction promotes the rows.

Nobody sees staged rows. Every attempt of a task writes under an id of its own, and only the attempts that Spark reports
as successful are promoted, so a task that is repeated, or that lingers, adds nothing. The name of a staging table says
whose it is: the next owner of the group drops what a crashed run has left.
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

from tallymark.errors import BatchTooLarge, DataRefused
from tallymark.shape import Staged, TableSpec, no_key
from tallymark.stores.columns import columns_for, has_own_text, is_uuid, most_characters
from tallymark.stores.failures import translated

if TYPE_CHECKING:
    from tallymark.stores.dialects import Dialect

log = logging.getLogger(__name__)

PREFIX = "tallymark_stage"
ATTEMPT = "tallymark_attempt"
ROWS = TableSpec("stage")
PIECE = 16 << 20
"""Bytes that an executor holds and sends at once."""
REPORT = pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("refused", pa.string())])
"""What a task tells the driver: its attempt, how many rows it wrote, or why the database refused one."""


@dataclass(frozen=True)
class Loader:
    """Goes to the executors: writes what a task gets to a staging table, and reports.

    Rows without a ``key`` are refused: a table may take them, and which records they hide is found on the driver.
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
                self.put(store.dialect, connection, piece, attempt)
                rows += piece.num_rows
        return rows

    def put(self, dialect: Dialect, connection: Connection, rows: pa.Table, attempt: int) -> None:
        """Write rows of an attempt."""
        self._check_keys(rows)
        table = stage_table(self.name, columns_for(self.schema, ()))
        named = rows.cast(self.schema).append_column(ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), rows.num_rows))
        dialect.put(connection, table, ROWS, named)

    def _check_keys(self, rows: pa.Table) -> None:
        for name in self.key:
            if pc.any(no_key(rows[name])).as_py():
                raise DataRefused(f"key column {name} is NULL or NaN")

    def staged(self, reports: Iterable[Mapping[str, Any]]) -> Staged:
        """The rows of all attempts that were reported."""
        written = {}
        for report in reports:
            if report["refused"] is not None:
                said = f"a staged row was refused ({report['refused']}), which is found in smaller batches"
                raise BatchTooLarge(said)
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
        """Make a staging table for rows of this schema."""
        self._made += 1
        loader = Loader(self._engine.url.render_as_string(hide_password=False), f"{self._name}{self._made}", schema)
        with translated(self._store), self._engine.begin() as connection:
            # Not in PostgreSQL's log: a staging table does not have to survive a crash, the batch is staged anew.
            prefixes = ["UNLOGGED"] if connection.dialect.name == "postgresql" else []
            stage_table(loader.name, columns_for(schema, ()), prefixes).create(connection)
        return loader

    def drop(self, names: Iterable[str]) -> None:
        drop_tables(self._engine, names)

    @contextmanager
    def kept(self, names: Iterable[str]) -> Iterator[None]:
        """These tables stay, unless the block fails: then they go, with those that it has added to what is iterated."""
        try:
            yield
        except BaseException:
            self.drop(names)
            raise


def clear_stages(engine: Engine, group: str, of: str | None, keep: Collection[str]) -> None:
    """Drop the staging tables of this run of the group, or those of all but the runs to keep."""
    with engine.connect() as connection:
        names = [name for name in inspect(connection).get_table_names() if name.startswith(_group_prefix(group))]
    chosen = tuple(f"{_group_prefix(group)}{_run_prefix(run)}" for run in ([of] if of else keep))
    found = [name for name in names if name.startswith(chosen) == bool(of)]
    drop_tables(engine, found)
    if found and not of:
        log.info("removed staging tables of earlier runs group=%s tables=%d", group, len(found))


def drop_tables(engine: Engine, names: Iterable[str]) -> None:
    """Drop what can be dropped: a table that a lingering task still writes to is left to the next owner."""
    for name in names:
        try:
            with engine.begin() as connection, impatient(connection):
                stage_table(name, ()).drop(connection, checkfirst=True)
        except DBAPIError as error:
            log.warning("could not remove a staging table table=%s error=%s", name, error.orig)


@contextmanager
def impatient(connection: Connection) -> Iterator[None]:
    """Wait two seconds for a lock, and no more."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        yield
        return
    connection.exec_driver_sql("SET SESSION lock_wait_timeout = 2")
    try:
        yield
    finally:
        # The connection goes back to the pool, and others wait as long as the server says.
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = DEFAULT")


def staged_rows(connection: Connection, staged: Staged, like: Table, key: Collection[str]) -> Select[Any]:
    """The rows to promote; refused if the database has lost any of them."""
    source = stage_table(staged.name, [Column(name, like.c[name].type) for name in staged.columns])
    ours = source.c[ATTEMPT].in_(staged.attempts)
    found = connection.scalar(select(func.count()).select_from(source).where(ours))
    if found != staged.rows:
        raise BatchTooLarge(f"{found} of {staged.rows} staged rows are left; they have to be read again")
    limits = {name: most_characters(like.c[name]) for name in staged.columns}
    odd = [func.char_length(source.c[name]) > most for name, most in limits.items() if most is not None]
    chosen: dict[str, Any] = {name: source.c[name] for name in staged.columns}
    if connection.dialect.name == "postgresql":
        # Staged as text, which PostgreSQL does not convert by itself.
        texts = [name for name in staged.columns if has_own_text(like.c[name])]
        chosen |= {name: cast(source.c[name], like.c[name].type) for name in texts}
        uuids = [name for name in key if is_uuid(like.c[name])]
        odd += [cast(source.c[name], Text()) != cast(cast(source.c[name], UUID()), Text()) for name in uuids]
    if odd and connection.scalar(select(func.count()).where(ours, or_(*odd))):
        # Their server would cut off spaces, or take two spellings of a UUID for one.
        raise BatchTooLarge("staged rows have texts that the table does not take, which are found in smaller batches")
    return select(*chosen.values()).where(ours)


def new_attempt() -> int:
    """An id that no other attempt has. If one had it, their rows would be counted, and be too many."""
    return secrets.randbits(63)


def stage_table(name: str, columns: Iterable[Column[Any]], prefixes: Iterable[str] = ()) -> Table:
    attempt: Column[int] = Column(ATTEMPT, BigInteger, nullable=False)
    options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "prefixes": list(prefixes)}
    return Table(name, MetaData(), *columns, attempt, **options)


def _group_prefix(group: str) -> str:
    # Short enough for every database, whatever the group is called.
    return f"{PREFIX}_{zlib.crc32(group.encode()):08x}_"


def _run_prefix(run: str) -> str:
    return f"{run.replace('-', '_')}_"


def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together to pieces that are worth a statement, and small enough to hold."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(part.nbytes for part in held) >= PIECE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
