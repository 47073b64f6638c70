"""The file that ``tallymark init`` writes reads what the registry has for the topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tallymark as tm
from tallymark.cli.toml.build import load_pipeline
from tallymark.cli.toml.starter import Answers, starter
from tests.support.command import in_process
from tests.support.registry import SchemaRegistry

SHOP = 'syntax = "proto3"; message Order { int64 id = 1; } message Payment { int64 id = 1; }'


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def test_protobuf_is_read_with_the_latest_schema(registry: SchemaRegistry, tmp_path: Path) -> None:
    registry.add("orders-value", SHOP, "PROTOBUF")
    registry.add("orders-key", SHOP, "PROTOBUF")
    file = tmp_path / "new.toml"
    made = in_process("init", file, "--topic", "orders", "--registry", registry.url)
    assert f"{registry.url} has schemas for the values and the keys of orders" in made.stdout, made
    source = load_pipeline(file).setup.source
    assert (source.value, source.key) == (tm.Protobuf(registry.url), tm.Protobuf(registry.url))


def test_json_behind_an_id_has_the_columns_of_the_records(tmp_path: Path) -> None:
    url, file = "http://registry:8081", tmp_path / "new.toml"
    answers = Answers(str(file), topic="orders", values=(b'{"id": 1}',), registry=url, framed=True)
    file.write_text(starter(answers))
    assert load_pipeline(file).setup.source.value == tm.Json("id BIGINT", framed=True, registry=url)


def test_a_json_schema_without_records_is_said(registry: SchemaRegistry, tmp_path: Path) -> None:
    registry.add("orders-value", "{}", "JSON")
    file = tmp_path / "new.toml"
    made = in_process("init", file, "--topic", "orders", "--registry", registry.url)
    assert f"{registry.url} has a JSON Schema for the values of orders; the columns are an example" in made.stdout, made
    assert "framed = true" in file.read_text()


def test_a_message_without_a_column_is_refused(registry: SchemaRegistry, tmp_path: Path) -> None:
    registry.add("orders-value", 'syntax = "proto3"; message Node { Node next = 1; int64 id = 2; }', "PROTOBUF")
    refused = in_process("init", tmp_path / "new.toml", "--topic", "orders", "--registry", registry.url)
    assert refused.returncode == 2
    assert "subject orders-value can't be used: message Node contains itself, so it has no column" in refused.stderr
