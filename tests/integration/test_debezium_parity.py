"""Change events decoded in Spark's tasks equal those that the driver decodes: the same ones are accepted."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import pytest

import tallymark as tm
from tallymark.core.tables import DELETED
from tallymark.formats.debezium.changes import changes
from tallymark.formats.decoders import Decoders
from tests.integration.test_spark_decode import kafka_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "dead"
COLUMNS = [
    *("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(10,2)", "DECIMAL(38,10)", "DECIMAL(5,5)", "STRING", "BIGINT"),
    *("BINARY", "BOOLEAN", "ARRAY<DECIMAL(5,1)>", "ARRAY<TIMESTAMP>", "STRUCT<scale: INT, value: BINARY>"),
]
DDL = ", ".join(f"c{number} {kind}" for number, kind in enumerate(COLUMNS))


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 1.5, 20484, -719162, -719163, 2932896, 2932897),
    *("", "x", "1", "12.5", "AQ==", "/w==", "AAA="),
    *(sign * 10**digits for sign in (1, -1) for digits in (12, 15, 18, 19)),
    *("2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456789", "2026-01-31 12:00", "0000-01-01", "1e3"),
    *([], [1], [None, "AQ=="], {}, {"scale": 1}, {"scale": 1, "value": "AQ=="}, {"scale": -3, "value": "AQ=="}),
    *({"scale": scale, "value": "/w=="} for scale in (1.0, 999, -1000, 1000)),
    *({"value": "AQ==", "z": {"a": 1}, "scale": 0}, 2**63, -(2**63), "9" * 30),
    *map(in_base64, (b"\x7f" * 64, bytes(64), b"\x01" * 65, b"\xff" * 16)),
]
NAMES = [
    *(None, 5, "z", "org.apache.kafka.connect.data.Timestamp", "org.apache.kafka.connect.data.Decimal"),
    *(f"io.debezium.time.{name}" for name in ("Timestamp", "MicroTimestamp", "NanoTimestamp")),
]
PARAMETERS = [{"scale": "1"}, {"scale": "0012"}, {"scale": "12"}, {"scale": 1}, [], "x", {"scale": "٣"}, None]
ODD = [
    *(b'{"op":null}', b"{}", b' {"op":"c"} ', b'{"op":"c"}x', b'{"op":"c","op":null}', b'{"op":1}', b"[]", b"5", b""),
    *(b'{"payload":null}', b'{"payload":{"op":"c"},"payload":1}', b'{"payload":1,"payload":{"op":"c"}}'),
    *(b'{"schema":{"fields":', b'{"op":"c","z":{"a":[1,2,{"b":"\\u00e9"}]}}', b'{"op":"c","ts_ms":1.5}'),
    *(b'{"op":"c","source":{"lsn":"x"}}', b'{"op":"c","before":[]}', b'{"op":"c","after":{"c0":1,"c0":"x"}}'),
]


def described(random: Random, name: str) -> Any:
    """The schema of an event, which may be any JSON."""
    column: dict[str, Any] = {"field": name, "name": random.choice(NAMES)}
    if random.random() < 0.7:
        column |= {"type": random.choice(["string", "bytes", 5, "int64"]), "parameters": random.choice(PARAMETERS)}
    if random.random() < 0.2:
        column = {"field": name, "type": "array", "items": random.choice([column, {"items": column}, 5])}
    after = {"field": "after", "fields": [column, 3]}
    return random.choice(
        [
            None,
            5,
            [],
            {"fields": 5},
            {"fields": [5, {"field": "after"}, after]},
            {"fields": [after], "z": [{"a": None}]},
        ]
    )


def events(random: Random) -> list[bytes]:
    made: list[bytes] = list(ODD)
    for number in range(len(COLUMNS)):
        for value in VALUES:
            side = random.choice(["before", "after"])
            event = {"op": "c", side: {f"c{number}": value}, "ts_ms": 1, "source": {"lsn": 5, "txId": 7}}
            enveloped = {"schema": described(random, f"c{number}"), "payload": event}
            if random.random() < 0.2:
                enveloped = dict(reversed(enveloped.items()))
            made += [json.dumps(event).encode(), json.dumps(enveloped).encode()]
    return made


@pytest.mark.parametrize("decimals", ["base64", "text"])
@pytest.mark.parametrize("times", ["millis", "micros", "nanos"])
def test_the_edges_of_every_type(
    spark: SparkSession, times: Literal["millis", "micros", "nanos"], decimals: Literal["base64", "text"]
) -> None:
    from tallymark.spark.decode import RAW, SparkDecoder

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    decoders = Decoders.of(tm.Debezium(tm.Json(DDL), times, decimals))
    values = events(Random(f"{times} {decimals}"))
    found = decoders.value(values)
    ours = [DEAD if at in found.errors else value for at, value in enumerate(found.values.to_pylist())]
    decoded = SparkDecoder(spark, decoders)(kafka_frame(spark, values)).select("offset", "value", RAW)
    rows = sorted(decoded.toArrow().to_pylist(), key=lambda row: int(row["offset"]))
    sparks = [DEAD if row[RAW] is not None else row["value"] for row in rows]
    different = [both for both in zip(values, ours, sparks, strict=True) if repr(both[1]) != repr(both[2])]
    assert not different
    assert 200 < ours.count(DEAD) < len(ours) - 200


def position(random: Random) -> dict[str, Any]:
    """Where an event is in the log of its source, as connectors say it, and as none does."""
    parts: dict[str, list[Any]] = {
        "lsn": [None, None, 0, 24023128, 2**63 - 1],
        "sequence": [None, '["24023119","1"]', '[null,"1"]', "[]", "", "null", "x", '["",""]'],
        "snapshot": [None, "false", "true", "first", "last", "incremental", ""],
        "file": [None, "mysql-bin.000012", "bin.1000000", "bin", ""],
        "pos": [None, 0, 4, 2**40],
        "row": [None, 0, 7],
        "ts_ms": [None, 0, 1_770_000_000_000],
    }
    return {name: random.choice(values) for name, values in parts.items() if random.random() < 0.8}


def test_spark_and_services_compute_the_same_versions_and_keys(spark: SparkSession) -> None:
    from tallymark.spark.decode import SparkDecoder
    from tallymark.spark.replica import changes as in_spark

    random = Random(1)
    decoders = Decoders.of(tm.Debezium(tm.Json("id BIGINT, sizes ARRAY<INT>")))
    made = [
        {"op": random.choice("crudtm"), side: {"id": number, "sizes": [1]}, "source": position(random), "ts_ms": ts}
        for number in range(1_000)
        for side, ts in [(random.choice(["before", "after"]), random.choice([None, 5]))]
    ]
    values = [json.dumps(event).encode() for event in made]
    rows = in_spark(["id"], SparkDecoder(spark, decoders).records(kafka_frame(spark, values))).toArrow().to_pylist()
    ours = changes(decoders.value(values).values).drop_columns([DELETED]).to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, ours))
    assert len(ours) > 700
