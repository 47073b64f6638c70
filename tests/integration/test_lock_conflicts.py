"""A commit that the database refuses because of another transaction is retried and applied once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import pyarrow as pa
import pytest
from sqlalchemy import text

from tallymark.core.spans import Partition
from tallymark.core.tables import Changes, TableSpec
from tallymark.stores.opening import open_sql
from tests.support.background import Background, wait_for
from tests.support.commits import apply, ready_store, take, work
from tests.support.databases import query

ZERO = Partition("orders", 0)
LATEST = TableSpec("latest", key=("id",), write="upsert")
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
WAITING = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ),
    "mysql": (
        "SELECT count(*) FROM information_schema.innodb_trx "
        "WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE 'INSERT INTO latest%'"
    ),
}


def putting(ids: list[int], numbers: list[int]) -> Changes:
    return Changes(LATEST, pa.table([ids, numbers], schema=SCHEMA), SCHEMA.empty_table())


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_victim_of_a_deadlock_is_applied_once(
    kind: str, database: Callable[[str], str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = database(kind)
    store, rival = ready_store(url), open_sql(url)
    store.create_tables([LATEST], {"latest": SCHEMA})
    store.apply([putting([1, 2, *range(10, 200)], [0] * 192)], None)
    held = take(store, group, "a", [ZERO])
    ours = dataclasses.replace(work(group, "a", held, 0, 2, dead=1), changes=[putting([1, 2], [7, 7])])
    with caplog.at_level(logging.WARNING):
        with rival.transaction() as connection:
            # The transaction with more changes is not chosen as the victim.
            connection.execute(text("UPDATE latest SET n = 5 WHERE id >= 10"))
            connection.execute(text("UPDATE latest SET n = 5 WHERE id = 2"))
            done = Background(lambda: apply(store, ours, held)).start()
            wait_for(lambda: query(url, WAITING[rival.dialect.name]) != [(0,)])
            connection.execute(text("UPDATE latest SET n = 5 WHERE id = 1"))
        done.result()
    assert caplog.text.count("commit outcome unknown") == 1
    assert "conflict with another transaction" in caplog.text
    assert query(url, "SELECT id, n FROM latest WHERE id < 10 ORDER BY id") == [(1, 7), (2, 7)]
    assert query(url, "SELECT next_offset, applied, dead FROM tallymark_positions") == [(2, 1, 1)]
    assert query(url, "SELECT count(*) FROM tallymark_dead_letters") == [(1,)]
    assert query(url, "SELECT count(*) FROM tallymark_batches") == [(1,)]
    store.close()
    rival.close()


def test_a_busy_sqlite_file_is_waited_for(
    database: Callable[[str], str],
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tallymark.stores.sql.sqlite.LOCK_WAIT", 0.05)
    url = database("sqlite")
    store, rival = ready_store(url), open_sql(url)
    held = take(store, group, "a", [ZERO])
    with caplog.at_level(logging.WARNING):
        with rival.transaction():
            done = Background(lambda: apply(store, work(group, "a", held, 0, 3), held)).start()
            wait_for(lambda: caplog.text.count("database is locked") >= 2)
        done.result()
    assert query(url, "SELECT count(*) FROM events") == [(3,)]
    assert query(url, "SELECT next_offset FROM tallymark_positions") == [(3,)]
    assert query(url, "SELECT count(*) FROM tallymark_batches") == [(1,)]
    store.close()
    rival.close()
