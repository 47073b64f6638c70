"""A producer writes keys and values as Avro, Protobuf or JSON, with schemas of a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tallymark as tm
from tallymark.core import raw
from tallymark.errors import AccessDenied, BadInput, UnknownSchema, Unreachable
from tallymark.formats.avro.encoder import AvroEncoder
from tallymark.formats.decoders import Decoders
from tallymark.formats.protobuf import indexes
from tallymark.formats.protobuf.compiler import compiled
from tallymark.formats.value import Formatted
from tallymark.produce.formats import FormattedRecords
from tallymark.produce.settings import Headers, Outgoing
from tallymark.produce.template import Lazy, Template
from tests.support.registry import Reply, SchemaRegistry

NOWHERE = "localhost:1"
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
SECOND = ORDER.replace("]}", ', {"name": "note", "type": "string", "default": ""}]}')
BODY = AvroEncoder(ORDER)({"id": 42})


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def records(*, key: Any = None, value: Any = None) -> FormattedRecords:
    made = FormattedRecords.of(key, value, patience=0)
    assert made is not None
    return made


def sent(format: Formatted, value: Any = None, headers: Headers | None = None) -> tuple[bytes, Headers | None]:
    """Return the value and the headers of a record."""
    _, content, headers = records(value=format)("orders", None, {"id": 42} if value is None else value, headers)
    return content, headers


def test_values_are_written_with_the_latest_schema_and_its_id(server: SchemaRegistry) -> None:
    server.add("other", '"string"')
    server.add("orders-value", ORDER)
    writing = records(value=tm.Avro(server.url))
    assert writing("orders", "key", {"id": 42}, None) == ("key", b"\0\0\0\0\2" + BODY, None)
    server.add("orders-value", SECOND)
    assert writing("orders", "key", {"id": 42}, None)[1] == b"\0\0\0\0\2" + BODY, "as long as the producer lives"
    assert sent(tm.Avro(server.url))[0] == b"\0\0\0\0\3" + BODY + b"\0"


def test_keys_and_values_have_schemas_of_their_own(server: SchemaRegistry) -> None:
    server.add("orders-key", '"long"')
    server.add("orders-value", ORDER)
    writing = records(key=tm.Avro(server.url), value=tm.Avro(server.url))
    assert writing("orders", 7, {"id": 42}, None) == (b"\0\0\0\0\1\x0e", b"\0\0\0\0\2" + BODY, None)
    assert writing("orders", None, None, None) == (None, None, None), "a tombstone, and no key"
    assert records(key=tm.Avro(server.url))("orders", 7, "text", None)[1] == "text"


def test_ids_in_headers_are_guids_if_the_registry_has_them(server: SchemaRegistry) -> None:
    server.add("orders-value", ORDER)
    format = tm.Avro(server.url, ids="headers")
    guid = server.guid(1)
    header = b"\1" + bytes.fromhex(guid.replace("-", ""))
    assert sent(format) == (BODY, [("__value_schema_id", header)])
    given: list[tuple[str, str | bytes | None]] = [("source", "shop"), ("__value_schema_id", b"old")]
    assert sent(format, headers=given)[1] == [("source", "shop"), ("__value_schema_id", header)]
    assert sent(format, headers=dict(given))[1] == [("source", "shop"), ("__value_schema_id", header)]
    server.behaviour.guids = False
    assert sent(format)[1] == [("__value_schema_id", b"\0\0\0\0\1")]


def test_a_declared_schema_is_looked_up_or_registered(server: SchemaRegistry) -> None:
    with pytest.raises(
        UnknownSchema, match=r"topic orders: .* does not have this schema for subject orders-value: regi"
    ):
        sent(tm.Avro(server.url, schema=ORDER))
    assert sent(tm.Avro(server.url, schema=ORDER, register=True))[0] == b"\0\0\0\0\1" + BODY
    server.add("orders-value", SECOND)
    assert sent(tm.Avro(server.url, schema=ORDER))[0] == b"\0\0\0\0\1" + BODY, "not the latest"
    assert sent(tm.Avro(server.url, schema=ORDER, subject="mine", register=True))[0] == b"\0\0\0\0\1" + BODY
    assert "POST /subjects/mine/versions" in server.requests


def test_without_a_registry_values_are_plain_avro() -> None:
    assert sent(tm.Avro(schema=ORDER)) == (BODY, None)


def test_schemas_use_others(server: SchemaRegistry) -> None:
    server.add("money", '{"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}')
    server.add("orders-value", '["Money", "null"]', references=[("Money", "money", 1)])
    assert sent(tm.Avro(server.url), {"cents": 5})[0] == b"\0\0\0\0\2\0\n"


def test_a_value_that_does_not_fit_is_the_record_s_fault(server: SchemaRegistry) -> None:
    server.add("orders-value", ORDER)
    with pytest.raises(BadInput, match=r"topic orders: value can't be sent: .*: id: 'x' does not fit long") as refused:
        sent(tm.Avro(server.url), {"id": "x"})
    assert not isinstance(refused.value, UnknownSchema)


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_a_subject_of_another_type_is_refused(server: SchemaRegistry, kind: str) -> None:
    server.add("orders-value", "{}", kind)
    with pytest.raises(UnknownSchema, match=f"the latest schema of subject orders-value is {kind}, not AVRO"):
        sent(tm.Avro(server.url))


def test_a_schema_that_is_not_there_is_asked_for_with_the_next_record(server: SchemaRegistry) -> None:
    writing = records(value=tm.Avro(server.url))
    with pytest.raises(UnknownSchema, match="has no schema for subject orders-value"):
        writing("orders", None, {"id": 42}, None)
    server.add("orders-value", ORDER)
    server.behaviour.replies = [Reply.error(503, 503, "")]
    with pytest.raises(Unreachable):
        writing("orders", None, {"id": 42}, None)
    assert writing("orders", None, {"id": 42}, None)[1] == b"\0\0\0\0\1" + BODY


def test_a_producer_sends_what_is_written(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.produce.state.ASK_SECONDS", 0.1)
    server.add("orders-value", ORDER)
    server.add("orders-key", '"long"')
    failed: list[Outgoing] = []
    producer = tm.Producer(
        NOWHERE,
        key=tm.Avro(server.url),
        value=tm.Avro(server.url, ids="headers"),
        on_error=lambda record, _: failed.append(record),
        tls=False,
    )
    producer.send("orders", {"id": 42}, key=7)
    producer.send("orders", None, key=7)
    # Closing drops what no broker has received, and reports it.
    producer.close(timeout=0)
    header = b"\1" + bytes.fromhex(server.guid(1).replace("-", ""))
    assert [(record.key, record.value, record.headers) for record in failed] == [
        (b"\0\0\0\0\2\x0e", BODY, [("__value_schema_id", header)]),
        (b"\0\0\0\0\2\x0e", None, None),
    ]


def test_a_template_tells_the_record_at_fault_from_a_missing_schema(server: SchemaRegistry) -> None:
    def make() -> tm.Producer:
        return tm.Producer(NOWHERE, value=tm.Avro(server.url), buffer_seconds=0, tls=False)

    lazy = Lazy(make)
    orders = Template("orders", lazy)
    with pytest.raises(UnknownSchema):
        orders.send({"id": 42})
    server.add("orders-value", ORDER)
    with pytest.raises(ValueError, match="id: 'x' does not fit long"):
        orders.send({"id": "x"})
    lazy.get().detach()
    with pytest.raises(tm.Retry):
        orders.send({"id": 42})


def test_what_is_no_format_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Producer\(value=Bytes\(\)\) is not known; pass a function .*, or Avro\(...\)"):
        tm.Producer(NOWHERE, value=tm.Bytes())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"Producer\(key='k'\) is not known; pass Avro.*, or the keys themselves"):
        tm.Producer(NOWHERE, key="k")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"Producer\(value=Json\(..., framed=True\)\) needs registry="):
        tm.Producer(NOWHERE, value=tm.Json("id BIGINT", framed=True))


SHOP = """syntax = "proto3"; package shop;
message Order { int64 id = 1; message Line { int32 n = 1; Line next = 2; } map<string, int32> counts = 3;
  message Note { string text = 1; } }
