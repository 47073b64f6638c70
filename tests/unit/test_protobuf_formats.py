"""Keys and values in Protobuf are decoded by the schemas and the message indexes that they name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

import tallymark as tm
from tallymark.core import raw
from tallymark.errors import BadInput, Unreachable
from tallymark.formats.decoders import Decoders
from tallymark.formats.framing import guid_header, prefix
from tallymark.formats.protobuf import compiler, indexes
from tallymark.formats.protobuf.body import Dead
from tallymark.formats.protobuf.registered import RegisteredProtobuf
from tallymark.formats.protobuf.schema import SchemaInvalid
from tallymark.operate.shown import Shown, shown
from tests.support.protobuf_schemas import tagged
from tests.support.registry import SchemaRegistry

ITEM = 'syntax = "proto3"; package shop; message Item { string sku = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "shop/item.proto";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; Item item = 2; google.protobuf.Timestamp at = 3; message Line { int32 n = 1; } }
message Payment { string id = 1; message Order { int64 id = 1; string note = 9; } }
"""
EVENT = 'syntax = "proto3"; message Order { int64 id = 1; string more = 5; }'
MANY = 30
"""How often contents are repeated to be more than are decoded one by one."""
FIRST, SECOND, NESTED = b"\0", b"\x02\x02", b"\x04\x02\x00"


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


@pytest.fixture
def order(registry: SchemaRegistry) -> int:
    registry.add("item", ITEM, "PROTOBUF")
    return registry.add("orders-value", ORDER, "PROTOBUF", [("shop/item.proto", "item", 1)])[0]


def values_of(source: tm.Protobuf) -> Any:
    return Decoders.of(source, None, ["orders"]).value


def decoded(source: tm.Protobuf, contents: list[bytes | None], headers: Any = None) -> tuple[list[Any], dict[int, str]]:
    found = values_of(source)(contents, headers)
    return found.values.to_pylist(), dict(found.errors)


@pytest.mark.parametrize("times", [1, MANY])
def test_a_record_names_its_schema_and_its_message(registry: SchemaRegistry, order: int, times: int) -> None:
    other, _ = registry.add("others", EVENT, "PROTOBUF")
    avro, _ = registry.add("avro", '"string"')
    broken, _ = registry.add("broken", "message {", "PROTOBUF")
    body = tagged(1, 5) + tagged(2, tagged(1, b"x"))
    contents = [
        prefix(order) + FIRST + body,
        prefix(order) + b"\x02\x00" + body,
        prefix(order) + NESTED + tagged(1, 6) + tagged(9, b"q"),
        prefix(other) + FIRST + tagged(1, 7) + tagged(5, b"z"),
        None,
        prefix(order) + FIRST,
        prefix(order) + SECOND + tagged(1, b"p"),
        prefix(order) + b"\x02\x0a",
        prefix(order),
        prefix(order) + b"\x01",
        prefix(order) + FIRST + b"\x08",
        prefix(order + 99) + FIRST,
        prefix(avro) + FIRST,
        prefix(broken) + FIRST,
        b"\x01",
    ]
    found, errors = decoded(tm.Protobuf(registry.url, message="shop.Order"), contents * times)
    nothing = {"id": 0, "item": None, "at": None}
    alive: list[Any] = [{**nothing, "id": 5, "item": {"sku": "x"}}] * 2
    alive += [{**nothing, "id": 6}, {**nothing, "id": 7}, None, nothing]
    assert found == [*alive, *[None] * (len(contents) - len(alive))] * times
    said = [
        f"the value is a shop.Payment of schema {order}, not a shop.Order",
        f"schema {order} can't be read: it has no message with the indexes [5]",
        indexes.UNREADABLE,
        indexes.UNREADABLE,
        "id: the bytes end within a number",
        f"schema {order + 99} is unknown to the registry",
        f"schema {avro} is not Protobuf but AVRO",
        f"schema {broken} can't be read: ",
        "starts with 01 instead of the magic byte 0: the value is not in the registry's framing",
    ]
    last = [errors[at] for at in range(len(contents) * (times - 1) + len(alive), len(contents) * times)]
    assert [error[: len(expected)] for error, expected in zip(last, said, strict=True)] == said
    assert len(errors) == len(said) * times


def test_what_cant_be_read_is_named_by_subject_and_version(registry: SchemaRegistry) -> None:
    first, _ = registry.add("orders-value", 'syntax = "proto3"; message Order { string id = 1; }', "PROTOBUF")
    registry.add("orders-value", EVENT, "PROTOBUF")
    found, errors = decoded(tm.Protobuf(registry.url), [prefix(first) + FIRST + tagged(1, b"x")])
    expected = (
        f"schema {first} (orders-value version 1) can't be read by version 2: field id: string can't be read as int64"
    )
    assert (found, errors) == ([None], {0: expected})


