"""Values decoded without Spark equal those that Spark decodes: the same ones are accepted, with the same content."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymark import Json
from tallymark.errors import BadInput
from tallymark.formats.decoders import Decoders
from tallymark.formats.json import JsonDecoder
from tests.integration.test_spark_decode import kafka_frame
from tests.support import json_values as corpus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "dead"
EXAMPLES = 400


@pytest.fixture(scope="module", autouse=True)
def utc(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def by_spark(spark: SparkSession, schema: str, values: list[bytes]) -> list[Any]:
    from tallymark.spark.decode import RAW, SparkDecoder

    decoded = SparkDecoder(spark, Decoders.of(Json(schema)))(kafka_frame(spark, values)).select("offset", "value", RAW)
    rows = sorted(decoded.toArrow().to_pylist(), key=lambda row: int(row["offset"]))
    return [DEAD if row[RAW] is not None else row["value"] for row in rows]


def by_arrow(schema: str, values: list[bytes]) -> list[Any]:
    decoded = JsonDecoder(Json(schema))(values)
    return [DEAD if at in decoded.errors else value for at, value in enumerate(decoded.values.to_pylist())]


def differences(spark: SparkSession, schema: str, values: list[bytes]) -> dict[bytes, tuple[Any, Any]]:
    return {
        value: (ours, sparks)
        for value, ours, sparks in zip(values, by_arrow(schema, values), by_spark(spark, schema, values), strict=True)
        if repr(ours) != repr(sparks)
    }


@pytest.mark.parametrize("name", ["SCALAR", "NESTED", "SLOW"])
def test_the_edges_of_every_type(spark: SparkSession, name: str) -> None:
    schema = corpus.SCALARS if name == "SCALAR" else getattr(corpus, name)
    found = differences(spark, schema, getattr(corpus, f"{name}_VALUES"))
    assert not {value[:100]: both for value, both in found.items()}


@pytest.mark.faults
def test_a_string_may_be_as_long_as_a_value(spark: SparkSession) -> None:
    text = b"a" * 20_000_001
    assert not differences(
        spark, "id INT, x STRING", [b'{"id":1,"x":"' + text + b'"}', b'{"id":1,"z":"' + text + b'"}']
    )


SIZE = 300_000
ALLOWED = 20.0
"""CPU seconds, including Java's compilation: in quadratic time one value takes as long, or longer."""
HOSTILE = {
    "an exponent": b'{"p":1e3000000}',
    "a negative exponent": b'{"p":-1.5E-30000000}',
    "an exponent in text": b'{"p":"1e+3,000,000"}',
    "an escaped exponent": b'{"p":"1\\u00653000000"}',
    "a nested exponent": b'{"ps":{"a":[{"p":1e3000000}]}}',
    "a nested exponent in text": b'{"ps":{"a":[{"p":"1e3000000"}]}}',
    "an exponent, cut off": b'{"p":1e3000000',
    "an exponent, then another": b'{"p":1e3000000,"p":1}',
    "an exponent behind a wrong escape": b'{"x":"\\x,"p":1e3000000}',
    "the largest exponents": b'{"l":1e600000000,"d":1e600000000,"f":1e600000000,"p":1e600000000,"x":1e600000000}',
    "exponents of no field": b'{"z":[1e600000000,1e-600000000]}',
    "digits": b'{"p":"' + b"1" * 3 * SIZE + b'"}',
    "digits of another script": b'{"p":"' + "٣".encode() * SIZE + b'"}',
    "escaped digits": b'{"p":"' + b"\\u0031" * SIZE + b'"}',
    "digits of a number": b'{"p":' + b"1" * 3 * SIZE + b"}",
    "digits of a number behind an exponent": b'{"p":1e9999,"z":' + b"1" * SIZE + b"}",
    "many decimals": b'{"z":1e9999,"ps":{"a":[' + b'{"p":1e-999},' * (SIZE // 13) + b"{}]}}",
    "many decimals in text": b'{"z":1e9999,"ps":{"a":[' + b'{"p":"1e-999"},' * (SIZE // 13) + b"{}]}}",
    "many infinities": b'{"xs":[' + b'"\\"Infinity\\"",' * (SIZE // 20) + b'""]}',
    "many infinities and quotes": b'{"x":"' + b'\\"Infinity\\"' * (SIZE // 20) + b'"}',
    "a long name": b'{"' + b"a" * SIZE + b'":1}',
}


def cpu_seconds(spark: SparkSession) -> float:
    pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_a_value_is_decoded_in_linear_time(spark: SparkSession) -> None:
    schema = f"{corpus.SCALARS}, xs ARRAY<STRING>, ps MAP<STRING, ARRAY<STRUCT<p: DECIMAL(5, 2)>>>"
    by_spark(spark, schema, [b"{}"])
    began = cpu_seconds(spark)
    assert not {value[:100]: both for value, both in differences(spark, schema, list(HOSTILE.values())).items()}
    assert cpu_seconds(spark) - began < ALLOWED


texts = st.text(max_size=8)
times = st.from_regex(
    r"(2026|0001|9999)-(0?1|12)(-(0?1|31)"
    r"([ T](00|12|23|24)(:(0|30)(:(59|5)(\.[0-9]{0,8})?( ?(Z|[+-]0?[0-9](:?30)?))?)?)?)?)?",
    fullmatch=True,
)
anything = st.none() | st.booleans() | st.integers() | texts | st.lists(st.integers() | texts, max_size=3)
fitting: dict[str, st.SearchStrategy[Any]] = {
    "l": st.integers(-(2**63), 2**63 - 1),
    "i": st.integers(-(2**31), 2**31),
    "s": st.integers(-40_000, 40_000),
    "t": st.integers(-9, 9),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "f": st.floats(-1e37, 1e37),
    "p": st.decimals(-1000, 1000, places=3).map(str) | st.floats(-1000, 1000),
    "q": st.integers() | st.floats(-1e9, 1e9),
    "o": st.booleans(),
    "x": texts | st.floats(-1e6, 1e6) | st.dictionaries(texts, st.integers() | texts, max_size=3),
    "day": times,
    "at": times,
    "n": times,
}


@st.composite
def values(draw: st.DrawFn) -> bytes:
    """An object that fits, sometimes with a field that does not, or with a byte too few or too many."""
    names = draw(st.lists(st.sampled_from([*fitting, "other"]), max_size=6, unique=True))
    odd = draw(st.sampled_from([None, None, None, *names]))
    fields = {name: draw(anything if name in (odd, "other") else fitting[name]) for name in names}
    text = json.dumps(fields, ensure_ascii=draw(st.booleans())).encode()
    if draw(st.integers(0, 3)):
        return text
    at = draw(st.integers(0, len(text)))
    return (
        text[:at]
        + draw(st.sampled_from([b"", b"{", b"}", b'"', b",", b"\\", b"0", b" ", b"\n", b"\xff"]))
        + text[at + 1 :]
    )


def drawn(count: int) -> list[bytes]:
    """Always the same values, so that one job decodes them all."""
    found: list[bytes] = []

    @settings(max_examples=count, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(values())
    def collect(value: bytes) -> None:
        found.append(value)

    collect()
    return found


def test_whatever_comes(spark: SparkSession) -> None:
    examples = drawn(EXAMPLES)
    assert not differences(spark, corpus.SCALARS, examples)
    assert len(JsonDecoder(Json(corpus.SCALARS))(examples).errors) in range(EXAMPLES // 10, EXAMPLES * 9 // 10)


@pytest.mark.parametrize(
    "schema",
    [
        corpus.SCALARS,
        corpus.NESTED,
        corpus.SLOW,
        "a LONG, b SHORT, c BYTE, d REAL, e DEC, f NUMERIC(4), g INTEGER, h TIMESTAMP_LTZ",
        "a: bigint, b: struct<c int, d: string not null comment 'it\\'s'>",
        "STRUCT<a: INT, b: MAP<STRING, ARRAY<DATE>>>",
        '`a b` INT NOT NULL COMMENT "x, y", `c``d` STRING, 1a DECIMAL ( 5 , 2 ), select ARRAY<ARRAY<INT>>',
    ],
)
def test_a_schema_gives_the_types_that_spark_gives(spark: SparkSession, schema: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    from tallymark.spark.decode import SparkDecoder

    spark_type = SparkDecoder(spark, Decoders.of(Json(schema)))(kafka_frame(spark, [])).schema["value"].dataType
    assert JsonDecoder(Json(schema)).type == to_arrow_type(spark_type)


@pytest.mark.parametrize(
    "schema", ["id", "id NUMBER", "BIGINT", "id BIGINT)", "12 INT", "é INT", "a INT NULL", "a INT,"]
)
def test_a_schema_that_spark_can_not_read_is_refused(spark: SparkSession, schema: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    with pytest.raises(BadInput, match="Json schema "):
        JsonDecoder(Json(schema))
    with suppress(PySparkException):
        assert not isinstance(DataType.fromDDL(schema), StructType)
