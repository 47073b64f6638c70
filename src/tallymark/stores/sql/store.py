"""The store for SQL databases: user tables and ledger are written in one transaction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TypeVar

import pyarrow as pa
from sqlalchemy import Connection, Table, text
from sqlalchemy.engine import URL

from tallymark.core.claims import Claim, Decide, Entry, Skip, explain_refusal
from tallymark.core.halving import in_new_transactions, one_by_one
from tallymark.core.journal import Rebalance, Run
from tallymark.core.progress import Step
from tallymark.core.retention import Cutoffs
from tallymark.core.spans import GroupState, Owner, Partition, Position, Tally
from tallymark.core.tables import Changes, Refusal, TableSpec, table_schema
from tallymark.errors import (
    BadInput,
    BatchTooLarge,
    CommitRefused,
    DataRefused,
    TableChanged,
    TallymarkError,
    Unreachable,
)
from tallymark.stores.contract import RowsRefused, Store
from tallymark.stores.sql.deletions import add_deletions, lock, with_deletions
from tallymark.stores.sql.dialect import MAY_IDLE, READ_ONLY, Dialect
from tallymark.stores.sql.errors import translated
from tallymark.stores.sql.guard import guard
from tallymark.stores.sql.journal import SqlJournal, SqlSnapshot, in_snapshot
from tallymark.stores.sql.ledger.claim import claim, reclaim, release
from tallymark.stores.sql.ledger.commit import check_fence, write_entry
from tallymark.stores.sql.ledger.migrate import create_ledger, explaining_denials, ledger_version
from tallymark.stores.sql.ledger.prune import prune
from tallymark.stores.sql.ledger.read import read_group, read_positions
from tallymark.stores.sql.ledger.runs import (
    read_rebalances,
    read_state,
    recent_tally,
    record_rebalances,
    write_run,
    write_state,
)
from tallymark.stores.sql.ledger.skips import read_skips, was_filled
from tallymark.stores.sql.ledger.tables import VERSION
from tallymark.stores.sql.mysql import Mysql
from tallymark.stores.sql.postgresql import Postgresql
from tallymark.stores.sql.sqlite import Sqlite
from tallymark.stores.sql.staging import Stages, clear_stages
from tallymark.stores.sql.tables import check_table_names, create_table, evolve_table, existing_table, retrying_races
from tallymark.stores.sql.transaction import Known, SqlTransaction
from tallymark.stores.sql.write import Piece, pieces, refused_rows, write
from tallymark.stores.url import shown

T = TypeVar("T")

DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": Sqlite,
    "postgresql": Postgresql,
    "postgres": Postgresql,
    "mysql": Mysql,
    "mariadb": Mysql,
}


class SqlStore(Store):
    """Keeps rows and offsets in one database, so that one transaction can write both."""

    latest_version = VERSION

    def __init__(self, url: URL) -> None:
        self.dialect = DIALECTS[url.get_backend_name()]()
        self.name = shown(url)
        self._tables: dict[str, Table] = {}
        self._found: dict[str, Table | None] = {}  # by check_tables, for create_tables
        self._schemas: Mapping[str, pa.Schema] = {}
        self._known: Known = {}
        try:
            self.engine = self.dialect.engine(url)
        except ModuleNotFoundError as error:
            raise BadInput(
                f"{self.name} needs {error.name}, which is not installed: pip install 'tallymark[{self.dialect.extra}]'"
            ) from None
        guard(self.engine)
        self._for_handlers = self.engine.execution_options(**{MAY_IDLE: True})

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commit at the end of the block; roll back if it raises."""
        with translated(self.name), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def _trial(self) -> Iterator[Connection]:
        """Open a transaction that is always rolled back."""
        with translated(self.name), self.engine.connect() as connection, connection.begin() as trial:
            yield connection
            trial.rollback()

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """Open a connection for reading that does not wait for writers."""
        with translated(self.name), self.engine.connect() as connection:
            yield connection.execution_options(**{READ_ONLY: True})

    def ping(self) -> None:
        with self.look() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()

    def ledger_version(self) -> int | None:
        with self.look() as connection:
            return ledger_version(connection)

    def create_ledger(self) -> None:
        with translated(self.name), explaining_denials(self.name, self.ledger_version):
            retrying_races(partial(self._in_transaction, create_ledger))

    def positions(self, group: str | None = None) -> dict[str, list[Position]]:
        with self.look() as connection:
            return read_group(connection, group)

    def state(self, group: str) -> GroupState | None:
        with self.look() as connection:
            return read_state(connection, group)

    def set_state(self, group: str, state: GroupState) -> None:
        with self.transaction() as connection:
            write_state(connection, group, state)

    def journal(self) -> SqlJournal:
        return SqlJournal(self.look, self.transaction)

    @contextmanager
    def snapshot(self) -> Iterator[SqlSnapshot]:
        with self.look() as connection:
            yield SqlSnapshot(in_snapshot(connection))

    def write_run(self, group: str, run: Run, *, new: bool = False) -> None:
        with self.transaction() as connection:
            write_run(connection, group, run, new)

    def recent(self, group: str, since: datetime) -> Tally:
        with self.look() as connection:
            return recent_tally(connection, group, since)

    def skips(self, group: str) -> list[Skip]:
        with self.look() as connection:
            return read_skips(connection, group)

    def filled(self, group: str, batch: str) -> bool:
        with self.look() as connection:
            return was_filled(connection, group, batch)

    def record_rebalances(self, group: str, rebalances: Sequence[Rebalance]) -> None:
        with self.transaction() as connection:
            record_rebalances(connection, group, rebalances)

    def rebalances(self, group: str, most: int = 100) -> list[Rebalance]:
        with self.look() as connection:
            return read_rebalances(connection, group, most)

    def prune(self, group: str, cutoffs: Cutoffs, *, execute: bool = True) -> dict[str, int]:
        with self.transaction() if execute else self.look() as connection:
            return prune(connection, group, cutoffs, execute=execute)

    def claim(
        self,
        group: str,
        owner: Owner,
        partitions: Collection[Partition],
        decide: Decide,
        held: Mapping[Partition, Claim],
    ) -> dict[Partition, Claim]:
        with self.transaction() as connection:
            return claim(connection, group, owner, partitions, decide, held)

    def reclaim(self, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
        with self.transaction() as connection:
            return reclaim(connection, group, claims)

    def release(self, group: str, claims: Iterable[Claim]) -> None:
        with self.transaction() as connection:
            release(connection, group, claims)

    def check_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        check_table_names([spec.name for spec in specs], self.engine.dialect.name)
        with self.look() as connection:
            for spec in specs:
                self._found[spec.name] = self._existing_table(connection, spec, table_schema(spec, schemas[spec.name]))

    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        self._schemas, known, self._found = {**self._schemas, **schemas}, self._found, {}
        for spec in specs:
            schema, found = table_schema(spec, schemas[spec.name]), known.get(spec.name)
            if found is not None and not spec.remembers and all(name in found.c for name in schema.names):
                self._tables[spec.name] = found
                continue
            with translated(self.name):
                retrying_races(partial(self._in_transaction, self._create_table, spec, schema))

    def stages(self, group: str, run: str) -> Stages | None:
        return Stages(self.engine, self.name, group, run) if self.dialect.stages else None

    def clear_stages(self, group: str, *, of: str | None = None, keep: Collection[str] = ()) -> None:
        if self.dialect.stages:
            with translated(self.name):
                clear_stages(self.engine, group, of, keep)

    @contextmanager
    def begin(
        self, entry: Callable[[], Entry | None], on_step: Callable[[Step], None] = lambda _: None
    ) -> Iterator[SqlTransaction]:
        written: Entry | None = None
        try:
            with SqlTransaction(self.name, self._for_handlers, self.dialect, self._known).opened() as db:
                yield db
                written = entry()
                db.finish(written, on_step)
        except CommitRefused as refused:
            explained = self._explained(written) if written is not None else None
            if explained is None:
                raise
            raise explained from refused

    def apply(
        self,
        changes: Sequence[Changes],
        entry: Entry | None,
        on_step: Callable[[Step], None] = lambda _: None,
        refusals: int = sys.maxsize,
    ) -> None:
        try:
            with self._blaming(changes, refusals), self.transaction() as connection:
                self._apply(connection, changes, entry, on_step)
        except CommitRefused as refused:
            raise (entry and self._explained(entry)) or refused from refused

    def try_out(self, changes: Sequence[Changes], refusals: int = sys.maxsize) -> None:
        with self._blaming(changes, refusals), self._trial() as connection:
            self._apply(connection, changes, None, lambda _: None)
            # No COMMIT follows that would check them.
            self.dialect.check_deferred(connection)

    @contextmanager
    def _blaming(self, changes: Sequence[Changes], refusals: int) -> Iterator[None]:
        """When rows are refused, find the records at fault or the change to the table."""
        try:
            yield
        except DataRefused as refused:
            raise self._blamed(changes, refused, refusals) from refused
        except TableChanged as changed:
            raise self._rechecked([change.spec for change in changes], changed) from changed

    def _apply(
        self, connection: Connection, changes: Sequence[Changes], entry: Entry | None, on_step: Callable[[Step], None]
    ) -> None:
        if entry is not None:
            check_fence(connection, entry)
            lock(connection, entry, changes)
        for change in changes:
            write(self.dialect, connection, self._tables[change.spec.name], change)
        self.dialect.check_constraints(connection)

        def written() -> None:
            if changes:
                on_step(Step.WRITTEN)

        if entry is None:
            written()
        else:
            write_entry(connection, entry, written)
            on_step(Step.MOVED)

    def _explained(self, entry: Entry) -> CommitRefused | None:
        with self.look() as connection:
            found = read_positions(connection, entry.group, [step.partition for step in entry.advances])
        return explain_refusal(found, entry.advances)

    def _blamed(self, changes: Sequence[Changes], refused: DataRefused, at_most: int) -> TallymarkError:
        """Return an error with the records at fault. If the table was altered, raise that, which explains more."""
        with self.look() as connection:
            for change in changes:
                self._look_again(connection, change.spec)
        if any(change.staged for change in changes):
            return BatchTooLarge(f"{self.name} refused a staged row ({refused}): split the batch to find it")
        whole = [piece for change in changes for piece in pieces(self._tables[change.spec.name], change)]
        found = in_new_transactions(partial(self._refused_rows, whole, at_most))
        if found:
            return RowsRefused(found)
        return Unreachable(f"{self.name} refused rows, and then accepted each of them: {refused}; try again")

    def _refused_rows(
        self, whole: Sequence[Piece], at_most: int, undoing: Sequence[tuple[Piece, DataRefused]], singly: bool
    ) -> list[Refusal]:
        refusals = [piece.refusal(error) for piece, error in undoing]
        if len(refusals) >= at_most:
            return refusals
        rest = [piece.without({refusal.record for refusal in refusals}) for piece in whole]
        parts = [row for piece in rest for row in one_by_one(piece)] if singly else rest
        with self._trial() as connection:
            return refusals + refused_rows(self.dialect, connection, parts, at_most - len(refusals))

    def _rechecked(self, specs: Sequence[TableSpec], changed: TableChanged) -> TallymarkError:
        """Return what is wrong with the tables now, or, if they fit again, an error that is retried."""
        with self.look() as connection:
            for spec in specs:
                if not self._look_again(connection, spec):
                    return TableChanged(
                        f"table {spec.name} was dropped while the pipeline ran; restart to create it again, and reset "
                        "the group to fill it from the start"
                    )
        self.create_tables(specs, self._schemas)
        return Unreachable(f"{self.name}: a table was altered: {changed}; try again")

    def _look_again(self, connection: Connection, spec: TableSpec) -> bool:
        """Reload the table's columns. Returns whether the table still exists; raises if it no longer fits."""
        table = self._existing_table(connection, spec, table_schema(spec, self._schemas[spec.name]))
        if table is not None:
            self._tables[spec.name] = table
        return table is not None

    def _create_table(self, connection: Connection, spec: TableSpec, schema: pa.Schema) -> None:
        found = self._existing_table(connection, spec, schema)
        if found is None:
            table = create_table(connection, spec, schema)
        else:
            table = evolve_table(connection, found, spec, schema)
        if spec.remembers:
            table = add_deletions(connection, spec, table, empty=found is None)
        self._tables[spec.name] = table

    def _existing_table(self, connection: Connection, spec: TableSpec, schema: pa.Schema) -> Table | None:
        table = existing_table(connection, spec, schema)
        if table is not None:
            self.dialect.check_table(connection, table, spec, schema.names)
        return with_deletions(connection, spec, table) if table is not None and spec.remembers else table

    def _in_transaction(self, work: Callable[..., T], *arguments: object) -> T:
        with self.engine.begin() as connection:
            return work(connection, *arguments)
