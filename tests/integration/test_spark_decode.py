"""Decoding of single values, and the record of each row for different functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tallymark import Bytes, Json
from tallymark.core.tables import HIDDEN, OFFSET, PARTITION, TIMESTAMP, TOPIC
from tallymark.formats.decoders import Decoders
from tallymark.formats.json import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Function = Callable[[DataFrame], DataFrame]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = Json(
    "id BIGINT, name STRING, amount DOUBLE, price DECIMAL(5, 2), ok BOOLEAN, day DATE, at TIMESTAMP, n INT, "
    "who STRUCT<x: INT, y: STRING>, list ARRAY<INT>"
)
UNFIT = " does not fit "


@pytest.fixture(scope="module", autouse=True)
def utc(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def kafka_frame(spark: SparkSession, values: Iterable[bytes | None]) -> DataFrame:
    from tallymark.spark.scan import RAW_RECORDS

    rows = [
        (f"k{n}".encode(), value, "orders", n % 3, n, NOON + timedelta(seconds=n), [("h", b"1")])
        for n, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RAW_RECORDS)


@pytest.fixture(scope="module")
def decoded(spark: SparkSession) -> Callable[[list[bytes | None]], list[tuple[Any, str | None]]]:
    """The decoded value or the error of each value, all in one job."""
    from pyspark.sql import functions as F  # noqa: N812

    from tallymark.spark.decode import RAW, SparkDecoder

    def decoded(values: list[bytes | None]) -> list[tuple[Any, str | None]]:
        decode = SparkDecoder(spark, Decoders.of(SCHEMA))
        rows = (
            decode(kafka_frame(spark, values)).select("value", F.col(RAW)["value"].alias("raw")).toArrow().to_pylist()
        )
        return [(row["value"], explain(SCHEMA.schema, row["raw"]) if row["raw"] is not None else None) for row in rows]

    return decoded


DEAD = {
    b'{"id":"one"}': UNFIT,
    b'{"id":"1"}': UNFIT,
    b'{"id":1.5}': UNFIT,
    b'{"id":true}': UNFIT,
    b'{"id":{}}': UNFIT,
    b'{"id":9223372036854775808}': UNFIT,
    b'{"n":2147483648}': UNFIT,
    b'{"id":' + b"1" * 5000 + b"}": UNFIT,
    b'{"name":"good","id":"bad"}': UNFIT,
    b'{"amount":"1.5"}': UNFIT,
    b'{"amount":1e400}': UNFIT,
    b'{"amount":-1e400}': UNFIT,
    b'{"amount":"Infinity"}': UNFIT,
    b'{"amount":NaN}': "not JSON: NaN is not a number",
    b'{"amount":-Infinity}': "not JSON: -Infinity is not a number",
    b'{"price":12345.6}': "price: 12345.6 does not fit DECIMAL(5,2)",
    b'{"ok":"true"}': UNFIT,
    b'{"ok":1}': UNFIT,
    b'{"day":"yesterday"}': UNFIT,
    b'{"day":"2026-02-30"}': UNFIT,
    b'{"day":"+12026-01-01"}': UNFIT,
    b'{"at":"yesterday"}': UNFIT,
    b'{"at":"now"}': UNFIT,
    b'{"at":""}': UNFIT,
    b'{"at":{}}': UNFIT,
    b'{"at":1700000000}': UNFIT,
    b'{"at":2026}': UNFIT,
    b'{"at":"12:30:00"}': UNFIT,
    b'{"at":"T12:30"}': UNFIT,
    b'{"at":"0000-01-01"}': UNFIT,
    b'{"at":"9999-12-31T23:00:00-02:00"}': UNFIT,
    b'{"at":"+12026-01-01"}': UNFIT,
    b'{"who":"me"}': UNFIT,
    b'{"who":[]}': UNFIT,
    b'{"who":{"x":"a"}}': "who.x: 'a' does not fit INT",
    b'{"list":1}': UNFIT,
    b'{"list":[1,"a"]}': "list[1]: 'a' does not fit INT",
    b"[]": "not a JSON object but an array",
    b'[{"id":1}]': "not a JSON object but an array",
    b'[{"id":1},{"id":2}]': "not a JSON object but an array",
    b"null": "not a JSON object but null",
    b"17": "not a JSON object but a number",
    b'"x"': "not a JSON object but a string",
    b"true": "not a JSON object but a boolean",
    b"": "not JSON: Expecting value: line 1 column 1 (char 0)",
    b"  ": "not JSON: Expecting value: line 1 column 3 (char 2)",
    b'{"id":1} x': "not JSON: Extra data: line 1 column 10 (char 9)",
    b'{"id":1} {"id":2}': "not JSON: Extra data",
    b'{"id":1}{"id":2}': "not JSON: Extra data",
    b'{"id":1},{"id":2}': "not JSON: Extra data",
    b'{"id":1},"id":2': "not JSON: Extra data",
    b'{"id":1}}': "not JSON: Extra data",
    b'{"id":1}} x': "not JSON: Extra data",
    b'{"id":1}]': "not JSON: Extra data",
    b'{"id":1}]} x': "not JSON: Extra data",
    b'{"id":1': "not JSON: Expecting ',' delimiter",
    b'{"id":': "not JSON: Expecting value",
    b'{"id":1,}': "not JSON: Expecting property name enclosed in double quotes",
    b'{"id":01}': "not JSON: Expecting ',' delimiter",
    b"{'id':1}": "not JSON: Expecting property name enclosed in double quotes",
    b"{id:1}": "not JSON: Expecting property name enclosed in double quotes",
    b'/**/{"id":1}': "not JSON: Expecting value",
    b'{"name":"a\nb"}': "not JSON: Invalid control character",
    b'\xef\xbb\xbf{"id":1}': "not JSON: Unexpected UTF-8 BOM",
    b'{"name":"\xff"}': "not UTF-8: invalid start byte at byte 9",
    b'{"name":"\xc3"}': "not UTF-8: invalid continuation byte at byte 9",
    b'{"id":1}\xff': "not UTF-8: invalid start byte at byte 8",
    b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}": "nested too deeply",
}

LIVE: dict[bytes, dict[str, Any]] = {
    b"{}": {},
    b'{"id":null}': {},
    b'{"id":1}': {"id": 1},
    b' \n\t{"id":1}\r\n ': {"id": 1},
    b'{"id":-9223372036854775808}': {"id": -(2**63)},
    b'{"id":1,"unknown":{"id":[2]}}': {"id": 1},
    b'{"ID":1}': {},
    b'{"name":""}': {"name": ""},
    b'{"name":"}],\\"_tallymark_end\\":true} \xe2\x9c\x93"}': {"name": '}],"_tallymark_end":true} \u2713'},
    b'{"name":17}': {"name": "17"},
    b'{"name":{"a":1}}': {"name": '{"a":1}'},
    b'{"amount":1}': {"amount": 1.0},
    b'{"amount":-1.5e3}': {"amount": -1500.0},
    b'{"price":123.45}': {"price": Decimal("123.45")},
    b'{"ok":false}': {"ok": False},
    b'{"day":"2026-01-31"}': {"day": date(2026, 1, 31)},
    b'{"at":"2026-01-31T12:00:00Z"}': {"at": NOON},
    b'{"at":"2026-01-31T14:00:00+02:00"}': {"at": NOON},
    b'{"at":"2026-01-31 12:00:00"}': {"at": NOON},
    b'{"at":"2026-01-31T12:00:00.000001Z"}': {"at": NOON + timedelta(microseconds=1)},
    b'{"at":"2026-01-31"}': {"at": NOON.replace(hour=0)},
    b'{"who":{"x":1}}': {"who": {"x": 1, "y": None}},
    b'{"list":[]}': {"list": []},
    b'{"list":[1,null,3]}': {"list": [1, None, 3]},
}


def test_what_does_not_fit_is_dead_and_says_why(decoded: Callable[..., list[tuple[Any, str | None]]]) -> None:
    wrong = {
        value[:80]: (found, said)
        for (value, words), (found, said) in zip(DEAD.items(), decoded(list(DEAD)), strict=True)
        if found is not None or said is None or words not in said
    }
    assert not wrong


def test_what_fits_lives_with_null_for_what_is_missing(decoded: Callable[..., list[tuple[Any, str | None]]]) -> None:
    nothing: dict[str, Any] = dict.fromkeys(["id", "name", "amount", "price", "ok", "day", "at", "n", "who", "list"])
    wrong = {
        value: (found, said)
        for (value, fields), (found, said) in zip(LIVE.items(), decoded(list(LIVE)), strict=True)
        if said is not None or found != nothing | fields
    }
    assert not wrong


def test_a_tombstone_is_a_record_without_a_value(decoded: Callable[..., list[tuple[Any, str | None]]]) -> None:
    assert decoded([None]) == [(None, None)]


def test_everything_but_the_value_is_as_kafka_has_it(spark: SparkSession) -> None:
    from tallymark.spark.decode import RAW, RECORD, SIZE, SparkDecoder

    raw = kafka_frame(spark, [b'{"id":1}', b"dead", None])
    for source in (SCHEMA, Bytes()):
        frame = SparkDecoder(spark, Decoders.of(source))(raw)
        others = [name for name in RECORD if name != "value"]
        assert sorted(frame.columns) == sorted([*RECORD, RAW, SIZE])
        assert frame.select(*others).collect() == raw.select(*others).collect()


def test_bytes_are_left_as_they_are_and_never_die(spark: SparkSession) -> None:
    from tallymark.spark.decode import RAW, SparkDecoder

    values = [b"\xff\x00", b"", None, b'{"id":1}']
    rows = SparkDecoder(spark, Decoders.of(Bytes()))(kafka_frame(spark, values)).toArrow().to_pylist()
    assert [row["value"] for row in rows] == values
    assert [row[RAW] for row in rows] == [None] * 4


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    """The input of a table's function: two records for each of three ids."""
    from tallymark.spark.decode import RECORD, SparkDecoder

    values = [json.dumps({"id": n % 3, "name": f"n{n}", "list": [n, n + 100]}).encode() for n in range(6)]
    return SparkDecoder(spark, Decoders.of(SCHEMA))(kafka_frame(spark, values)).select(*RECORD)


