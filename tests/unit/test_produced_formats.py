"""A producer writes keys and values as Avro, with schemas of a registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tallymark as tm
from tallymark.errors import BadInput, UnknownSchema, Unreachable
from tallymark.formats.avro.encoder import AvroEncoder
from tallymark.produce.formats import AvroRecords
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


def records(*, key: Any = None, value: Any = None) -> AvroRecords:
    made = AvroRecords.of(key, value, patience=0)
    assert made is not None
    return made


def sent(format: tm.Avro, value: Any = None, headers: Headers | None = None) -> tuple[bytes, Headers | None]:
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
    with pytest.raises(
        BadInput, match=r"Producer\(value=Json\(.*\)\) is not known; pass a function .*, or Avro\(...\)"
    ):
        tm.Producer(NOWHERE, value=tm.Json("id BIGINT"))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"Producer\(key='k'\) is not known; pass Avro\(...\), or the keys themselves"):
        tm.Producer(NOWHERE, key="k")  # type: ignore[arg-type]