def test_the_ids_and_indexes_may_be_in_headers(registry: SchemaRegistry, order: int) -> None:
    guid = guid_header(registry.guid(order))
    headers = [prefix(order) + FIRST, guid + NESTED, prefix(order) + SECOND, prefix(order), guid + b"\x05"]
    listed = pa.array([[{"key": "__value_schema_id", "value": header}] for header in headers], raw.HEADERS)
    found, errors = decoded(tm.Protobuf(registry.url, ids="headers"), [tagged(1, 5)] * len(headers), listed)
    assert [value and value["id"] for value in found] == [5, 5, None, None, None]
    assert errors == {
        2: f"the value is a shop.Payment of schema {order}, not a shop.Order",
        3: indexes.UNREADABLE,
        4: indexes.UNREADABLE,
    }


def test_a_schema_that_appears_later_is_learned(registry: SchemaRegistry, order: int) -> None:
    decoder = values_of(tm.Protobuf(registry.url))
    assert isinstance(decoder, RegisteredProtobuf)
    assert decoder.version == 0
    decoder([prefix(order) + FIRST, prefix(order) + NESTED])
    assert decoder.version == 2
    assert set(decoder.programs) == {(order, (0,)), (order, (1, 0))}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\0\x08", ((0,), 1)),
        (b"\x02\x00", ((0,), 2)),
        (b"\x02\x04\x08", ((2,), 2)),
        (b"\x04\x02\x80\x01", ((1, 64), 4)),
        (b"", None),
        (b"\x01", None),
        (b"\x04\x02", None),
        (b"\xca\x01" + b"\0" * 101, None),
        (b"\x80" * 11, None),
    ],
)
def test_message_indexes(content: bytes, found: tuple[indexes.Indexes, int] | None) -> None:
    (places, rows, sizes), *_ = indexes.split(pa.array([content], pa.binary()))
    assert rows.tolist() == [0]
    if found is None:
        assert places is None
        with pytest.raises(Dead):
            indexes.parse(content)
    else:
        assert indexes.parse(content) == found
        assert (places, sizes.tolist()) == (found[0], [found[1]])
    if found and max(found[0]) < 64 and content[:1] != b"\x02":
        assert content.startswith(indexes.encoded(found[0]))


def test_a_proto_file_with_imports_in_the_folders_above(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "item.proto").write_text(ITEM)
    (folder / "order.proto").write_text(ORDER)
    source = tm.Protobuf(schema=str(folder / "order.proto"), message="shop.Order")
    assert decoded(source, [tagged(1, 5), b"", None, b"\x08"]) == (
        [{"id": 5, "item": None, "at": None}, {"id": 0, "item": None, "at": None}, None, None],
        {3: "id: the bytes end within a number"},
    )
    imported = tm.Protobuf(schema=str(folder / "order.proto"), message="shop.Item")
    assert decoded(imported, [tagged(1, b"x")]) == ([{"sku": "x"}], {})
    only = tm.Protobuf(schema=str(folder / "item.proto"))
    assert decoded(only, [tagged(1, b"x")]) == ([{"sku": "x"}], {})


def test_a_descriptor_set_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = compiler.compiled(ORDER, (("shop/item.proto", ITEM),))
    monkeypatch.setattr("tallymark.formats.protobuf.compiler.find_spec", lambda _: None)
    whole = tmp_path / "orders.desc"
    whole.write_bytes(content)
    assert decoded(tm.Protobuf(schema=str(whole), message="Payment"), [tagged(1, b"p")]) == ([{"id": "p"}], {})
    files = descriptor_pb2.FileDescriptorSet.FromString(content)
    part = descriptor_pb2.FileDescriptorSet(file=[file for file in files.file if not file.name.startswith("google")])
    whole.write_bytes(part.SerializeToString())
    assert decoded(tm.Protobuf(schema=str(whole), message="Payment"), [b""]) == ([{"id": ""}], {})
    whole.write_bytes(descriptor_pb2.FileDescriptorSet(file=files.file[-1:]).SerializeToString())
    with pytest.raises(BadInput, match=r"it lacks shop/item.proto, which it imports; write it with --include_imports"):
        values_of(tm.Protobuf(schema=str(whole), message="Payment"))


