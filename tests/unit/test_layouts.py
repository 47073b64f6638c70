"""Layouts of topics whose tables follow their schemas: what one topic gets must fit what the others have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import tallymark as tm
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import TableSpec
from tallymark.errors import BadInput
from tallymark.formats.decoders import Decoders
from tallymark.spark.layouts import Layout, Layouts

ID = pa.field("id", pa.int64())
SPEC = TableSpec("orders", evolve="follow")


class Growing:
    """Decoders of a topic with these versions of its columns."""

    key = None

    def __init__(self, topic: str, versions: Sequence[pa.Schema]) -> None:
        self.topic, self.versions = topic, versions

    @property
    def schema(self) -> pa.Schema:
        return self.versions[0]

    @property
    def origin(self) -> str:
        return f"{self.topic}-value"

    @property
    def is_outgrown(self) -> bool:
        return len(self.versions) > 1

    def grown(self) -> Growing:
        return Growing(self.topic, self.versions[1:])


def layouts(versions: Mapping[str, Sequence[pa.Schema]]) -> Layouts:
    def new(decoders: Decoders, tables: Sequence[Any], _: str | None) -> Layout:
        schemas = {spec.name: decoders.schema for spec, _ in tables}  # type: ignore[attr-defined]
        shaper: Any = SimpleNamespace(tables=tables, schemas=schemas)
        return Layout(decoders, shaper, None)  # type: ignore[arg-type]

    def decoders(topic: str | None) -> Any:
        assert topic is not None
        return Growing(topic, versions[topic])

    source = tm.Kafka("localhost:9092", list(versions), value=tm.Avro("http://localhost:1"))
    made = Layouts(source, [(SPEC, lambda records: records)], decoders, new)
    made.begin(lambda: list(versions))
    return made


def spans(*topics: str) -> list[Span]:
    return [Span(Partition(topic, 0), 0, 1) for topic in topics]


def test_columns_that_two_topics_get_must_have_the_same_type() -> None:
    """The table has the column of the first topic then: nothing else would compare the types."""
    first, second = pa.schema([ID]), pa.schema([ID, pa.field("note", pa.string())])
    other = pa.schema([ID, pa.field("note", pa.int64())])
    found = layouts({"a": [first, second], "b": [first, other]})
    assert found.follow(spans("a"))
    before = found.of("b")
    with pytest.raises(BadInput, match=r"^table orders would get other columns from some topics than from others"):
        found.follow(spans("b"))
    assert found.of("b") is before
    assert found.schemas()["orders"].equals(second)


def test_a_topic_gets_columns_that_others_lack_or_have() -> None:
    first = pa.schema([ID])
    second = pa.schema([ID, pa.field("note", pa.string())])
    found = layouts({"a": [first, second], "b": [first, second], "c": [first]})
    assert found.follow(spans("a"))
    assert found.follow(spans("a", "b", "c"))
    assert not found.follow(spans("a", "b", "c"))
    assert found.schemas()["orders"].equals(second)
