"""Change events are decoded to the rows of their source, in JSON and in Avro, and have a place in its log."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, get_args

import pyarrow as pa
import pytest

import tallymark as tm
from tallymark.cli.toml.build import load_pipeline
from tallymark.core.newest import finish
from tallymark.core.replica import SOURCE_VERSION, UNAVAILABLE, by_known_columns, replica, with_key
from tallymark.core.tables import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec, unusable_rows, visible
from tallymark.errors import BadInput
from tallymark.formats.debezium.changes import changes
from tallymark.formats.decoder import Decoded
from tallymark.formats.decoders import Decoders
from tallymark.run.setup import Setup, new_owner
from tallymark.run.skips import check_order
from tests.support.avro import text
from tests.support.debezium import DDL, NAMES, Kind, Source, as_avro, as_json, envelope
from tests.unit.strategies import NOON

RECORDED = Path(__file__).parents[1] / "data" / "debezium.json"
FORMATS = ["json", "json with a schema", "avro"]


def source(kind: Kind, seed: int = 1) -> Source:
    made = Source(kind, Random(seed))
    made.fill(5)
    made.snapshot()
    made.change(60)
    return made


def decoded(kind: Kind, format: str, found: Source) -> Decoded:
    values = [event.value for event in found.events]
    if format == "avro":
        avro = tm.Avro(schema=text(envelope(kind)))
        return Decoders.of(tm.Debezium(avro)).value([None if value is None else as_avro(value) for value in values])
    decoder = Decoders.of(tm.Debezium(tm.Json(DDL))).value
    return decoder([as_json(value, schema=format != "json") for value in values])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_events_have_the_rows_of_the_source(kind: Kind, format: str) -> None:
    found = source(kind)
    result = decoded(kind, format, found)
    assert result.errors == {}
    for value, event in zip(result.values.to_pylist(), found.events, strict=True):
        if event.value is None:
            assert value is None
            continue
        assert {side: value[side] for side in ("before", "after")} == {
            side: event.value[side] for side in ("before", "after")
        }
        assert (value["op"], value["ts_ms"]) == (event.value["op"], event.value["ts_ms"])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_versions_of_a_key_are_in_the_order_of_its_events(kind: Kind, format: str) -> None:
    rows = changes(decoded(kind, format, found := source(kind)).values)
    assert rows.num_rows == sum(event.value is not None for event in found.events)
    by_key: dict[int, list[str]] = {}
    for row in rows.select(["id", SOURCE_VERSION]).to_pylist():
        by_key.setdefault(row["id"], []).append(row[SOURCE_VERSION])
    assert any(len(versions) > 2 for versions in by_key.values())
    assert all(earlier <= later for versions in by_key.values() for earlier, later in pairwise(versions))


def row(**source: Any) -> dict[str, Any]:
    event = {"op": source.pop("op", "u"), "after": {"id": 1}, "before": {"id": 1}, "ts_ms": 5, "source": source}
    return next(iter(made([event]).to_pylist()))


def made(events: list[dict[str, Any]]) -> pa.Table:
    return changes(
        Decoders.of(tm.Debezium(tm.Json("id BIGINT"))).value([json.dumps(e).encode() for e in events]).values
    )


def test_the_version_is_the_position_in_the_log() -> None:
    zeros = "0" * 12
    wal = {"lsn": 24023128, "snapshot": "false"}
    assert row(**wal, sequence='["24023119","24023128"]')[SOURCE_VERSION] == f"{zeros}24023119-1-{zeros}24023128"
    assert row(**wal, sequence='[null,"24023128"]')[SOURCE_VERSION] == f"{zeros}24023128-1-{zeros}24023128"
    assert row(**wal)[SOURCE_VERSION] == f"{zeros}24023128-1-{zeros}24023128"
    assert row(**{**wal, "snapshot": "first"})[SOURCE_VERSION] == f"{'0' * 20}-0-{zeros}24023128"
    incremental = {"lsn": None, "snapshot": "incremental"}
    assert (
        row(**incremental, sequence='["24023119","24023128"]')[SOURCE_VERSION] == f"{zeros}24023119-1-{zeros}24023128"
    )
    assert row(**incremental, sequence='[null,"24023128"]')[SOURCE_VERSION] == f"{zeros}24023128-1-{zeros}24023128"
    assert row(file="mysql-bin.000012", pos=154, row=2)[SOURCE_VERSION] == f"0000000012-{'0' * 17}154-0000000002"
    assert row(file="mysql-bin.1000000", pos=4)[SOURCE_VERSION] == f"0001000000-{'0' * 19}4-0000000000"
    assert row(ts_ms=1_770_000_000_000)[SOURCE_VERSION] == "1-00000001770000000000"
    assert row()[SOURCE_VERSION] == "1-00000000000000000005", "the connector's own time"


@pytest.mark.parametrize("mark", ["first", "true", "last", "incremental"])
def test_where_only_the_time_is_known_a_snapshot_is_older_than_every_change(mark: str) -> None:
    """A row is read after the snapshot began, and a change that was committed in between comes later."""
    snapshot, change = row(ts_ms=1_500, snapshot=mark), row(ts_ms=1_000, snapshot="false")
    assert snapshot[SOURCE_VERSION] < change[SOURCE_VERSION]


def test_a_change_that_was_written_before_the_snapshot_and_committed_after_it_is_newer() -> None:
    snapshot = row(lsn=900, snapshot="true", sequence='[null,"900"]')
    open_then = row(lsn=700, snapshot="false", sequence='[null,"700"]')
    after_it = row(lsn=800, snapshot="false", sequence='["905","800"]')
    versions = [event[SOURCE_VERSION] for event in (snapshot, open_then, after_it)]
    assert versions == sorted(versions)


def test_a_row_of_an_incremental_snapshot_is_newer_than_the_changes_before_it_and_older_than_those_after() -> None:
    before = row(lsn=700, snapshot="false", sequence='["690","700"]')
    read_again = row(lsn=None, snapshot="incremental", sequence='["710","720"]', ts_ms=1_770_000_000_000)
    after_it = row(lsn=740, snapshot="false", sequence='["730","740"]')
    versions = [event[SOURCE_VERSION] for event in (before, read_again, after_it)]
    assert versions == sorted(versions)


def test_only_events_with_rows_make_rows() -> None:
    nothing: dict[str, Any] = {"before": None, "after": None, "source": {"ts_ms": 1}}
    events = [{**nothing, "op": "m"}, {**nothing, "op": "d", "before": {"id": 7}}, {**nothing, "op": "t"}]
    rows = made(events)
    assert rows.select(["id", DELETED]).to_pylist() == [{"id": 7, DELETED: True}, {"id": None, DELETED: False}]


def test_without_the_old_row_a_deletion_has_its_key_in_the_key_of_the_record() -> None:
    event = {"op": "d", "before": None, "after": None, "source": {"ts_ms": 1}}
    values = Decoders.of(tm.Debezium(tm.Json("id BIGINT, name STRING"))).value([json.dumps(event).encode()]).values
    keys = pa.array([{"id": 9}], pa.struct([("id", pa.int32())]))
    assert changes(values, keys).select(["id", "name"]).to_pylist() == [{"id": 9, "name": None}]


# Encodings


def one(kind: str, value: Any, described: dict[str, Any] | None = None, **options: Any) -> Any:
    """What a column of this type decodes to, or the error."""
    event = {"op": "c", "before": None, "after": {"x": value}, "source": {}, "ts_ms": None}
    fields = [{"field": "x", **(described or {})}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    content = json.dumps({"schema": schema, "payload": event} if described is not None else event)
    found = Decoders.of(tm.Debezium(tm.Json(f"x {kind}"), **options)).value([content.encode()])
    return found.errors.get(0) or found.values.to_pylist()[0]["after"]["x"]


def number(value: int, size: int = 3) -> str:
    return base64.b64encode(value.to_bytes(size, "big", signed=True)).decode()


CONNECT = "org.apache.kafka.connect.data."
NOON_MILLIS = 1_769_860_800_000
AT = datetime(2026, 1, 31, 12)
ARRAY_OF = {"type": "array"}
MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}
TENTHS = {"type": "bytes", "name": f"{CONNECT}Decimal", "parameters": {"scale": "1"}}


@pytest.mark.parametrize(
    ("kind", "value", "described", "expected"),
    [
        ("DATE", 20484, None, date(2026, 1, 31)),
        ("DATE", "2026-01-31", None, date(2026, 1, 31)),
        ("DATE", -719162, None, date(1, 1, 1)),
        ("TIMESTAMP_NTZ", NOON_MILLIS * 1000 + 1, None, AT.replace(microsecond=1)),
        ("TIMESTAMP_NTZ", NOON_MILLIS, {"type": "int64", "name": "io.debezium.time.Timestamp"}, AT),
        ("TIMESTAMP_NTZ", NOON_MILLIS, {"type": "int64", "name": f"{CONNECT}Timestamp"}, AT),
        ("TIMESTAMP_NTZ", NOON_MILLIS * 1000, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, AT),
        ("TIMESTAMP_NTZ", NOON_MILLIS * 10**6 + 999, {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, AT),
        ("TIMESTAMP_NTZ", -1, {"name": "io.debezium.time.NanoTimestamp"}, datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("TIMESTAMP", "2026-01-31T13:00:00.5+01:00", {"type": "string"}, AT.replace(microsecond=500000, tzinfo=UTC)),
        ("DECIMAL(10, 2)", number(-12345), None, Decimal("-123.45")),
        ("DECIMAL(10, 2)", 1.5, None, Decimal("1.50")),
        ("DECIMAL(10, 2)", "12.5", {"type": "string"}, Decimal("12.50")),
        ("DECIMAL(10, 2)", number(125), {"name": f"{CONNECT}Decimal", "parameters": {"scale": "1"}}, Decimal("12.50")),
        ("DECIMAL(10, 2)", number(125), {"name": f"{CONNECT}Decimal", "parameters": {"scale": "x"}}, Decimal("1.25")),
        ("DECIMAL(10, 2)", {"scale": 3, "value": number(1235)}, None, Decimal("1.24")),
        ("DECIMAL(10, 2)", {"scale": -2, "value": number(3)}, None, Decimal("300.00")),
        ("ARRAY<DATE>", [0, None], None, [date(1970, 1, 1), None]),
        ("ARRAY<TIMESTAMP_NTZ>", [NOON_MILLIS, None], ARRAY_OF | {"items": MILLIS}, [AT, None]),
        ("ARRAY<DECIMAL(10, 2)>", [number(125)], ARRAY_OF | {"items": TENTHS}, [Decimal("12.50")]),
        ("ARRAY<DECIMAL(10, 2)>", ["12.5"], ARRAY_OF | {"items": {"type": "string"}}, [Decimal("12.50")]),
        ("BINARY", base64.b64encode(UNAVAILABLE.encode()).decode(), None, UNAVAILABLE.encode()),
        ("BIGINT", 3_600_000_000, {"type": "int64", "name": "io.debezium.time.MicroTime"}, 3_600_000_000),
        ("STRING", {"a": 1}, None, '{"a":1}'),
    ],
)
def test_columns_are_encoded_as_debezium_does(kind: str, value: Any, described: Any, expected: Any) -> None:
    assert one(kind, value, described) == expected


def test_without_a_schema_the_format_says_how_columns_are_encoded() -> None:
    assert one("TIMESTAMP_NTZ", NOON_MILLIS, times="millis") == AT
    assert one("TIMESTAMP_NTZ", NOON_MILLIS * 10**6, times="nanos") == AT
    assert one("DECIMAL(10, 2)", "1234", decimals="text") == Decimal("1234.00")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DATE", 2932897),
        ("DATE", 1.5),
        ("TIMESTAMP", NOON_MILLIS * 10**6),
        ("TIMESTAMP", True),
        ("DECIMAL(10, 2)", ""),
        ("DECIMAL(10, 2)", "1"),
        ("DECIMAL(3, 2)", number(12345)),
        ("DECIMAL(10, 2)", {"scale": 1}),
        ("DECIMAL(10, 2)", base64.b64encode(bytes(66)).decode()),
    ],
)
def test_what_does_not_fit_a_column_is_named(kind: str, value: Any) -> None:
    assert one(kind, value).startswith("after.x: ")
    assert one(kind, value).endswith(f"does not fit {kind.replace(', ', ',')}")


def test_values_that_are_no_events_say_what_they_are() -> None:
    values = [
        b"x",
        b"[]",
        b'{"id":1}',
        b'{"schema":null,"payload":null}',
        b'{"op":"c","source":1}',
        b'{"op":"c","ts_ms":"x"}',
    ]
    errors = Decoders.of(tm.Debezium(tm.Json("id BIGINT"))).value(values).errors
    assert errors[0].startswith("not JSON: ")
    assert errors[1] == "not a JSON object but an array"
    assert "ExtractNewRecordState" in errors[2]
    assert [errors[at] for at in (3, 4, 5)] == [
        "payload: null is not a change event",
        "source: 1 does not fit STRUCT",
        "ts_ms: 'x' does not fit BIGINT",
    ]


def test_values_may_have_the_framing_of_a_registry() -> None:
    decoder = Decoders.of(tm.Debezium(tm.Json("id BIGINT", framed=True))).value
    found = decoder([b"\0\0\0\0\x07" + b'{"op":"c","after":{"id":1}}', b'{"op":"c"}'])
    assert found.values.to_pylist()[0]["after"] == {"id": 1}
    assert list(found.errors) == [1]


def test_an_avro_schema_of_flattened_events_is_refused() -> None:
    flat = tm.Avro(schema=text({"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}))
    with pytest.raises(BadInput, match=r"has no before.*ExtractNewRecordState"):
        Decoders.of(tm.Debezium(flat))


@pytest.mark.parametrize("count", [1, 200])
def test_times_that_are_text_in_avro_are_timestamps(count: int) -> None:
    """One by one, and many at once."""
    kind = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    texts = [
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00.1234567Z",
        "2026-01-31T12:00:00+02:00",
        "x",
        "0000-01-01T00:00:00Z",
    ]
    texts += ["2026-02-30T12:00:00Z"]
    decoder = Decoders.of(tm.Avro(schema=text(schema))).value
    found = decoder([bytes([2 * len(given)]) + given.encode() for given in texts * count])
    expected = [AT, AT.replace(microsecond=123456), AT.replace(hour=10)]
    values = [None if value is None else value["x"] for value in found.values.to_pylist()]
    assert values == [*(time.replace(tzinfo=UTC) for time in expected), None, None, None] * count
    assert found.errors[3] == "x: 'x' is no TIMESTAMP"
    assert len(found.errors) == 3 * count


# Rows that lack a value

SPEC = replica("orders", ["id"])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        (SOURCE_VERSION, pa.string()),
        (DELETED, pa.bool_()),
    ]
)
U = UNAVAILABLE


def table(*rows: tuple[Any, ...]) -> pa.Table:
    found = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    places: dict[str, list[Any]] = {TOPIC: ["t"], PARTITION: [0], TIMESTAMP: [NOON]}
    kinds = {TOPIC: pa.string(), PARTITION: pa.int32(), TIMESTAMP: pa.timestamp("us", "UTC")}
    for name, value in places.items():
        found = found.append_column(name, pa.array(value * len(rows), kinds[name]))
    return found.append_column(OFFSET, pa.array(range(len(rows)), pa.int64()))


def puts(*rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    found = visible(finish(SPEC, table(*rows), "b").puts).to_pylist()
    return [tuple(row.values()) for row in found]


def test_a_value_that_an_event_lacks_is_that_of_the_event_before() -> None:
    rows = [
        (1, "a", b"A", "1", False),
        (2, U, b"B", "1", False),
        (1, U, U.encode(), "2", False),
        (1, U, b"C", "3", False),
    ]
    assert puts(*rows) == [(1, "a", b"C", "3"), (2, U, b"B", "1")], "not that of another key"
    assert puts(rows[3], rows[0], rows[2]) == [(1, "a", b"C", "3")], "in the order of the source"
    assert puts(rows[3], rows[2]) == [(1, U, b"C", "3")], "or the table's"
    nested = (1, f'["{U}"]', None, "4", False)
    assert puts(rows[0], nested) == [(1, "a", None, "4")]


@pytest.mark.parametrize("between", [(",", ":"), (", ", ": ")], ids=["in Spark", "in Python"])
def test_unchanged_values_of_a_real_event_are_known(between: tuple[str, str]) -> None:
    """The event is one of Debezium 3.4 for PostgreSQL 18. Arrays of other types are NULL there."""
    event = json.loads(RECORDED.read_text())["an update of a row whose large values did not change"]
    kinds = {
        "id": "BIGINT",
        **dict.fromkeys(["doc", "body"], "STRING"),
        **dict.fromkeys(["texts", "docs", "uids"], "ARRAY<STRING>"),
        "ints": "ARRAY<INT>",
        "bigs": "ARRAY<BIGINT>",
        "days": "ARRAY<DATE>",
        "content": "BINARY",
        "contents": "ARRAY<BINARY>",
        "small": "INT",
        "sums": "ARRAY<DECIMAL(10, 2)>",
        "times": "ARRAY<TIMESTAMP_NTZ>",
    }
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    decoder = Decoders.of(tm.Debezium(tm.Json(columns))).value
    rows = changes(decoder([json.dumps(event).encode()]).values)
    for at, field in enumerate(rows.schema):
        if pa.types.is_list(field.type):
            texts = [in_json(value, between) for value in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    ((spec, _),) = by_known_columns(SPEC, rows)
    assert set(spec.kept) == set(kinds) - {"id", "small", "sums", "times"}


def test_a_real_event_in_avro_is_decoded() -> None:
    """It was written by Apicurio's converter for Kafka Connect, which writes as Confluent's does."""
    recorded = json.loads(RECORDED.read_text())["a row of a snapshot in Avro"]
    content = base64.b64decode(recorded["content"])
    decoder = Decoders.of(tm.Debezium(tm.Avro(schema=text(recorded["schema"])))).value
    found = decoder([content.removeprefix(b"\0\0\0\0\x02")])
    assert found.errors == {}
    (row,) = changes(found.values).to_pylist()
    assert (row["id"], row["n102"], row["ts"]) == (1, Decimal("1.50"), datetime(2026, 11, 19, 22, 32, 45, 538166))
    assert row[SOURCE_VERSION] == f"{'0' * 20}-0-{'0' * 12}24744984"
    kinds = {"ts3a": pa.list_(pa.timestamp("us")), "na": pa.list_(pa.decimal128(10, 2)), "m": pa.decimal128(38, 2)}
    assert {name: changes(found.values).schema.field(name).type for name in kinds} == kinds


def in_json(value: Any, between: tuple[str, str]) -> str | None:
    """An array as text, as Spark and as services write it."""

    def item(one: bytes | date) -> str:
        return base64.b64encode(one).decode() if isinstance(one, bytes) else one.isoformat()

    return None if value is None else json.dumps(value, separators=between, default=item)


def test_rows_are_split_by_the_columns_that_they_lack() -> None:
    rows = visible(table((1, "a", b"A", "1", False), (2, U, b"B", "1", False), (3, U, U.encode(), "1", False)))
    parts = {spec.kept: part["id"].to_pylist() for spec, part in by_known_columns(SPEC, rows)}
    assert parts == {(): [1], ("name",): [2], ("name", "raw"): [3]}
    other = TableSpec("orders", ("id",), "upsert")
    assert [(spec.kept, part.num_rows) for spec, part in by_known_columns(other, rows)] == [((), 3)]


def test_an_event_without_a_key_says_what_to_do() -> None:
    (refusal,) = unusable_rows(SPEC, table((None, None, None, "1", False)))
    assert "TRUNCATE" in refusal.error
    assert "skipped.operations" in refusal.error


# Declarations


def kafka(**options: Any) -> tm.Kafka:
    return tm.Kafka("localhost:9092", "orders", **{"value": tm.Debezium(tm.Json(DDL)), **options})


def pipeline(**options: Any) -> tm.Pipeline:
    return tm.Pipeline(group="g", source=kafka(**options), store="sqlite:///x.db")


def test_a_replica_needs_no_function_and_takes_the_key_of_the_records() -> None:
    made = pipeline(key=tm.Json("shop STRING, id BIGINT"))
    made.table("orders", write="replica")
    made.table("others", key="id", write="replica", provenance=True)
    keys = {spec.name: with_key(spec, ["shop", "id"]).key for spec in made.specs}
    assert keys == {"orders": ("shop", "id"), "others": ("id",)}
    assert [spec.provenance for spec in made.specs] == [False, True]
    assert all(spec.remembers and spec.write == "upsert" and spec.version == SOURCE_VERSION for spec in made.specs)


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: with_key(keyless().specs[0]), "needs key="),
        (lambda: pipeline(value=tm.Json(DDL)).table("t", key="id", write="replica"), "needs change events"),
        (lambda: pipeline().table("t", key="id", write="replica", version="x"), "version= can't be set"),
        (lambda: pipeline().table("t", key="id", write="replica", delete="x"), "delete= can't be set"),
        (lambda: kafka(key=tm.Debezium(tm.Json(DDL))), "is for values"),
        (lambda: tm.Debezium(tm.Bytes()), "needs the format of its events"),  # type: ignore[arg-type]
        (lambda: tm.Debezium(tm.Json(DDL), times="days"), "write 'millis'"),  # type: ignore[arg-type]
        (lambda: tm.Debezium(tm.Json(DDL), decimals="x"), "write 'base64'"),  # type: ignore[arg-type]
        (lambda: changes(pa.array([b"x"])), "needs change events"),
    ],
)
def test_declarations_that_can_not_work_are_refused(declare: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        declare()


def keyless() -> tm.Pipeline:
    made = pipeline()
    made.table("t", write="replica")
    return made


def test_a_replica_is_filled_in_later_but_does_not_skip_ahead() -> None:
    """Its deletions have versions, but an older event can't add a value that a newer one lacks."""
    check_order([SPEC], overwrite=False)
    made = Setup("g", kafka(), "sqlite:///x.db", catch_up=tm.SkipAhead(when_behind=10, keep=5, every="1m"))
    with pytest.raises(BadInput, match=r"table orders: catch_up= would skip change events.* leave out catch_up="):
        made.job(new_owner(), [SPEC])
    made.job(new_owner(), [TableSpec("orders")])