@pytest.mark.parametrize(
    ("name", "content", "message", "said"),
    [
        ("a.proto", ORDER, None, "shop/item.proto: File not found."),
        ("a.proto", 'syntax = "proto3"; message A {', None, "a.proto:1:"),
        ("a.proto", EVENT.replace("Order", "A") + " message B { }", None, "it has the messages A, B: name one with"),
        ("a.proto", EVENT, "Nothing", "it has no messages Nothing, but the message Order"),
        ("a.proto", 'syntax = "proto3";', None, "it has no messages: name one"),
        ("a.proto", 'syntax = "proto3"; message A { A a = 1; int32 x = 2; }', None, "message A contains itself"),
        ("a.desc", "text", None, "it is not a FileDescriptorSet"),
        ("a.desc", "", None, "it is not a FileDescriptorSet"),
    ],
)
def test_a_schema_that_can_not_be_used_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str, message: str | None, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(BadInput) as refused:
        values_of(tm.Protobuf(schema=str(path), message=message))
    assert f"Protobuf(schema='{path}') can't be used: {said}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "topics", "said"),
    [
        ({}, ["orders", "others"], "Protobuf() of several topics needs schema= or subject="),
        ({}, ["nothing"], "has no schema for subject nothing-value: register one"),
        ({"subject": "avro"}, ["orders"], "subject avro is not Protobuf but AVRO"),
        (
            {"message": "shop.Nothing"},
            ["orders"],
            "subject orders-value can't be used: it has no messages shop.Nothing",
        ),
    ],
)
def test_what_a_registry_does_not_have_is_refused_at_the_start(
    registry: SchemaRegistry, order: int, options: Mapping[str, Any], topics: list[str], said: str
) -> None:
    registry.add("avro", '"string"')
    with pytest.raises(BadInput) as refused:
        Decoders.of(tm.Protobuf(registry.url, **options), None, topics)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Protobuf() needs registry= or schema="),
        ({"registry": "http://r", "ids": "both"}, "Protobuf(ids='both') is not known"),
        ({"schema": __file__, "ids": "headers"}, "subject=, ids='headers' and register= need registry="),
        ({"schema": __file__, "subject": "x"}, "subject=, ids='headers' and register= need registry="),
        ({"schema": __file__, "register": True}, "register= need registry="),
        ({"registry": "http://r", "register": True}, "Protobuf(register=True) needs schema="),
        ({"schema": "/no/such/file.proto"}, "there is no such file"),
    ],
)
def test_declarations_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        tm.Protobuf(**options)
    assert said in str(refused.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.formats.protobuf.compiler.find_spec", lambda _: None)
    path = tmp_path / "a.proto"
    path.write_text(EVENT.replace("more", "other"))
    with pytest.raises(BadInput, match=r"pip install 'tallymark\[protobuf\]'"):
        values_of(tm.Protobuf(schema=str(path)))


@pytest.mark.parametrize("name", ["../outside.proto", "/etc/outside.proto", "a\\b.proto", "", "a/../../b.proto"])
def test_imports_are_not_written_elsewhere(name: str) -> None:
    with pytest.raises(SchemaInvalid, match="is no relative path"):
        compiler.compiled(EVENT, ((name, ITEM),))


def test_a_folder_does_not_replace_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpc_tools").mkdir()
    for name in ("__init__.py", "protoc.py"):
        (tmp_path / "grpc_tools" / name).write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert compiler.compiled(EVENT.replace("more", "again"), (("schema.proto", ITEM),))


def test_a_compiler_that_is_too_slow_does_not_make_records_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.formats.protobuf.compiler.SECONDS", 0.0)
    with pytest.raises(Unreachable, match="the compiler did not end within 0 seconds"):
        compiler.compiled(EVENT.replace("more", "slow"))


def test_threads_may_compile_at_the_same_time() -> None:
    found: list[bytes] = []
    texts = [EVENT.replace("more", f"m{at}") for at in range(4)]
    threads = [threading.Thread(target=lambda text=text: found.append(compiler.compiled(text))) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4


def test_schemas_of_connectors_need_no_reference(registry: SchemaRegistry) -> None:
    text = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
    message Row { int32 id = 1 [(confluent.field_meta) = { doc: "x" }]; confluent.type.Decimal price = 2; }"""
    id, _ = registry.add("orders-value", text, "PROTOBUF")
    found, errors = decoded(tm.Protobuf(registry.url), [prefix(id) + FIRST + tagged(2, tagged(3, 2))])
    assert not errors
    assert found == [{"id": 0, "price": {"value": b"", "precision": 0, "scale": 2}}]


def test_records_are_shown(registry: SchemaRegistry, order: int) -> None:
    from tallymark.formats.registry import Schemas

    schemas = Schemas.of(tm.Registry(registry.url))
    body = tagged(1, 5) + tagged(3, tagged(1, 0))
    content = {"id": 5, "item": None, "at": "1970-01-01T00:00:00+00:00"}
    header = [("__value_schema_id", prefix(order) + FIRST)]
    assert shown(schemas, None, prefix(order) + FIRST + body, ()) == (None, Shown(order, content, message="shop.Order"))
    assert shown(schemas, None, body, header) == (None, Shown(order, content, message="shop.Order"))
    assert shown(schemas, prefix(order) + SECOND, None, ()) == (Shown(order, {"id": ""}, message="shop.Payment"), None)
    (_, dead), (_, unknown) = (shown(schemas, None, prefix(order) + after, ()) for after in (b"\0\x08", b"\x02\x63"))
    assert dead is not None
    assert dead.error == "id: the bytes end within a number"
    assert unknown is not None
    assert str(unknown.error).startswith(f"schema {order} can't be shown: it has no message with the indexes")
