"""What is specific to a ledger in SQL: its tables, its view, its migration.

The rest is in test_contract_ledger.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tallymark.core.claims import Advance, Claim, PositionChanges, Restart
from tallymark.core.spans import Partition, Position, Span, Tally
from tallymark.errors import CommitRefused
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.ledger.commit import write_entry
from tallymark.stores.sql.ledger.read import read_positions
from tallymark.stores.sql.ledger.tables import VERSION
from tallymark.stores.sql.store import SqlStore
from tests.support.commits import SINCE, apply, owner, ready_store, take, work
from tests.support.databases import execute, query

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BOTH = [ZERO, ONE]


@pytest.fixture
def store(store_url: str) -> Iterator[SqlStore]:
    made = ready_store(store_url)
    yield made
    made.close()


def position(store: SqlStore, group: str, partition: Partition = ZERO) -> Position:
    with store.look() as connection:
        return read_positions(connection, group, [partition])[partition]


def test_a_ledger_of_version_1_is_brought_up_to_date(store: SqlStore, store_url: str, group: str) -> None:
    """It has no table of rebalances, and skips that were not voided when their partition was moved back."""
    take(store, group, "a", BOTH, at=10)
    restarted(store, group, 20)
    restarted(store, group, 15)
    restarted(store, group, 25)
    execute(
        store_url,
        "UPDATE tallymark_exceptions SET stop_offset = 20 WHERE kind = 'skip' AND start_offset = 10",
        "DROP TABLE tallymark_rebalances",
        f"UPDATE tallymark_schema SET version = 1 WHERE version = {VERSION}",
    )
    assert [skip.span for skip in store.skips(group)] == [Span(ZERO, 10, 20), Span(ZERO, 15, 25)]
    store.create_ledger()
    assert query(store_url, "SELECT version FROM tallymark_schema ORDER BY version") == [(1,), (VERSION,)]
    assert [skip.span for skip in store.skips(group)] == [Span(ZERO, 15, 25)]
    assert position(store, group).tally == Tally(skipped=10)
    assert query(store_url, f"{EXCEPTIONS} ORDER BY id") == [
        ("void", 10, 20, "because"),
        ("reset", 15, 20, "because"),
        ("skip", 15, 25, "because"),
    ]
    assert store.rebalances(group) == []
    store.create_ledger()


@pytest.mark.parametrize("wrong", ["epoch", "start"])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_one_wrong_step_refuses_all(wrong: str, partitions: int, store: SqlStore, group: str) -> None:
    """The count of moved positions is right for one and for many, although drivers count executemany differently."""
    claims = take(store, group, "a", [Partition("orders", number) for number in range(partitions)])
    entry = work(group, "a", claims, 0, 4).entry
    *steps, last = entry.advances
    bad = (
        dataclasses.replace(last, epoch=last.epoch - 1)
        if wrong == "epoch"
        else Advance(last.partition, 1, 5, last.epoch, last.tally, None)
    )
    with pytest.raises(CommitRefused, match=f"1 of {partitions} positions"), store.transaction() as connection:
        write_entry(connection, dataclasses.replace(entry, advances=[*steps, bad]), lambda: None)
    assert all(position(store, group, partition).next_offset == 0 for partition in claims)


def test_dead_letters_are_kept_as_they_came(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    apply(store, work(group, "a", held, 0, 1, dead=1), held)
    columns = "record_offset, record_key, record_value, headers, error, state"
    ((offset, key, value, *rest),) = query(store_url, f"SELECT {columns} FROM tallymark_dead_letters")
    assert (offset, bytes(key), bytes(value)) == (0, b"key", b"\x00\xff")  # type: ignore[call-overload]
    assert rest == ['[["h", null]]', "garbage", "dead"]


def test_a_dead_letter_whose_error_quotes_a_nul_is_kept(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    made = work(group, "a", held, 0, 1, dead=1)
    letter = dataclasses.replace(made.entry.dead_letters[0], error="unexpected a\x00b", headers=[("\x00", b"\x00")])
    entry = dataclasses.replace(made.entry, dead_letters=[letter])
    apply(store, dataclasses.replace(made, entry=entry), held)
    ((error,),) = query(store_url, "SELECT error FROM tallymark_dead_letters")
    assert error == "unexpected a\\0b"


# Moving positions


def restarted(store: SqlStore, group: str, offset: int) -> Claim:
    """Claimed again, and moved."""
    changes = PositionChanges({}, {ZERO: Restart(offset, "because")})
    return store.claim(group, owner("b"), [ZERO], lambda _: changes, {})[ZERO]


EXCEPTIONS = "SELECT kind, start_offset, stop_offset, reason FROM tallymark_exceptions"


def test_the_status_can_be_read_with_sql_alone(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", BOTH)
    apply(store, work(group, "a", held, 0, 3, dead=1), held)
    columns = "partition_id, desired_state, next_offset, applied, dead, owner, owner_host, epoch"
    found = query(store_url, f"SELECT {columns} FROM tallymark_status WHERE balanced ORDER BY partition_id")
    assert found == [(number, "running", 3, 2, 1, "a", "host-of-a", 1) for number in (0, 1)]
    ((age,),) = query(store_url, "SELECT record_age_seconds FROM tallymark_status WHERE partition_id = 0")
    expected = (datetime.now(UTC) - SINCE).total_seconds()
    assert float(str(age)) == pytest.approx(expected, abs=60)


def test_a_tally_that_does_not_add_up_shows_in_the_status(store: SqlStore, store_url: str, group: str) -> None:
    take(store, group, "a", BOTH)
    with store.transaction() as connection:
        connection.exec_driver_sql("UPDATE tallymark_positions SET applied = 1 WHERE partition_id = 1")
    assert query(store_url, "SELECT partition_id FROM tallymark_status WHERE NOT balanced") == [(1,)]


def test_looking_waits_for_no_writer(store: SqlStore, store_url: str, group: str) -> None:
    held = take(store, group, "a", [ZERO])
    looking = open_sql(store_url)
    with store.transaction() as connection:
        write_entry(connection, work(group, "a", held, 0, 5).entry, lambda: None)
        with looking.look() as other:
            assert read_positions(other, group, [ZERO])[ZERO].next_offset == 0
    looking.close()
    assert position(store, group).next_offset == 5
