"""Avro values decoded in Spark's tasks equal those that the driver decodes, also if they are corrupt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tallymark.formats.avro.projection import Incompatible
from tallymark.formats.avro.schema import SchemaInvalid, parse
from tallymark.formats.decoders import Decoders
from tallymark.formats.registered import PlainAvro
from tests.integration.test_spark_decode import kafka_frame
from tests.support.avro_schemas import Schemas, encoded, evolved, text_of, value_of, varint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "dead"
VALUES = 12


@pytest.fixture(scope="module", autouse=True)
def utc(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def by_spark(spark: SparkSession, decoder: PlainAvro, bodies: list[bytes]) -> list[str]:
    from tallymark.spark.decode import RAW, SparkDecoder

    decoded = SparkDecoder(spark, Decoders(decoder))(kafka_frame(spark, bodies)).select("offset", "value", RAW)
    rows = sorted(decoded.toArrow().to_pylist(), key=lambda row: int(row["offset"]))
    return [DEAD if row[RAW] is not None else repr(row["value"]) for row in rows]


def by_driver(decoder: PlainAvro, bodies: list[bytes]) -> list[str]:
    decoded = decoder(pa.array(bodies, pa.binary()))
    return [DEAD if at in decoded.errors else repr(value) for at, value in enumerate(decoded.values.to_pylist())]


def differences(spark: SparkSession, decoder: PlainAvro, bodies: list[bytes]) -> dict[str, tuple[str, str]]:
    both = zip(bodies, by_driver(decoder, bodies), by_spark(spark, decoder, bodies), strict=True)
    return {body.hex(): (driver, sparks) for body, driver, sparks in both if driver != sparks}


def corrupted(chance: random.Random, body: bytes) -> Iterator[bytes]:
    """The body cut off, with more bytes, and with other ones."""
    yield body[: chance.randrange(len(body) + 1)]
    yield body + chance.randbytes(1)
    changed = bytearray(body)
    for _ in range(min(len(body), 2)):
        changed[chance.randrange(len(body))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    yield bytes(changed)


@pytest.mark.faults_where(seed=list(range(12, 100)))
@pytest.mark.parametrize("seed", range(100))
def test_random_schemas_values_and_corruptions(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    schemas = Schemas(chance)
    writer: Any = schemas.record() if seed % 5 else schemas.type(2)
    reader = evolved(schemas, writer) if seed % 2 else writer
    try:
        decoder = PlainAvro(parse(text_of(writer)), parse(text_of(reader)))
    except (Incompatible, SchemaInvalid):
        pytest.skip("no column can hold what was written")
    good = [encoded(chance, writer, value_of(chance, writer)) for _ in range(VALUES)]
    bodies = [*good, *(bad for body in good for bad in corrupted(chance, body))]
    assert not differences(spark, decoder, bodies)


LOOP = {
    "type": "record",
    "name": "Loop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "next", "type": ["null", "Loop"]},
        {"name": "more", "type": {"type": "map", "values": {"type": "array", "items": ["string", "Loop", "null"]}}},
    ],
}


def test_a_field_that_contains_itself_is_skipped(spark: SparkSession) -> None:
    reader = {**LOOP, "fields": LOOP["fields"][:1]}
    decoder = PlainAvro(parse(text_of(LOOP)), parse(text_of(reader)))
    leaf = varint(1) + varint(0) + varint(0)

    def nested(depth: int) -> bytes:
        return (varint(1) + varint(1)) * depth + leaf + varint(0) * depth

    in_map = varint(1) + varint(0) + varint(1) + varint(1) + b"k"
    items = varint(3) + varint(0) + varint(1) + b"s" + varint(1) + leaf + varint(2) + varint(0)
    bodies = [leaf, nested(5), nested(198), nested(199), nested(200), nested(300), nested(5)[:-1]]
    bodies += [in_map + items + varint(0), in_map + items, in_map + items[:-1] + varint(-1) + varint(9) + items]
    assert not differences(spark, decoder, bodies)
    alive = [found != DEAD for found in by_driver(decoder, bodies)]
    assert alive == [True, True, True, *alive[3:5], False, False, True, False, False]
