"""Bad records among good ones, on Spark: each becomes a dead letter with its reason, the others are applied."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Json, Kafka, Limits, Pipeline, Tally
from tallymark.errors import TooManyDead
from tests.support import databases, redis
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = Json("id BIGINT, name STRING, amount DOUBLE")
RECORDS = 10_000
POISON: dict[str, tuple[Callable[[int], Any], str, int]] = {
    "garbage": (lambda n: f"garbage {n}".encode(), "not JSON", 12),
    "misfit": (lambda n: {"id": f"number {n}"}, "does not fit BIGINT", 9),
    "constraint": (lambda n: {"id": n, "name": "x", "amount": -1.0}, "no_debts", 8),
    "nothing": (lambda n: {"id": n, "name": None, "amount": 1.0}, "name", 7),
    "fifth": (lambda n: {"id": n, "name": "boom", "amount": 1.0}, "ValueError: boom in the function", 1),
}
"""Bad values of each kind, the errors of their letters, and their number: 37 in all."""
FIFTH: dict[str, tuple[Callable[[int], Any], str, int]] = {
    "sqlite": POISON["fifth"],
    "postgresql": (lambda n: {"id": n, "name": "\0", "amount": 1.0}, "0x00", 1),
    "mysql": (lambda n: {"id": n, "name": "long" * 9, "amount": 1.0}, "too long for column name", 1),
    "redis": (lambda n: f'{{"id": {n}, "name": "'.encode() + b'\xff"}', "not UTF-8", 1),
}
"""One kind has a different error on every store."""
TABLE = """CREATE TABLE orders (id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL,
           amount DOUBLE PRECISION, CONSTRAINT no_debts CHECK (amount >= 0))"""


def values(poison: Mapping[str, Any] = POISON) -> tuple[list[Any], dict[int, str]]:
    """All values in order, and the bad ones by kind."""
    kinds = [kind for kind, (_, _, count) in poison.items() for _ in range(count)]
    places = {(7 + number * 263) % RECORDS: kind for number, kind in enumerate(kinds)}
    assert len(places) == 37
    good = [{"id": n, "name": f"n{n}", "amount": n / 4} for n in range(RECORDS)]
    return [poison[places[n]][0](n) if n in places else value for n, value in enumerate(good)], places


def fussy(records: DataFrame) -> DataFrame:
    """A function that fails on some names."""
    from pyspark.sql import functions as F  # noqa: N812

    @F.udf("string")
    def checked(name: str | None) -> str | None:
        if name == "boom":
            raise ValueError("boom in the function")
        return name

    return records.select("value.id", checked("value.name").alias("name"), "value.amount")


def make(brokers: str, topic: str, group: str, store: str, **settings: Any) -> Pipeline:
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=SCHEMA), store=store, **settings)
    pipeline.table("orders", key="id", write="upsert")(fussy)
    return pipeline


@pytest.mark.faults_where(store_url=["mariadb", "sqlite"])
def test_poison_of_five_kinds_becomes_dead_letters_and_the_rest_is_applied(
    brokers: str, topics: Topics, group: str, store_url: str
) -> None:
    topic = topics.create(4)
    poison = POISON | {"fifth": FIFTH[store_url.split(":")[0]]}
    sent, places = values(poison)
    topics.send(topic, sent, partitions=4)
    databases.execute(store_url, TABLE)

    tally = make(brokers, topic, group, store_url).run("caught-up")

    assert tally == Tally(applied=RECORDS - 37, dead=37)
    assert databases.query(store_url, UNBALANCED) == []
    rows = databases.query(store_url, "SELECT id FROM orders")
    assert sorted(int(str(n)) for (n,) in rows) == [n for n in range(RECORDS) if n not in places]
    letters = databases.query(store_url, "SELECT table_name, error, record_value FROM tallymark_dead_letters")
    numbers = {encoded(value): number for number, value in enumerate(sent)}
    found = {numbers[as_bytes(value)]: (table, str(error)) for table, error, value in letters}
    assert found.keys() == places.keys()
    for number, (table, error) in found.items():
        kind = places[number]
        assert table == (None if kind in ("garbage", "misfit") else "orders")
        assert poison[kind][1] in error


def as_bytes(value: Any) -> bytes:
    return bytes(value)


def encoded(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.mark.faults
def test_poison_on_redis(brokers: str, topics: Topics, group: str, redis_url: str) -> None:
    topic = topics.create(4)
    sent, places = values(POISON | {"fifth": FIFTH["redis"]})
    for n, kind in places.items():
        if kind == "constraint":
            redis.client(redis_url).rpush(redis.key(redis_url, f"orders:{n}"), "a list")
        if kind == "nothing":
            sent[n] = {"name": "no id"}
    topics.send(topic, sent, partitions=4)

    tally = make(brokers, topic, group, redis_url).run("caught-up")

    assert tally == Tally(applied=RECORDS - 37, dead=37)
    letters = redis.dump(redis_url, f"tallymark:letter:{group}:{topic}:")
    assert sum(b"holds a list" in letter[b"error"] for letter in letters.values()) == 8
    assert sum(b"key column id is NULL" in letter[b"error"] for letter in letters.values()) == 7
    assert len(letters) == 37
    rows = redis.dump(redis_url, "orders:")
    assert {int(name) for name, row in rows.items() if isinstance(row, dict)} == set(range(RECORDS)) - places.keys()


@pytest.mark.faults
def test_a_batch_with_too_many_dead_moves_nothing(brokers: str, topics: Topics, group: str, store_url: str) -> None:
    from tallymark import Budget

    topic = topics.create(1)
    topics.send(topic, [{"id": n, "name": "x", "amount": 1.0 if n % 10 else -1.0} for n in range(100)])
    databases.execute(store_url, TABLE)
    strict = make(brokers, topic, group, store_url, budget=Budget(max_dead_per_batch=9))
    with pytest.raises(TooManyDead, match=r"more dead records than max_dead_per_batch=9.*no_debts"):
        strict.run("caught-up")
    assert databases.query(store_url, "SELECT count(*) FROM orders") == [(0,)]
    assert databases.query(store_url, "SELECT count(*) FROM tallymark_dead_letters") == [(0,)]
    assert databases.query(store_url, "SELECT max(next_offset) FROM tallymark_positions") == [(0,)]

    lenient = make(brokers, topic, group, store_url, budget=Budget(max_dead_per_batch=10))
    assert lenient.run("caught-up") == Tally(applied=90, dead=10)


def test_a_function_that_always_fails_is_not_taken_for_bad_records(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.spark.rows.MOST_REFUSED", 3)
    topic, url = topics.create(1), database("sqlite")
    topics.send(topic, [{"id": n, "name": "boom", "amount": 1.0} for n in range(16)])
    with pytest.raises(TooManyDead, match=r"table orders: its function failed on more than 3 records.*boom"):
        make(brokers, topic, group, url).run("caught-up")
    assert databases.query(url, "SELECT max(next_offset) FROM tallymark_positions") == [(0,)]


@pytest.mark.faults
def test_a_batch_that_is_too_large_for_the_memory_is_read_in_smaller_ones(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(2), database("sqlite")
    topics.send(topic, [{"id": n, "name": "x" * 15, "amount": 1.0} for n in range(400)], partitions=2)
    pipeline = make(brokers, topic, group, url, limits=Limits(records=400, memory=5_000))
    assert pipeline.run("caught-up") == Tally(applied=400)
    assert databases.query(url, "SELECT count(*) FROM orders") == [(400,)]
    batches = [int(str(count)) for (count,) in databases.query(url, "SELECT applied FROM tallymark_batches")]
    assert max(batches) < 120
    assert len(batches) < 20


def test_a_record_that_one_table_refuses_is_not_counted_by_another(
    brokers: str, topics: Topics, group: str, database: Callable[[str], str]
) -> None:
    topic, url = topics.create(1), database("sqlite")
    good, owing = {"id": 1, "name": "x", "amount": 1.0}, {"id": 2, "name": "x", "amount": -1.0}
    topics.send_to(topic, 0, [good, owing, b"garbage", {"name": "no id"}, good, owing])
    databases.execute(url, TABLE)
    pipeline = Pipeline(group=group, source=Kafka(brokers, topic, value=SCHEMA), store=url)
    pipeline.table("orders", key="id", write="upsert")(lambda records: records.select("value.*"))
    pipeline.table("totals")(lambda records: records.groupBy("partition").count())

    assert pipeline.run("caught-up") == Tally(applied=2, dead=4)
    assert databases.query(url, 'SELECT "count" FROM totals') == [(2,)]
    assert databases.query(url, UNBALANCED) == []
