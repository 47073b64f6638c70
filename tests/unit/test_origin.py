"""A reader's schema follows its subject only as far as the registry is sure of the latest version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import tallymark as tm
from tallymark.errors import Unreachable
from tallymark.formats.decoders import Decoders
from tallymark.formats.framing import prefix
from tests.support.registry import Reply, SchemaRegistry

BUSY = Reply.error(503, 50301, "starting")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def order(*fields: str) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": f, "type": "int"} for f in fields]})


@pytest.mark.parametrize("answers", [[], [BUSY]], ids=["places", "no places"])
def test_new_fields_stay_unread_while_a_node_of_the_registry_does_not_know_their_version(
    registry: SchemaRegistry, answers: list[Any]
) -> None:
    """Also if the registry can't say for a moment that it has a later version."""
    first, version = registry.add("orders-value", order("id"))
    decoders = Decoders.of(tm.Avro(registry.url), None, ["orders"], patience=0.0)
    later, _ = registry.add("orders-value", order("id", "note"))
    decoders.value([prefix(later) + b"\x02\x04"])
    stale = {"subject": "orders-value", "version": version, "id": first, "schema": order("id")}
    registry.behaviour.replies += [Reply(200, json.dumps(stale).encode()), *answers]
    with pytest.raises(Unreachable):
        decoders.grown()
    assert decoders.is_outgrown
    grown = decoders.grown()
    assert grown is not None
    assert not grown.is_outgrown
    assert grown.value([prefix(later) + b"\x02\x04"]).values.to_pylist() == [{"id": 1, "note": 2}]


def test_an_older_registry_can_be_followed_too(registry: SchemaRegistry) -> None:
    registry.behaviour.places = False
    registry.add("orders-value", order("id"))
    decoders = Decoders.of(tm.Avro(registry.url), None, ["orders"], patience=0.0)
    later, _ = registry.add("orders-value", order("id", "note"))
    decoders.value([prefix(later) + b"\x02\x04"])
    grown = decoders.grown()
    assert grown is not None
    assert [field.name for field in grown.value.type] == ["id", "note"]