message Payment { string id = 1; }
"""


@pytest.mark.parametrize(
    ("message", "value", "after_id"),
    [
        (None, {"id": 42}, b"\0" + b"\x08\x2a"),
        ("shop.Payment", {"id": "x"}, b"\x02\x02" + b"\x0a\x01x"),
        ("Line", {"n": 1}, b"\x04\0\0" + b"\x08\x01"),
        # The entry of the map is a message, too.
        ("Note", {"text": "x"}, b"\x04\0\x04" + b"\x0a\x01x"),
    ],
)
def test_protobuf_names_its_message_by_indexes(
    server: SchemaRegistry, message: str | None, value: Any, after_id: bytes
) -> None:
    server.add("orders-value", SHOP, "PROTOBUF")
    content, _ = sent(tm.Protobuf(server.url, message=message), value)
    assert content == b"\0\0\0\0\1" + after_id
    if message != "Line":
        (read,) = Decoders.of(tm.Protobuf(server.url, message=message), None, ["orders"]).value([content]).values
        assert read.as_py().items() >= value.items()


def test_a_message_may_have_many_before_it(server: SchemaRegistry) -> None:
    many = "".join(f"message M{at} {{ int32 n = 1; }} " for at in range(200))
    server.add("orders-value", f'syntax = "proto3"; {many}', "PROTOBUF")
    content, _ = sent(tm.Protobuf(server.url, message="M150"), {"n": 1})
    assert content == b"\0\0\0\0\1" + b"\x02\xac\x02" + b"\x08\x01"
    assert indexes.parse(content[5:]) == ((150,), 3)


def test_the_id_and_the_indexes_may_be_in_a_header(server: SchemaRegistry) -> None:
    server.add("orders-key", SHOP, "PROTOBUF")
    server.behaviour.guids = False
    format = tm.Protobuf(server.url, message="Payment", ids="headers")
    header = b"\0\0\0\0\1\x02\x02"
    found = records(key=format)("orders", {"id": "x"}, b"v", None)
    assert found == (b"\x0a\x01x", b"v", [("__key_schema_id", header)])
    given = pa.array([[{"key": "__key_schema_id", "value": header}]], raw.HEADERS)
    decoder = Decoders.of(tm.Bytes(), format, ["orders"])._parts["key"]
    assert decoder([b"\x0a\x01x"], given).values.to_pylist() == [{"id": "x"}]


def test_a_proto_file_is_looked_up_or_registered(server: SchemaRegistry, tmp_path: Path) -> None:
    file = tmp_path / "shop.proto"
    file.write_text(SHOP)
    format = tm.Protobuf(server.url, schema=str(file), message="Order")
    for message, said in ((None, "it has the messages shop.Order, shop.Payment: name one"), ("X", "no messages X")):
        with pytest.raises(UnknownSchema, match=said):
            sent(replace(format, message=message, register=True))
    assert not server.requests, "nothing is registered"
    with pytest.raises(UnknownSchema, match=r"set register=True of Protobuf\(\)"):
        sent(format)
    assert sent(replace(format, register=True))[0] == b"\0\0\0\0\1\0\x08\x2a"
    server.add("orders-value", 'syntax = "proto3"; message Later { int64 id = 1; }', "PROTOBUF")
    assert sent(format)[0] == b"\0\0\0\0\1\0\x08\x2a", "not the latest"


def test_a_file_that_a_registry_can_not_have_is_refused(server: SchemaRegistry, tmp_path: Path) -> None:
    (tmp_path / "item.proto").write_text('syntax = "proto3"; message Item { int64 id = 1; }')
    file = tmp_path / "shop.proto"
    file.write_text('syntax = "proto3"; import "item.proto"; message Order { Item item = 1; }')
    format = tm.Protobuf(server.url, schema=str(file), register=True)
    with pytest.raises(
        UnknownSchema, match=r"imports item.proto, which a registry has under a subject of its own; wri"
    ):
        sent(format)
    descriptors = tmp_path / "shop.desc"
    descriptors.write_bytes(compiled(SHOP))
    with pytest.raises(UnknownSchema, match=r"shop.desc'\) is no .proto file, which registries have; name one, or reg"):
        sent(replace(format, schema=str(descriptors), message="Order"))
    assert not any("POST" in one for one in server.requests), "nothing is registered"
    plain = tm.Protobuf(schema=str(descriptors), message="shop.Order")
    assert sent(plain) == (b"\x08\x2a", None), "without a registry"
    with pytest.raises(BadInput, match=r"topic orders: value can't be sent: .* shop.Order: id: 'x' does not fit"):
        sent(plain, {"id": "x"})


def test_json_is_written_behind_the_id_of_a_json_schema(server: SchemaRegistry) -> None:
    server.add("other", '"string"')
    server.add("orders-value", '{"type": "object"}', "JSON")
    format = tm.Json("id BIGINT, at TIMESTAMP", framed=True, registry=server.url)
    at = datetime(2026, 1, 31, tzinfo=UTC)
    content, _ = sent(format, {"id": 42, "at": at})
    assert content == b'\0\0\0\0\2{"id":42,"at":"2026-01-31T00:00:00+00:00"}'
    assert Decoders.of(format, None, ["orders"]).value([content]).values.to_pylist() == [{"id": 42, "at": at}]
    assert sent(format, '{"id": 1}')[0] == b'\0\0\0\0\2{"id": 1}', "text is JSON already"
    with pytest.raises(UnknownSchema, match="has no schema for subject mine"):
        sent(replace(format, subject="mine"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"id": "x"}, "the value does not fit the schema of Json(): id: 'x' does not fit BIGINT"),
        ({"id": float("nan")}, "can't be written as JSON: Out of range float values"),
        ("x", "the value does not fit the schema of Json(): not JSON"),
        ([1], "the value does not fit the schema of Json(): not a JSON object but an array"),
        ({"name": "\ud83d"}, "the value has text with half of a surrogate pair"),
        ({"id": {1}}, "set has no JSON form"),
    ],
)
def test_json_that_no_reader_accepts_is_refused(value: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        sent(tm.Json("id BIGINT, name STRING"), value)
    assert said in str(refused.value)


def test_json_without_a_registry_has_no_id() -> None:
    assert sent(tm.Json("id BIGINT")) == (b'{"id":42}', None)
    for options in ({"registry": "http://r"}, {"framed": True, "subject": "x"}):
        with pytest.raises(BadInput, match=r"needs framed=True|needs registry="):
            tm.Json("id BIGINT", **options)


def test_json_has_one_subject() -> None:
    subjects: Any = ["placed", "cancelled"]
    with pytest.raises(BadInput, match=r"Json\(subject=...\) must be the name of one subject"):
        tm.Json("id BIGINT", framed=True, registry="http://r", subject=subjects)


FORMATS: list[Callable[[str], Any]] = [
    lambda url: tm.Avro(url),
    lambda url: tm.Protobuf(url),
    lambda url: tm.Json("id BIGINT", framed=True, registry=url),
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (Reply(200, b"<html>log in</html>", "text/html"), BadInput, "with text/html instead of JSON: correct the addr"),
        (Reply.error(401, 401, "Unauthorized"), AccessDenied, "refused this client: set a login"),
        (Reply.error(403, 403, "Forbidden"), AccessDenied, "denied this client access to /subjects/orders-value"),
        (Reply.error(404, 40401, "Subject not found"), UnknownSchema, "has no schema for subject orders-value"),
        (Reply(404, b"<html></html>", "text/html"), UnknownSchema, "correct the address"),
    ],
)
def test_what_a_registry_refuses_is_one_sentence(
    server: SchemaRegistry, format: Callable[[str], Any], reply: Reply, kind: type[Exception], said: str
) -> None:
    server.behaviour.always = reply
    with pytest.raises(kind) as refused:
        sent(format(server.url))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("at", range(3))
def test_a_subject_of_another_kind_is_refused_by_each(server: SchemaRegistry, at: int) -> None:
    kinds, texts = ("AVRO", "PROTOBUF", "JSON"), (ORDER, SHOP, "{}")
    server.add("orders-value", texts[at - 1], kinds[at - 1])
    with pytest.raises(UnknownSchema, match=f"of subject orders-value is {kinds[at - 1]}, not {kinds[at]}"):
        sent(FORMATS[at](server.url))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message {", "subject orders-value can't be used: schema.proto:1:"),
        ('syntax = "proto3";', "subject orders-value can't be used: it has no message with the indexes"),
        (f'syntax = "proto3"; message M {{ {"x" * 5_000_000} id = 1; }}', "subject orders-value can't be used: "),
    ],
    ids=["syntax", "empty", "large"],
)
def test_a_schema_that_can_not_be_used(server: SchemaRegistry, text: str, said: str) -> None:
    server.add("orders-value", text, "PROTOBUF")
    with pytest.raises(UnknownSchema) as refused:
        sent(tm.Protobuf(server.url))
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_schema_of_5_mb_is_used(server: SchemaRegistry) -> None:
    server.add(
        "orders-value", f'syntax = "proto3"; /* {"x" * 5_000_000} */ message Order {{ int64 id = 1; }}', "PROTOBUF"
    )
    assert sent(tm.Protobuf(server.url))[0] == b"\0\0\0\0\1\0\x08\x2a"
