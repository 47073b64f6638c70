"""If rows and positions are two transactions, a crash loses or repeats only what the delivery mode allows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from tallymark.core.progress import Step
from tallymark.errors import BadInput
from tallymark.kafka.source import Kafka
from tallymark.run.commit import Delivery
from tallymark.service.consumer import Consumer
from tallymark.stores.opening import open_store
from tests.support.crash import Plug, Run, make_loop, run_in_child
from tests.support.kafka import Topics
from tests.support.reader import PlainReader
from tests.support.truth import (
    Committed,
    Rows,
    below,
    check_accounts,
    events,
    expected_by_id,
    expected_events,
    history,
    letters,
    positions,
    rows,
    split,
)

PARTITIONS = 2
DELIVERIES: tuple[Delivery, ...] = ("at-least-once", "at-most-once")
PLACES = [
    ("postgresql", "postgresql"),
    *(
        pytest.param(place, marks=pytest.mark.faults)
        for place in [("sqlite", "sqlite"), ("sqlite", "postgresql"), ("mariadb", "redis"), ("redis", "sqlite")]
    ),
]
"""The stores of the rows and of the ledger. The same name twice is the same database."""
BETWEEN: dict[Delivery, set[Step]] = {
    "at-least-once": {Step.HALFWAY, Step.MOVED},
    "at-most-once": {Step.HALFWAY, Step.WRITTEN},
}
"""The steps between the first and the second transaction, by delivery mode."""


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create(PARTITIONS)
    for partition in range(PARTITIONS):
        good = [{"id": 10 * partition + number % 7, "version": number % 3} for number in range(20)]
        topics.send_to(name, partition, [*good, b"garbage", {"id": 10 * partition, "op": "d"}])
    return name


def run_to(database: Callable[[str], str], where: tuple[str, str], delivery: Delivery, **run: str) -> Run:
    store = database(where[0])
    ledger = None if where[0] == where[1] else database(where[1])
    return Run(store=store, ledger=ledger, delivery=delivery, records=12, **run)


def ledger_of(run: Run) -> str:
    return run.ledger or run.store


def events_of(committed: Committed) -> Rows:
    return expected_events(split(committed)[0])


def last_batch(url: str, committed: Committed) -> Rows:
    """The events of the last batch in the ledger."""
    (spans, _), *_ = sorted(history(url, "spans", "committed_at"), key=lambda line: str(line[1]), reverse=True)
    within = {(partition, at) for _, partition, start, stop in json.loads(spans) for at in range(start, stop)}
    return events_of({at: value for at, value in committed.items() if at in within})


def killed(run: Run, step: Step, committed: Committed) -> tuple[Rows, Rows]:
    """Kill the second batch at this step. Returns the rows above the positions, and those missing below."""
    assert run_in_child(run, Plug(step, 2)) == -9
    there, covered = events(run.store), events_of(below(committed, positions(ledger_of(run))))
    return there - covered, covered - there


def finished(run: Run, committed: Committed) -> tuple[Rows, Rows]:
    """Run to the end. Returns the repeated and the missing rows."""
    assert run_in_child(run) == 0
    good, dead = split(committed)
    assert letters(ledger_of(run)) == Counter(dead), "the ledger is exact in any case"
    check_accounts(ledger_of(run))
    there, wanted = events(run.store), expected_events(good)
    return there - wanted, wanted - there


@pytest.mark.parametrize("where", PLACES, ids="-".join)
def test_at_least_once_repeats_the_rows_of_the_batch_that_was_halfway_and_loses_none(
    where: tuple[str, str], database: Callable[[str], str], brokers: str, group: str, topic: str, committed: Committed
) -> None:
    run = run_to(database, where, "at-least-once", brokers=brokers, group=group, topic=topic)
    ahead, missing = killed(run, Step.HALFWAY, committed)
    assert not missing
    assert ahead == halfway_batch(run, committed)
    repeated, lost = finished(run, committed)
    assert not lost
    if where[0] == "redis":
        # In Redis a row without a key is named by its record: a repeated write is the same row.
        assert not repeated
    else:
        assert repeated == ahead
    check_rows_by_key(run, committed)


def halfway_batch(run: Run, committed: Committed) -> Rows:
    """The events of the batch whose rows are there and which is not in the history."""
    known = {name for (name,) in history(ledger_of(run), "batch")}
    found = rows(run.store, "traced", "tallymark_batch", "tallymark_partition", "tallymark_offset")
    (name,) = {name for name, _, _ in found} - known
    assert name.endswith("-2")
    within = {(partition, offset) for batch, partition, offset in found if batch == name}
    return events_of({at: value for at, value in committed.items() if at in within})


def check_rows_by_key(run: Run, committed: Committed) -> None:
    """Tables with a key are the same as without repetition."""
    for table, expected in expected_by_id(split(committed)[0]).items():
        columns = ("id", "record_offset", "version") if table == "versions" else ("id", "record_offset")
        assert rows(run.store, table, *columns) == Counter(expected), table


@pytest.mark.parametrize("where", PLACES, ids="-".join)
def test_at_most_once_loses_the_rows_of_the_batch_that_was_halfway_and_repeats_none(
    where: tuple[str, str], database: Callable[[str], str], brokers: str, group: str, topic: str, committed: Committed
) -> None:
    run = run_to(database, where, "at-most-once", brokers=brokers, group=group, topic=topic)
    ahead, missing = killed(run, Step.HALFWAY, committed)
    assert not ahead
    assert missing == last_batch(ledger_of(run), committed)
    assert missing
    repeated, lost = finished(run, committed)
    assert not repeated
    assert lost == missing


@pytest.mark.faults_where(step=[Step.PLANNED, Step.READ, Step.STAGED, Step.DONE])
@pytest.mark.parametrize(
    "step",
    [step for step in Step if step not in (Step.HALFWAY, Step.UNKNOWN, Step.DROPPED)],
    ids=lambda step: step.value,
)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_kill_at_any_other_step_costs_nothing_or_the_same(
    delivery: Delivery,
    step: Step,
    database: Callable[[str], str],
    brokers: str,
    group: str,
    topic: str,
    committed: Committed,
) -> None:
    run = run_to(database, ("sqlite", "postgresql"), delivery, brokers=brokers, group=group, topic=topic)
    ahead, missing = killed(run, step, committed)
    if step in (Step.PLANNED, Step.READ, Step.STAGED):
        # The previous batch may be at any step while this one is prepared.
        assert not (missing if delivery == "at-least-once" else ahead)
    else:
        costs = step in BETWEEN[delivery]
        assert bool(ahead) == (costs and delivery == "at-least-once")
        assert bool(missing) == (costs and delivery == "at-most-once")
    repeated, lost = finished(run, committed)
    assert (repeated, lost) == (ahead, missing)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_without_a_crash_every_delivery_is_exact(
    delivery: Delivery, database: Callable[[str], str], brokers: str, group: str, topic: str, committed: Committed
) -> None:
    run = run_to(database, ("postgresql", "redis"), delivery, brokers=brokers, group=group, topic=topic)
    assert finished(run, committed) == (Counter(), Counter())
    check_rows_by_key(run, committed)


@pytest.mark.parametrize("where", [("sqlite", "postgresql"), ("postgresql", "redis")], ids="-".join)
def test_exactly_once_with_a_ledger_elsewhere_is_refused_with_the_reason(
    where: tuple[str, str], database: Callable[[str], str], brokers: str, group: str, topic: str
) -> None:
    run = run_to(database, where, "exactly-once", brokers=brokers, group=group, topic=topic)
    store, reader = open_store(run.store), PlainReader(brokers)
    with pytest.raises(
        BadInput, match=r"delivery='exactly-once' needs rows and ledger in one transaction, which .* can't share"
    ):
        make_loop(run, store, reader)
    reader.close()
    store.close()


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_handler_may_merge_only_if_wrong_totals_are_allowed(
    kind: str, delivery: Delivery, database: Callable[[str], str], topics: Topics, brokers: str, group: str
) -> None:
    name, url = topics.create(1), database(kind)
    topics.send_to(name, 0, [{"id": 1}] * 3)

    def count(*, inexact: bool = False) -> None:
        consumer = Consumer(group=group, source=Kafka(brokers, name), store=url, delivery=delivery)
        for batch in consumer.batches(10, until="caught-up"):
            with batch.transaction() as db:
                total = [{"part": 0, "n": len(batch)}]
                db.write("totals", total, key="part", write="merge", merge={"n": "sum"}, inexact=inexact)

    with pytest.raises(BadInput, match=r"table totals: with delivery='at-.*or inexact=True if the totals need not"):
        count()
    topics.send_to(name, 0, [{"id": 1}])
    count(inexact=True)
    store = open_store(url)
    assert store.journal().row_counts(["totals"]) == {"totals": 1}
    assert store.positions(group)[group][0].next_offset == 4
    store.close()
