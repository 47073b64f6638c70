"""Protobuf messages decoded in Spark's tasks equal those that the driver decodes, also if they are corrupt."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tallymark.formats.decoder import Decoder
from tallymark.formats.decoders import Decoders
from tallymark.formats.framing import prefix
from tallymark.formats.protobuf.projection import Incompatible
from tallymark.formats.protobuf.registered import PlainProtobuf, RegisteredProtobuf
from tallymark.formats.registry import Schemas
from tallymark.formats.registry_server import Registry
from tests.integration.test_spark_decode import kafka_frame
from tests.support.protobuf_schemas import REALS, Schema, corrupted, fill, schema_of, tagged
from tests.support.protobuf_schemas import Schemas as RandomSchemas
from tests.support.registry import SchemaRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "dead"
MESSAGES = 12


@pytest.fixture(scope="module", autouse=True)
def utc(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def by_spark(spark: SparkSession, decoder: Decoder, bodies: list[bytes]) -> list[str]:
    from tallymark.spark.decode import RAW, SparkDecoder

    decoded = SparkDecoder(spark, Decoders(decoder))(kafka_frame(spark, bodies)).select("offset", "value", RAW)
    rows = sorted(decoded.toArrow().to_pylist(), key=lambda row: int(row["offset"]))
    return [DEAD if row[RAW] is not None else repr(row["value"]) for row in rows]


def by_driver(decoder: Decoder, bodies: list[bytes]) -> list[str]:
    decoded = decoder(pa.array(bodies, pa.binary()))
    return [DEAD if at in decoded.errors else repr(value) for at, value in enumerate(decoded.values.to_pylist())]


def differences(spark: SparkSession, decoder: Decoder, bodies: list[bytes]) -> dict[str, tuple[str, str]]:
    both = zip(bodies, by_driver(decoder, bodies), by_spark(spark, decoder, bodies), strict=True)
    return {body.hex(): (driver, sparks) for body, driver, sparks in both if driver != sparks}


@pytest.mark.faults_where(seed=list(range(12, 100)))
@pytest.mark.parametrize("seed", range(100))
def test_random_schemas_messages_and_corruptions(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    schemas = RandomSchemas(chance)
    file = schemas.file()
    writer, reader = schema_of(file), schema_of(schemas.evolved(file) if seed % 2 else file)
    try:
        decoder = PlainProtobuf(writer.message(), reader.message())
    except Incompatible:
        pytest.skip("no column can hold what was written")
    good = []
    for _ in range(MESSAGES):
        message = writer.official()()
        fill(chance, message)
        good.append(message.SerializeToString())
    assert not differences(spark, decoder, [*good, *(bad for body in good for bad in corrupted(chance, body))])


def test_numbers_of_json(spark: SparkSession) -> None:
    schema = Schema.of("message M { google.protobuf.Value v = 1; }")
    chance = random.Random(1)
    numbers = [*REALS, *(2.0**power for power in range(-1074, 1024, 3)), *(chance.gauss(0, 1e5) for _ in range(500))]
    bodies = []
    for number in numbers:
        message = schema.official()()
        message.v.number_value = number
        bodies.append(message.SerializeToString())
    assert not differences(spark, PlainProtobuf(schema.message()), bodies)


def test_message_indexes(spark: SparkSession) -> None:
    text = 'syntax = "proto3"; message M { int32 a = 1; } message Other { message M { int64 a = 1; } message X { } }'
    with SchemaRegistry() as registry:
        id, _ = registry.add("orders-value", text, "PROTOBUF")
        schemas = Schemas.of(Registry(registry.url))
        decoder = RegisteredProtobuf(
            schemas, [Schema.of("message M { int32 a = 1; }").message()], "value", in_headers=False
        )
        indexes = [b"\0", b"\x02\0", b"\x04\x02\0", b"\x02\x02", b"\x04\x02\x02", b"\x02\x80\0", b"\x02", b"\x01", b""]
        bodies = [prefix(id) + after + tagged(1, 5) for after in indexes] + [prefix(id), prefix(id + 1) + b"\0"]
        driver = by_driver(decoder, bodies)
        assert by_spark(spark, decoder, bodies) == driver
    assert [value != DEAD for value in driver] == [True] * 3 + [False] * 2 + [True] + [False] * 5


def test_one_of_several_messages(spark: SparkSession) -> None:
    text = "message A { int32 a = 1; string s = 2; } message B { bytes b = 1; } message C { int32 a = 1; }"
    with SchemaRegistry() as registry:
        id, _ = registry.add("events-value", f'syntax = "proto3"; {text}', "PROTOBUF")
        schemas = Schemas.of(Registry(registry.url))
        readers = [Schema.of(text).message(name) for name in ("B", "A")]
        decoder = RegisteredProtobuf(schemas, readers, "value", in_headers=False)
        contents = [(b"\0", tagged(1, 5) + tagged(2, b"x")), (b"\0", b""), (b"\x02\x02", tagged(1, b"y"))]
        bad = [(index, cut) for index, body in contents for cut in (b"\x08", body[:-1])]
        bodies = [prefix(id) + index + body for index, body in [*contents, *bad, (b"\x02\x04", tagged(1, 5))]]
        driver = by_driver(decoder, bodies)
        assert by_spark(spark, decoder, bodies) == driver
    assert [value != DEAD for value in driver[:3]] == [True] * 3
    assert driver[-1] == DEAD