def from_sql(statement: str) -> Function:
    def function(records: DataFrame) -> DataFrame:
        records.createOrReplaceTempView("records")
        return records.sparkSession.sql(statement)

    return function


ROW_WISE: dict[str, Function] = {
    "select": lambda r: r.select("value.name"),
    "star": lambda r: r.select("value.*").select("name", "id"),
    "filter": lambda r: r.where("value.id = 1").select("value.name"),
    "withColumn": lambda r: r.withColumn("name", r["value.name"]).select("name", "key"),
    "a column called offset": lambda r: r.selectExpr("value.name", "1 AS offset", "'x' AS topic"),
    "renamed": lambda r: r.withColumnRenamed("offset", "o").select("value.name", "o"),
    "explode": lambda r: r.selectExpr("value.name", "explode(value.list) AS item"),
    "limit": lambda r: r.select("value.name").limit(4),
    "last by offset": lambda r: r.orderBy("offset", ascending=False).select("value.name").limit(2),
    "alias": lambda r: r.alias("x").select("x.value.name"),
    "SQL": from_sql("SELECT value.name FROM records"),
    "SQL with alias": from_sql("SELECT r.value.name FROM records r WHERE r.offset > 2"),
    "dropDuplicates": lambda r: r.select("value.name", "value.id").dropDuplicates(["id"]),
    "distinct": lambda r: r.select("value.name").distinct(),
    "window": lambda r: r.selectExpr("value.name", "row_number() OVER (PARTITION BY value.id ORDER BY offset) AS nth"),
    "repartition": lambda r: r.select("value.name").repartition(3),
    "fillna": lambda r: r.select("value.name").fillna("-"),
}
MERGED: dict[str, Function] = {
    "aggregate": lambda r: r.groupBy("value.id").count(),
    "SQL aggregate": from_sql("SELECT value.id, max(value.name) AS name FROM records GROUP BY value.id"),
    "SQL DISTINCT": from_sql("SELECT DISTINCT value.id FROM records"),
    "join": lambda r: r.select("value.id").join(r.select("value.id", "value.name"), "id").select("id", "name"),
    "union": lambda r: r.select("value.id").union(r.select("value.id")),
    "exceptAll": lambda r: r.select("value.id").exceptAll(r.where("offset < 3").select("value.id")),
    "rollup": lambda r: r.select("value.id").rollup("id").count(),
}


