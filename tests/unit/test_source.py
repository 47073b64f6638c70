"""Settings of the source are checked at once; the reason of a dead value is a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark import Bytes, Json, Kafka
from tallymark.errors import BadInput
from tallymark.formats.json import explain

SCHEMA = Json("id BIGINT, at TIMESTAMP")


@pytest.mark.parametrize(
    ("topics", "names"),
    [("orders", ("orders",)), (["orders", "clicks"], ("clicks", "orders")), (("a", "a"), ("a",))],
)
def test_topics_are_one_or_several_each_once(topics: Any, names: tuple[str, ...]) -> None:
    source = Kafka("localhost:9092", topics)
    assert source.topic_names == names
    assert source.value == Bytes()


@pytest.mark.parametrize("topics", ["", [], [""], [None], ["orders", 5]])
def test_a_source_without_a_topic_is_refused(topics: Any) -> None:
    with pytest.raises(BadInput, match="needs a topic, such as"):
        Kafka("localhost:9092", topics)


@pytest.mark.parametrize("brokers", ["", "  "])
def test_a_source_without_a_broker_is_refused(brokers: str) -> None:
    with pytest.raises(BadInput, match="the address of a broker is missing"):
        Kafka(brokers, "orders")


@pytest.mark.parametrize(
    "name", ["enable.auto.commit", "isolation.level", "auto.offset.reset", "group.id", "enable.auto.offset.store"]
)
def test_settings_that_would_break_the_promise_are_refused_by_name(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} can't be set: "):
        Kafka("localhost:9092", "orders", settings={name: "true"})
    assert Kafka("localhost:9092", "orders", settings={"session.timeout.ms": 6000}).settings


@pytest.mark.parametrize("schema", ["", " \n"])
def test_json_without_a_schema_is_refused(schema: str) -> None:
    with pytest.raises(BadInput, match="needs a schema string"):
        Json(schema)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"id":1', "not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        (b'{"id":1} x', "not JSON: Extra data: line 1 column 10 (char 9)"),
        (b'{"id":NaN}', "not JSON: NaN is not a number"),
        (b'{"id":"\xff"}', "not UTF-8: invalid start byte at byte 7"),
        (b"null", "not a JSON object but null"),
        (b"17", "not a JSON object but a number"),
        (b'"x"', "not a JSON object but a string"),
        (b"true", "not a JSON object but a boolean"),
        (b"[]", "not a JSON object but an array"),
        (b'{"id":"one"}', "id: 'one' does not fit BIGINT"),
        (b'{"id":' + b"1" * 5000 + b"}", f"id: {'1' * 60}... does not fit BIGINT"),
        (b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_dead_value_is_explained_in_one_line(value: bytes, words: str) -> None:
    said = explain(SCHEMA.schema, value)
    assert said.startswith(words)
    assert "\n" not in said
