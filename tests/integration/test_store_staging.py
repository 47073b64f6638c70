"""Staged rows: only reported attempts are promoted, once, and lost rows are noticed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pyarrow as pa
import pytest

from tallymark.core.tables import Changes, TableSpec
from tallymark.errors import BatchTooLarge
from tallymark.stores.sql.staging import Loader
from tallymark.stores.sql.store import SqlStore
from tests.support.stores import PLAIN, ROWS, UPSERT, opened, plain, prepare, read

GROUP, RUN = "shop", "4711-abc"


@pytest.fixture(params=["postgresql", "mariadb"])
def store(request: pytest.FixtureRequest, database: Callable[[str], str]) -> SqlStore:
    made = opened(database(request.param))
    made.create_ledger()
    return made


def attempt(loader: Loader, *rows: tuple[int, str | None]) -> pa.Table:
    """The report of one attempt of a task."""
    return pa.Table.from_batches(loader(plain(*rows).to_batches()))


def opened_stage(store: SqlStore) -> Loader:
    stages = store.stages(GROUP, RUN)
    assert stages is not None
    return stages.open(PLAIN)


def promote(store: SqlStore, loader: Loader, reports: pa.Table, spec: TableSpec = ROWS) -> None:
    empty = PLAIN.empty_table()
    store.create_tables([spec], {"things": PLAIN})
    store.apply([Changes(spec, empty, empty, loader.staged(reports.to_pylist()))], None)


def test_an_attempt_that_was_not_reported_adds_nothing(store: SqlStore) -> None:
    loader = opened_stage(store)
    attempt(loader, (1, "a zombie's"))
    reports = pa.concat_tables([attempt(loader, (1, "a")), attempt(loader, (2, None)), attempt(loader)])
    promote(store, loader, reports)
    assert read(store, ROWS, PLAIN) == [(1, "a"), (2, None)]
    store.close()


def test_staged_rows_overwrite_by_key(store: SqlStore) -> None:
    for name in ("old", "new"):
        loader = opened_stage(store)
        promote(store, loader, attempt(loader, (1, name), (2, name)), UPSERT)
        store.clear_stages(GROUP, of=RUN)
    assert read(store, UPSERT, PLAIN) == [(1, "new"), (2, "new")]
    store.close()


def test_staged_rows_that_are_gone_are_noticed_and_nothing_is_written(store: SqlStore) -> None:
    loader = opened_stage(store)
    reports = attempt(loader, (1, "a"), (2, "b"))
    prepare(store, f"DELETE FROM {loader.name} WHERE id = 2")
    with pytest.raises(BatchTooLarge, match="1 of 2 staged rows are left"):
        promote(store, loader, reports)
    assert read(store, ROWS, PLAIN) == []
    store.close()


def test_a_stage_never_shows_its_password(store: SqlStore) -> None:
    assert "://" not in repr(opened_stage(store))
    store.close()


def test_text_is_promoted_to_a_uuid_if_it_is_spelled_as_the_database_does(database: Callable[[str], str]) -> None:
    store = opened(database("postgresql"))
    store.create_ledger()
    prepare(store, "CREATE TABLE things (id BIGINT, name UUID PRIMARY KEY)")
    by_name = TableSpec("things", key=("name",), write="upsert")
    lower = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    for name, number in ((lower, 1), (lower, 2), (lower.upper(), 3)):
        loader = opened_stage(store)
        reports = attempt(loader, (number, name))
        with nullcontext() if name == lower else pytest.raises(BatchTooLarge, match="texts that the table can't store"):
            promote(store, loader, reports, by_name)
        store.clear_stages(GROUP, of=RUN)
    assert [number for number, _ in read(store, by_name, PLAIN)] == [2]
    store.close()


def test_text_is_promoted_to_an_enum_and_refused_if_spaces_would_be_cut_off(database: Callable[[str], str]) -> None:
    store = opened(database("postgresql"))
    store.create_ledger()
    prepare(store, "CREATE TYPE size AS ENUM ('small', 'large')", "CREATE TABLE things (id BIGINT, name size)")
    loader = opened_stage(store)
    promote(store, loader, attempt(loader, (1, "large")))
    prepare(store, "ALTER TABLE things ALTER COLUMN name TYPE VARCHAR(5) USING name::text")
    store.clear_stages(GROUP, of=RUN)
    loader = opened_stage(store)
    with pytest.raises(BatchTooLarge, match="texts that the table can't store"):
        promote(store, loader, attempt(loader, (2, "large ")))
    assert read(store, ROWS, PLAIN) == [(1, "large")]
    store.close()
