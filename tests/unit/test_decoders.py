"""Keys and values are decoded by their formats, Avro by the schemas that records name."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tallymark import Avro, Bytes, Json, Kafka
from tallymark.core import raw
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.formats import registry as module
from tallymark.formats.decoders import Decoders
from tallymark.service.records import Message, decoded
from tests.support.avro import LATER_ORDER, ORDER, OTHER, encoded, framed, prefix, text
from tests.support.registry import Reply, SchemaRegistry

MANY = 120
"""More values than are decoded one by one."""


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def records(*pairs: tuple[bytes | None, bytes | None], headers: Sequence[Any] = ()) -> pa.Table:
    """Records with these keys and values."""
    letters = [
        DeadLetter(Partition("orders", 0), at, None, key, value, headers[at] if headers else (), None, "")
        for at, (key, value) in enumerate(pairs)
    ]
    return raw.of_letters(letters)


def values(*contents: bytes | None) -> pa.Table:
    return records(*((None, content) for content in contents))


def decode(source: Kafka, found: pa.Table) -> tuple[list[Any], Mapping[int, str]]:
    """The values of the records that are alive, and the errors of the others; services decode the same."""
    decoders = source.decoders()
    table, errors, _ = decoders.table(found)
    alive = raw.leave_out(table, errors.keys())
    messages = [Message(letter) for letter in raw.letters(found, dict.fromkeys(range(found.num_rows), ""))]
    served, letters, _ = decoded(source.decoders(), messages)
    assert served.to_arrow().select(["key", "value"]).equals(alive.select(["key", "value"]))
    assert [(letter.offset, letter.error) for letter in letters] == sorted(errors.items())
    return alive["value"].to_pylist(), errors


def orders(registry: SchemaRegistry, **options: Any) -> Kafka:
    return Kafka("localhost:9092", "orders", value=Avro(registry.url, **options))


@pytest.mark.parametrize("times", [1, MANY])
def test_each_value_is_decoded_by_the_schema_that_it_names(registry: SchemaRegistry, times: int) -> None:
    first, _ = registry.add("orders-value", text(ORDER))
    later, _ = registry.add("orders-value", text(LATER_ORDER))
    contents = [
        framed(later, LATER_ORDER, {"id": 1, "name": None, "amount": 2.5}),
        framed(first, ORDER, {"id": 2, "name": "b"}),
        None,
        framed(later, LATER_ORDER, {"id": 3, "name": "c", "amount": 3.5}),
    ]
    expected = [
        {"id": 1, "name": None, "amount": 2.5},
        {"id": 2, "name": "b", "amount": 1.5},
        None,
        {"id": 3, "name": "c", "amount": 3.5},
    ]
    assert decode(orders(registry), values(*contents * times)) == (expected * times, {})
    asked = [request for request in registry.requests if "/schemas/ids/" in request]
    assert len(asked) == 2, "a schema does not change, so it is asked for once"


@pytest.mark.parametrize("times", [1, MANY])
def test_what_has_no_schema_is_dead_and_the_rest_is_not(registry: SchemaRegistry, times: int) -> None:
    id, _ = registry.add("orders-value", text(ORDER))
    other, _ = registry.add("others-value", text(OTHER))
    proto, _ = registry.add("protos-value", "message X {}", "PROTOBUF")
    broken, _ = registry.add("broken-value", '{"type": "recrd"}')
    good = framed(id, ORDER, {"id": 7, "name": "g"})
    dead = {
        prefix(99) + b"x": "schema 99 is unknown to the registry",
        b'{"id": 7}': "starts with 7b instead of the magic byte 0: the value is not in the registry's framing",
        good[:4]: "has 4 bytes: the registry's framing needs the magic byte 0 and four bytes of an id",
        b"": "has 0 bytes: the registry's framing needs the magic byte 0 and four bytes of an id",
        good[:-1]: "name: the bytes end within a STRING",
        good + b"x": "1 bytes follow the value",
        framed(other, OTHER, {"id": "x"}): "field id: string can't be read as long",
        prefix(proto) + b"\0": f"schema {proto} is not Avro but PROTOBUF",
        prefix(broken) + b"\0": f"schema {broken} can't be read: ",
    }
    alive, errors = decode(orders(registry, subject="orders-value"), values(*[*dead, good] * times))
    assert alive == [{"id": 7, "name": "g"}] * times
    said = [errors[at] for at in sorted(errors)]
    assert len(said) == len(dead) * times
    for sentence, words in zip(said, [*dead.values()] * times, strict=True):
        assert words in sentence


RETYPED = {**ORDER, "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "double"}]}


@pytest.mark.parametrize(
    ("subject", "places", "options", "sentence"),
    [
        ("orders-value", True, {}, "schema 1 (orders-value version 1) can't be read by version 2: field name: "),
        ("others", True, {}, "schema 1 (others version 1) can't be read by orders-value version 1: field name: "),
        (
            "others",
            True,
            {"schema": text(ORDER)},
            "schema 1 (others version 1) can't be read by the reader's schema: ",
        ),
        ("orders-value", False, {}, "schema 1 can't be read by orders-value version 2: field name: "),
    ],
)
def test_what_cant_be_read_is_named_by_subject_and_version(
    registry: SchemaRegistry, subject: str, places: bool, options: dict[str, Any], sentence: str
) -> None:
    registry.behaviour.places = places
    id, _ = registry.add(subject, text(RETYPED))
    registry.add("orders-value", text(ORDER))
    source = orders(registry, **options)
    for _ in range(2):
        (error,) = decode(source, values(framed(id, RETYPED, {"id": 1, "name": 2.5})))[1].values()
        assert error.startswith(sentence), error
        assert error.endswith("field name: double can't be read as string"), error


def test_of_several_versions_that_of_the_own_subject_is_named(registry: SchemaRegistry) -> None:
    for subject in ("a", "orders-value", "z"):
        id, _ = registry.add(subject, text(RETYPED))
    registry.add("orders-value", text(ORDER))
    (error,) = decode(orders(registry), values(framed(id, RETYPED, {"id": 1, "name": 2.5})))[1].values()
    assert "schema 1 (orders-value version 1) can't be read by version 2: " in error


@pytest.mark.parametrize("content", [b"[{}]", b"{}", b'[{"subject": 1, "version": 2}, 3]', b"null"])
def test_an_odd_answer_to_where_a_schema_is_registered_only_shortens_the_sentence(
    registry: SchemaRegistry, content: bytes
) -> None:
    id, _ = registry.add("orders-value", text(RETYPED))
    registry.add("orders-value", text(ORDER))
    decoders = orders(registry).decoders()
    decoders.table(values(framed(2, ORDER, {"id": 1, "name": "a"})))
    known = Reply(200, json.dumps({"schema": text(RETYPED)}).encode())
    registry.behaviour.replies = [known, Reply(200, content)]
    (error,) = decoders.table(values(framed(id, RETYPED, {"id": 1, "name": 2.5})))[1].values()
    assert error == "schema 1 can't be read by orders-value version 2: field name: double can't be read as string"


def test_a_schema_that_is_registered_later_is_learned(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, _ = registry.add("orders-value", text(ORDER))
    decoders = orders(registry).decoders()
    written_later = framed(id + 1, LATER_ORDER, {"id": 2, "name": "b"})
    later = values(framed(id, ORDER, {"id": 1, "name": "a"}), written_later)
    assert decoders.table(later)[1] == {1: f"schema {id + 1} is unknown to the registry"}
    before = decoders.version
    registry.add("orders-value", text(LATER_ORDER))
    assert decoders.table(later)[1], "the registry is not asked for each record"
    then = time.monotonic() + module.AGAIN_SECONDS
    with monkeypatch.context() as patch:
        patch.setattr("tallymark.formats.registry.time.monotonic", lambda: then)
        table, errors, _ = decoders.table(later)
    assert not errors
    assert table["value"].to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert decoders.version == before + 1


def test_the_ids_may_be_in_headers_as_numbers_or_guids(registry: SchemaRegistry) -> None:
    id, _ = registry.add("orders-value", text(ORDER))
    body = encoded(ORDER, {"id": 1, "name": "a"})
    headers = [
        [("__value_schema_id", prefix(id))],
        [("other", b"1"), ("__value_schema_id", b"\1" + bytes.fromhex(registry.guid(id).replace("-", "")))],
        [("__key_schema_id", prefix(id))],
    ]
    found = records((None, body), (None, body), (None, body), headers=headers)
    alive, errors = decode(orders(registry, ids="headers"), found)
    assert alive == [{"id": 1, "name": "a"}] * 2
    assert errors == {2: "the header __value_schema_id is missing: it has the id of the schema"}


def test_keys_have_formats_too(registry: SchemaRegistry) -> None:
    key, _ = registry.add("orders-key", '"string"')
    id, _ = registry.add("orders-value", text(ORDER))
    good_key, good = framed(key, "string", "k1"), framed(id, ORDER, {"id": 1, "name": "a"})
    source = Kafka("localhost:9092", "orders", value=Avro(registry.url), key=Avro(registry.url))
    found = records((good_key, good), (b"k", good), (good_key, b"v"), (b"k", b"v"), (good_key, None), (None, good))
    table, errors, _ = source.decoders().table(found)
    alive = raw.leave_out(table, errors.keys())
    assert alive["key"].to_pylist() == ["k1", "k1", None]
    assert alive["value"].to_pylist() == [{"id": 1, "name": "a"}, None, {"id": 1, "name": "a"}]
    of_key, of_value = "starts with 6b", "starts with 76"
    assert errors[1].startswith(f"key: {of_key}")
    assert errors[2].startswith(of_value)
    assert errors[3].startswith(of_value)
    assert f"; key: {of_key}" in errors[3]
    decode(source, found)


def test_a_key_may_be_json_and_the_value_bytes() -> None:
    source = Kafka("localhost:9092", "orders", value=Bytes(), key=Json("id INT"))
    table, errors, _ = source.decoders().table(records((b'{"id": 1}', b"\xff"), (None, None), (b"x", b"y")))
    assert table["key"].to_pylist()[:2] == [{"id": 1}, None]
    assert table["value"].to_pylist() == [b"\xff", None, b"y"]
    assert list(errors) == [2]


@pytest.mark.parametrize("times", [1, MANY])
def test_framed_json_is_decoded_behind_its_id(times: int) -> None:
    source = Kafka("localhost:9092", "orders", value=Json("id INT", framed=True))
    contents = [prefix(3) + b'{"id": 1}', None, b'{"id": 2}', prefix(4) + b"{", prefix(3) + b'{"id": 5}']
    alive, errors = decode(source, values(*contents * times))
    assert alive == [{"id": 1}, None, {"id": 5}] * times
    assert [errors[at][:16] for at in sorted(errors)] == ["starts with 7b i", "not JSON: Expect"] * times


def test_the_declared_schema_decides_about_the_columns(registry: SchemaRegistry) -> None:
    id, _ = registry.add("orders-value", text(ORDER))
    reader = {**ORDER, "fields": [{"name": "name", "type": "string"}, {"name": "more", "type": "int"}]}
    found = values(framed(id, ORDER, {"id": 1, "name": "a"}))
    assert decode(orders(registry, schema=text(reader)), found) == ([{"name": "a", "more": None}], {})


def test_avro_needs_no_registry() -> None:
    source = Kafka("localhost:9092", "orders", value=Avro(schema=text(ORDER)))
    contents = [encoded(ORDER, {"id": 1, "name": "a"}), b"", None]
    assert decode(source, values(*contents)) == ([{"id": 1, "name": "a"}, None], {1: "id: the bytes end within a LONG"})


def test_a_valid_value_may_be_null() -> None:
    source = Kafka("localhost:9092", "orders", value=Avro(schema='["null", "string"]'))
    assert decode(source, values(b"\0", b"\2\2a", None, b"\7")) == (
        [None, "a", None],
        {3: "the UNION has no branch -4"},
    )


@pytest.mark.parametrize(
    ("options", "topics", "words"),
    [
        ({}, ["orders", "others"], "Avro() of several topics needs schema= or subject="),
        ({}, ["^orders-.*"], "Avro() of several topics needs schema= or subject="),
        ({}, ["nothing"], "has no schema for subject nothing-value: register one"),
        ({"subject": "protos"}, ["orders"], "subject protos is not Avro but PROTOBUF"),
        ({"subject": "loops"}, ["orders"], "subject loops can't be read: record Loop contains itself"),
        ({"schema": '{"type": "x"}'}, ["orders"], "Avro(schema=...) can't be read: "),
    ],
)
def test_what_can_not_be_decoded_is_refused_at_the_start(
    registry: SchemaRegistry, options: Mapping[str, Any], topics: list[str], words: str
) -> None:
    registry.add("protos", "message X {}", "PROTOBUF")
    registry.add("loops", text({"type": "record", "name": "Loop", "fields": [{"name": "x", "type": ["null", "Loop"]}]}))
    with pytest.raises(BadInput) as refused:
        Kafka("localhost:9092", topics, value=Avro(registry.url, **options)).decoders()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_letters_are_explained_by_their_values_and_keys() -> None:
    decoders = Decoders.of(Json("id INT"))
    letters = [
        DeadLetter(Partition("orders", 0), at, None, None, value, (), "t", "old")
        for at, value in enumerate([b"{", b"{}", None])
    ]
    said = [letter.error for letter in decoders.explained(letters, "decodable")]
    assert said[0].startswith("not JSON: ")
    assert said[1:] == ["decodable", "old"]
