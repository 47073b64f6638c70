"""Readers for each path of a batch, and readings in a form that can be compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tallymark import Json, Kafka
from tallymark.core.records import Reading
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tallymark.spark.reader import Path, SparkReader

Function = Callable[["DataFrame"], "DataFrame"]
SCHEMA = "id BIGINT, name STRING, amount DOUBLE, at TIMESTAMP, place STRUCT<city: STRING, zip: INT>"
FUNCTIONS: dict[str, Function] = {
    "picks": lambda records: records.select("value.*").drop("place"),
    "nested": lambda records: records.select("value.id", "value.place", "headers", "key"),
    "renames": lambda records: records.select("value.place.city", "offset").withColumnRenamed("offset", "o"),
    "computes": lambda records: records.where("value.id % 3 > 0").selectExpr("value.id + 1 AS id", "upper(value.name)"),
    "explodes": lambda records: records.selectExpr("value.id", "explode(array(1, 2)) AS n"),
    "merges": lambda records: records.groupBy("value.name").count(),
    "fails": lambda records: records.selectExpr("value.id", "1 / (value.id - 7) AS x"),
}
DEAD = 5
"""The number of ``values`` that can't be decoded."""


def values() -> list[Any]:
    good = [
        {"id": n, "name": f"n{n % 5}", "amount": n / 7, "at": f"2026-01-31T12:00:{n % 60:02}Z", "place": {"city": "é"}}
        for n in range(400)
    ]
    odd = [
        None,
        b"broken",
        b'{"id":"x"}',
        b"[]",
        b"{}",
        b'  {"id":\n401}\n',
        # Spark by itself would read it.
        json.dumps({"id": 402, "at": "2026-01-31 12:00:00 Europe/Berlin"}),
        b'{"id":403,"place":{"zip":1}}',
        b'{"id":404,"name":"\xff"}',
    ]
    return [*good[:300], *odd, *good[300:]]


def reader(spark: SparkSession, brokers: str, topic: str, path: Path | None, **tables: Function) -> SparkReader:
    """A reader that appends the rows of each function to a table of its own."""
    return limited_reader(spark, brokers, topic, path, sys.maxsize, tables)


def limited_reader(
    spark: SparkSession, brokers: str, topic: str, path: Path | None, memory: int, tables: Mapping[str, Function]
) -> SparkReader:
    from tallymark.spark.reader import SparkReader

    specs = [(TableSpec(name), function) for name, function in tables.items()]
    source = Kafka(brokers, topic, value=Json(SCHEMA))
    return SparkReader(spark, source, specs, f"run-{path}", memory, path=path)


def whole(topic: str, *stops: int) -> list[Span]:
    """The spans of all partitions of a topic up to these offsets."""
    return [Span(Partition(topic, number), 0, stop) for number, stop in enumerate(stops)]


def comparable(reading: Reading) -> dict[str, Any]:
    letters = [replace(letter, headers=list(letter.headers)) for letter in reading.dead_letters]
    return {
        "seen": reading.seen,
        "rows": {name: rows_of(rows) for name, rows in reading.rows.items()},
        "letters": sorted(letters, key=lambda letter: (letter.partition, letter.offset)),
        "refusals": sorted((refusal.record, refusal.table) for refusal in reading.refusals),
        "size": reading.size,
    }


def rows_of(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))


@contextmanager
def calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[list[Any]]:
    """The first arguments of all calls of a function or method inside the block."""
    made: list[Any] = []
    original = getattr(owner, name)

    def recorded(*arguments: Any, **named: Any) -> Any:
        made.append(arguments[isinstance(owner, type)])
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, recorded)
        yield made