def as_rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(rows, key=str)


def without_provenance(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({k: v for k, v in row.items() if k not in HIDDEN} for row in rows), key=str)


@pytest.mark.faults_where(name=["window", "distinct", "explode", "renamed"])
@pytest.mark.parametrize("name", ROW_WISE)
def test_a_row_wise_function_keeps_the_record_of_each_row(records: DataFrame, name: str) -> None:
    from tallymark.spark.plans import with_provenance

    rows = as_rows(with_provenance(ROW_WISE[name](records), records))
    assert rows
    for row in rows:
        offset = int(row["name"][1:])
        assert (row[TOPIC], row[PARTITION], row[OFFSET]) == ("orders", offset % 3, offset)
        assert row[TIMESTAMP] == NOON + timedelta(seconds=offset)
    assert without_provenance(rows) == as_rows(ROW_WISE[name](records)), "the rows themselves are the function's"


@pytest.mark.faults_where(name="exceptAll")
@pytest.mark.parametrize("name", MERGED)
def test_a_row_of_several_records_has_no_single_one(records: DataFrame, name: str) -> None:
    from tallymark.spark.plans import with_provenance

    result = with_provenance(MERGED[name](records), records)
    assert not set(HIDDEN) & set(result.columns)
    assert as_rows(result) == as_rows(MERGED[name](records))