def test_all_columns_of_the_source_are_in_the_rows() -> None:
    rows = changes(decoded("postgresql", "json", source("postgresql")).values)
    assert rows.column_names == [*NAMES, SOURCE_VERSION, DELETED]


FILE = """
group = "g"
store = "sqlite:///x.db"
[source]
brokers = "localhost:9092"
topics = ["orders"]
format = {format}
key = {{ json = "id BIGINT" }}
[tables.orders]
write = "{write}"
"""


def load(tmp_path: Path, format: str, write: str = "replica") -> tm.Pipeline:
    file = tmp_path / "shop.toml"
    file.write_text(FILE.format(format=format, write=write))
    return load_pipeline(file)


def test_a_replica_in_a_file_needs_no_query(tmp_path: Path) -> None:
    loaded = load(tmp_path, '{ debezium = { json = "id BIGINT", times = "millis" } }')
    assert loaded.setup.source.value == tm.Debezium(tm.Json("id BIGINT"), "millis")
    assert [with_key(spec, ["id"]) for spec in loaded.specs] == [SPEC]
    loaded = load(tmp_path, '{ debezium = { avro = "https://registry:8081", decimals = "text" } }')
    assert loaded.setup.source.value == tm.Debezium(tm.Avro("https://registry:8081"), decimals="text")
    assert load(tmp_path, '{ debezium = "https://registry:8081" }').setup.source.value == tm.Debezium(
        tm.Avro("https://registry:8081")
    )


@pytest.mark.parametrize(
    ("format", "write", "words"),
    [
        ('{ json = "id BIGINT" }', "replica", r"shop.toml line 9: table orders: write='replica' needs change events"),
        ('{ json = "id BIGINT" }', "append", r"shop.toml line 9: tables.orders.sql is missing"),
        ("{ debezium = { } }", "replica", r"line 7: source.format.debezium must have one format"),
        ('{ debezium = { times = "days", json = "x INT" } }', "replica", "times must be"),
        ('{ debezium = { jsn = "x INT" } }', "replica", "jsn is not known; did you mean json"),
    ],
)
def test_what_a_file_can_not_mean_is_refused(tmp_path: Path, format: str, write: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        load(tmp_path, format, write)
