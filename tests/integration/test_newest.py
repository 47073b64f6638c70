"""The newest record of a key: every store and the executors agree with the documented rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tallymark.core.newest import finish
from tallymark.core.tables import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql import mysql
from tests.support import databases, truth
from tests.support.newest import Made, Oracle
from tests.unit.strategies import NOON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.int64()),
        ("name", pa.string()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
        (DELETED, pa.bool_()),
    ]
)
MODES: dict[str, dict[str, Any]] = {
    "upsert": {"write": "upsert", "delete": "tombstone"},
    "version": {"write": "upsert", "version": "v", "delete": "tombstone"},
    "ignore": {"write": "ignore"},
}


def records(random: Random, offsets: Iterator[int], number: int, keys: int, *, deletes: bool) -> list[Made]:
    """Rows of records of two topics, with arbitrary timestamps and versions; some records make two rows."""
    found = []
    for offset in (next(offsets) for _ in range(number)):
        key, place = random.randrange(keys), (random.choice("ab"), random.randrange(3))
        time = random.choice([None, *range(5)])
        at = None if time is None else NOON + timedelta(milliseconds=time)
        version = random.choice([None, 1, 2, 3])
        gone = deletes and random.random() < 0.3
        for name in random.sample("xyz", 2 if random.random() < 0.2 else 1):
            columns = (key, version, f"{name}{offset}")
            found.append(Made(key, *place, offset, at, version, gone, columns))
    random.shuffle(found)
    return found


def table(rows: Sequence[Made]) -> pa.Table:
    names = SCHEMA.names
    return pa.Table.from_pylist(
        [
            dict(
                zip(
                    names, (*one.columns, one.topic, one.partition, one.offset, one.timestamp, one.deletes), strict=True
                )
            )
            for one in rows
        ],
        SCHEMA,
    )


def oracle(spec: TableSpec) -> Oracle:
    return Oracle(versions=spec.version is not None, first_stays=spec.write == "ignore")


@pytest.fixture(params=[*databases.KINDS, "mariadb-many", "redis"])
def store(
    request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, str]]:
    kind, _, many = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if many else 1_000)
    url = database(kind)
    opened = open_store(url)
    opened.create_ledger()
    yield opened, url
    opened.close()


@pytest.mark.parametrize("mode", MODES)
def test_every_store_holds_what_the_rule_says(mode: str, store: tuple[Store, str]) -> None:
    opened, url = store
    for seed in range(6):
        random, offsets = Random(seed), count()
        spec = TableSpec(f"t{seed}", ("id",), **MODES[mode])
        opened.create_tables([spec], {spec.name: pa.schema([SCHEMA.field(at) for at in range(3)])})
        expected = oracle(spec)
        for _ in range(4):
            batch = records(random, offsets, 8, keys=3, deletes=mode != "ignore")
            opened.apply([finish(spec, table(batch), "batch")], None)
            expected.apply(batch)
            found = truth.rows(url, spec.name, "id", "v", "name")
            assert sorted(found) == sorted(row.columns for row in expected.rows.values())


@pytest.mark.parametrize("mode", MODES)
def test_executors_keep_the_same_row_of_each_key(mode: str, spark: SparkSession) -> None:
    from tallymark.spark.executors import one_per_key

    spec = TableSpec("orders", ("id",), **MODES[mode])
    rows = records(Random(mode), count(), 600, keys=80, deletes=False)
    given = table(rows).drop_columns([DELETED])
    found = one_per_key(spec, spark.createDataFrame(given)).toArrow().select(["id", "v", "name"])
    expected = oracle(spec)
    expected.apply(rows)
    names = {row["id"]: tuple(row.values()) for row in found.to_pylist()}
    assert names == {key: row.columns for key, row in expected.rows.items()}
    assert found.num_rows == len(names)
