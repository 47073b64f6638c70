"""The demonstration holds, and reports differences of records and of totals."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal

import pytest

from tallymark.cli.demo import as_object
from tallymark.core.spans import Partition
from tallymark.operate.demo.play import removed_after
from tallymark.operate.demo.settings import DemoSettings
from tallymark.operate.demo.verdict import judge
from tallymark.stores.opening import open_sql
from tallymark.stores.sql.store import SqlStore
from tests.support.command import tallymark
from tests.support.commits import apply, ready_store, take, work
from tests.support.databases import tables
from tests.support.kafka import Topics

pytestmark = pytest.mark.xdist_group("processes")

ORDERS: list[dict[str, object] | bytes] = [
    {"id": 1, "customer": "anna", "amount": 10.25, "status": "paid"},
    {"id": 4, "customer": "anna", "amount": 0.5, "status": "returned"},
    {"id": 3, "customer": "berta", "amount": 0.24, "status": "paid"},
    {"id": 2, "customer": "anna", "amount": 20.01, "status": "shipped"},
    b"not json",
]


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("postgresql", 0),
        pytest.param("mariadb", 1, marks=pytest.mark.faults),
        pytest.param("sqlite", 3, marks=pytest.mark.faults),
    ],
)
def test_kills_lose_nothing_and_repeat_nothing(database: Callable[[str], str], kind: str, kills: int) -> None:
    store = database(kind)
    done = tallymark("demo", "--records", "12000", "--kills", str(kills), "--store", store, "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    totals = verdict.pop("totals")
    assert totals["found"] == totals["expected"]
    assert (totals["found"]["orders"], Decimal(totals["found"]["revenue"]) > 11880) == (11880, True)
    assert verdict.pop("seconds") > 0
    assert verdict.pop("absent") >= 1000
    assert verdict == {
        "records": 12000,
        "applied": 11880,
        "dead": 120,
        "skipped": 0,
        "lost": 0,
        "missing": 0,
        "duplicated": 0,
        "wrong_totals": 0,
        "kills": kills,
    }
    assert tables(store) == set()


def test_the_tables_are_removed_when_the_ledger_stays(database: Callable[[str], str]) -> None:
    url = database("sqlite")
    settings = DemoSettings("localhost:1", "orders", url, "demo", "events", 1)
    with closing(open_sql(url)) as store:
        store.create_ledger()
        ledger = tables(url)
        with removed_after(settings, keep=False), store.transaction() as connection:
            connection.exec_driver_sql(f"CREATE TABLE {settings.table} (partition_id INT)")
            connection.exec_driver_sql(f"CREATE TABLE {settings.totals} (customer TEXT)")
    assert tables(url) == ledger


def test_the_verdict_sees_what_is_missing_and_what_is_there_twice(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    """Offset 1 is missing, offset 2 is there twice, offset 9 was never in Kafka."""
    settings = DemoSettings(brokers, topics.create(1), database("sqlite"), group, "events", 1)
    topics.send_to(settings.topic, 0, ORDERS)
    with closing(filled_by_hand(settings)) as store:
        with store.transaction() as connection:
            connection.exec_driver_sql(f"DELETE FROM {settings.table} WHERE record_offset = 1")
            connection.exec_driver_sql(f"INSERT INTO {settings.table} VALUES (0, 2, 'w'), (0, 9, 'w')")

        verdict = judge(settings, store, kills=0, seconds=0.0)

    facts = as_object(verdict)
    assert (facts["records"], facts["missing"], facts["duplicated"], facts["wrong_totals"]) == (5, 1, 2, 0)
    assert not verdict.holds


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ("UPDATE {totals} SET orders = 4 WHERE customer = 'anna'", ["anna"]),
        ("UPDATE {totals} SET revenue = '30.75' WHERE customer = 'anna'", ["anna"]),
        ("UPDATE {totals} SET largest = '10.25' WHERE customer = 'anna'", ["anna"]),
        ("UPDATE {totals} SET last_status = 'paid' WHERE customer = 'anna'", ["anna"]),
        ("UPDATE {totals} SET last_order = 0 WHERE customer = 'anna'", ["anna"]),
        ("DELETE FROM {totals} WHERE customer = 'berta'", ["berta"]),
        ("INSERT INTO {totals} VALUES ('nobody', 1, '1', '1', 1, 'paid')", ["nobody"]),
        ("SELECT 1", []),
    ],
)
def test_the_verdict_sees_every_wrong_total(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], change: str, wrong: list[str]
) -> None:
    settings = DemoSettings(brokers, topics.create(1), database("sqlite"), group, "events", 1)
    topics.send_to(settings.topic, 0, ORDERS)
    with closing(filled_by_hand(settings)) as store:
        with store.transaction() as connection:
            connection.exec_driver_sql(change.format(totals=settings.totals))

        verdict = judge(settings, store, kills=0, seconds=0.0)

    assert verdict.totals.wrong == wrong
    assert as_object(verdict)["wrong_totals"] == len(wrong)
    expected = {"customers": 2, "orders": 4, "revenue": "31.00"}
    assert as_object(verdict)["totals"]["expected"] == expected
    assert all(partition.holds for partition in verdict.partitions)
    assert verdict.holds is not bool(wrong)


def filled_by_hand(settings: DemoSettings) -> SqlStore:
    """A store as the pipeline would leave it."""
    store = ready_store(settings.store)
    claims = take(store, settings.group, "run", [Partition(settings.topic, 0)])
    apply(store, work(settings.group, "run", claims, 0, len(ORDERS), dead=1), claims)
    with store.transaction() as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE {settings.totals} "
            "(customer TEXT, orders INT, revenue TEXT, largest TEXT, last_order INT, last_status TEXT)"
        )
        connection.exec_driver_sql(
            f"INSERT INTO {settings.totals} VALUES "
            "('anna', 3, '30.76', '20.01', 4, 'returned'), ('berta', 1, '0.24', '0.24', 3, 'paid')"
        )
    return store
