"""Records are decoded equally at once, one by one, and by another implementation; dead ones don't disturb others."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.formats import bodies as pieces
from tallymark.formats.avro import values
from tallymark.formats.avro.bulk import BulkDecoder
from tallymark.formats.avro.cursor import BEFORE, Cursor, padded
from tallymark.formats.avro.decoder import decode
from tallymark.formats.avro.projection import Incompatible, Program, projection
from tallymark.formats.avro.schema import SchemaInvalid, parse
from tests.support.avro_schemas import (
    WHOLE,
    Dead,
    Schemas,
    encoded,
    evolved,
    in_column,
    kind_of,
    text_of,
    value_of,
    varint,
)

seeds = st.randoms(use_true_random=True)


def program(writer: Any, reader: Any = None) -> Program:
    return projection(parse(text_of(writer)), parse(text_of(writer if reader is None else reader)))


def record(*fields: Any) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "R", "fields": named}


def one_by_one(steps: Program, bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """The values, None for dead ones, and the errors."""
    read = values.decoder(steps.root, steps.skips)
    found: list[Any] = []
    errors = {}
    for at, body in enumerate(bodies):
        try:
            found.append(read(body))
        except values.Dead as error:
            found.append(None)
            errors[at] = str(error)
    return found, errors


def at_once(steps: Program, bodies: Sequence[bytes]) -> tuple[pa.Array, list[bool]]:
    sizes = np.array([len(body) for body in bodies], np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    content = padded(np.frombuffer(b"".join(bodies), np.uint8))
    found, refused = BulkDecoder(steps)(content, starts + BEFORE, ends + BEFORE)
    found.validate(full=True)
    return found, refused.tolist()


def check_equal(steps: Program, bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """Check that both decoders agree, and return what they found."""
    found, errors = one_by_one(steps, bodies)
    expected = pa.array(found, steps.type).to_pylist()
    together, refused = at_once(steps, bodies)
    for at, value in enumerate(together.to_pylist()):
        if refused[at]:
            assert at in errors or may_be_refused(steps), (at, bodies[at].hex())
        else:
            assert at not in errors, (errors[at], bodies[at].hex())
            assert repr(value) == repr(expected[at])
    whole = decode(steps, pa.array(list(bodies) * 30, pa.binary()))
    assert repr(whole.values.to_pylist()) == repr(expected * 30)
    assert whole.errors == {at + n * len(bodies): why for at, why in errors.items() for n in range(30)}
    assert whole.values.type == steps.type
    return found, errors


def may_be_refused(steps: Program) -> bool:
    """Whether some valid values are decoded one by one: long arrays, equal keys and long decimals."""
    return any(word in steps.as_json() for word in ('"array"', '"map"', '"decimal"'))


@given(seeds)
@settings(max_examples=150)
def test_both_decoders_read_what_was_written(random: Random) -> None:
    schema = Schemas(random).record()
    given_values = [value_of(random, schema) for _ in range(8)]
    bodies = [encoded(random, schema, value) for value in given_values]
    steps = program(schema)
    found, errors = check_equal(steps, bodies)
    for at, value in enumerate(given_values):
        try:
            expected = pa.array([in_column(schema, value)], steps.type)
        except Dead:
            assert at in errors
        else:
            assert at not in errors, errors[at]
            assert repr(pa.array([found[at]], steps.type).to_pylist()) == repr(expected.to_pylist())


@given(seeds)
@settings(max_examples=100)
def test_both_decoders_agree_on_any_bytes(random: Random) -> None:
    schema = Schemas(random).record()
    bodies = [broken(random, encoded(random, schema, value_of(random, schema))) for _ in range(12)]
    try:
        steps = program(schema, evolved(Schemas(random, count=1000), schema))
    except (Incompatible, SchemaInvalid):
        steps = program(schema)
    check_equal(steps, bodies)


def broken(random: Random, body: bytes) -> bytes:
    content = bytearray(body)
    for _ in range(random.randint(0, 2)):
        at = random.randint(0, len(content))
        noise = random.choice((b"", b"\x01", b"\xff", b"\x80" * 9, random.randbytes(3)))
        content[at : at + random.randint(0, 4)] = noise
    return bytes(content)


@given(seeds)
@settings(max_examples=150)
def test_evolved_schemas_read_what_fastavro_reads(random: Random) -> None:
    schemas = Schemas(random, logical=False)
    writer = schemas.record()
    reader = evolved(schemas, writer, missing=False)
    bodies = [encoded(random, writer, value_of(random, writer)) for _ in range(5)]
    try:
        steps = program(writer, reader)
    except (Incompatible, SchemaInvalid):
        return
    found, errors = check_equal(steps, bodies)
    for at, body in enumerate(bodies):
        try:
            theirs = fastavro.schemaless_reader(io.BytesIO(body), writer, reader, return_record_name=False)
        except UnicodeDecodeError:
            # The bytes were read as the string branch of a union that has a branch for bytes, too.
            continue
        except fastavro.read.SchemaResolutionError:
            assert at in errors
        else:
            assert at not in errors, errors[at]
            assert is_same(reader, found[at], theirs), (found[at], theirs)


def is_same(schema: Any, ours: Any, theirs: Any) -> bool:
    """Whether a value of a column is what fastavro returns, which does not tell the branch of a union."""
    kind = kind_of(schema)
    if kind == "union":
        others = [branch for branch in schema if branch != "null"]
        if ours is None or theirs is None:
            return ours is theirs
        if len(others) == 1:
            return is_same(others[0], ours, theirs)
        chosen = [(part, value) for part, value in zip(others, ours, strict=True) if value is not None]
        return len(chosen) == 1 and is_same(*chosen[0], theirs)
    if kind == "record":
        parts = zip(schema["fields"], ours, strict=True)
        return all(is_same(part["type"], value, theirs[part["name"]]) for part, value in parts)
    if kind == "array":
        return len(ours) == len(theirs) and all(
            is_same(schema["items"], *pair) for pair in zip(ours, theirs, strict=True)
        )
    if kind == "map":
        return [key for key, _ in ours] == list(theirs) and all(
            is_same(schema["values"], value, theirs[key]) for key, value in ours
        )
    if kind in ("float", "double"):
        form = np.float32 if kind == "float" else np.float64
        return repr(form(ours)) == repr(form(np.int64(theirs) if isinstance(theirs, int) else theirs))
    if kind in ("bytes", "fixed") and isinstance(theirs, str):
        # A text that was promoted, or the JSON of a default.
        return ours in (theirs.encode(), theirs.encode("latin-1", "replace"))
    # Of the branches of a union, fastavro takes the first that fits, even if another is the type that was written.
    if kind in WHOLE and isinstance(theirs, float):
        return theirs in (float(ours), float(np.int64(ours).astype(np.float32)))
    if kind == "string" and isinstance(theirs, bytes):
        return bool(ours.encode() == theirs)
    return repr(ours) == repr(theirs)


TWO_DIGITS = {"type": "bytes", "logicalType": "decimal", "precision": 2}


@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [
        ("double", b"\0" * 7, "f: the bytes end within a DOUBLE"),
        ("double", b"\0" * 9, "1 bytes follow the value"),
        ("long", b"", "f: the bytes end within a LONG"),
        ("long", b"\xff" * 9 + b"\x02", "f: a LONG takes more than 64 bits"),
        ("int", varint(1 << 31), "f: 2147483648 does not fit INT"),
        ("boolean", b"\x02", "f: 2 is no BOOLEAN"),
        ("string", b"\x04a", "f: the bytes end within a STRING"),
        ("string", b"\x01", "f: a STRING has a negative length"),
        ("string", b"\x02\xff", "f: not UTF-8: invalid start byte at byte 0"),
        (["null", "long"], b"\x04", "f: the UNION has no branch 2"),
        ({"type": "array", "items": "long"}, b"\x06\x02\x02", "f: the bytes end within an ARRAY of 3 items"),
        ({"type": "array", "items": "float"}, b"\x04" + b"\0" * 7, "f[1]: the bytes end within a FLOAT"),
        ({"type": "map", "values": "boolean"}, b"\x02\x02k\x05\0", "f.k: 5 is no BOOLEAN"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "f: the ENUM has no symbol 1"),
        ({"type": "int", "logicalType": "date"}, varint(2932897), "f: 2932897 is no DATE"),
        ({"type": "long", "logicalType": "time-micros"}, b"\x01", "f: -1 is no TIME"),
        ({"type": "string", "logicalType": "uuid"}, b"\x02x", "f: 'x' is no UUID"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\x02\x64",
            "f: a number does not fit DECIMAL(2,0)",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\0", "f: a DECIMAL has no bytes"),
    ],
)
def test_an_error_names_the_field_and_what_is_wrong(kind: Any, body: bytes, error: str) -> None:
    steps = program(record(("f", kind)))
    _, errors = check_equal(steps, [body])
    assert errors == {0: error}


def test_the_path_of_an_error_leads_through_arrays() -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "price", "type": "double"}]}
    steps = program(record(("items", {"type": "array", "items": item})))
    decoded = decode(steps, [b"\x06" + b"\0" * 20])
    assert decoded.errors == {0: "items[2].price: the bytes end within a DOUBLE"}
    assert decoded.values.to_pylist() == [None]


def test_a_branch_that_can_not_be_read_kills_only_its_records() -> None:
    steps = program(record(("f", ["long", "string"])), record(("f", "long")))
    found, errors = check_equal(steps, [b"\0\x02", b"\x02\x02x", b"\0\x04"])
    assert (found, errors) == ([(1,), None, (2,)], {1: "f: string can't be read as long"})


def test_a_symbol_that_the_reader_does_not_know_kills_only_its_records() -> None:
    old, new = ({"type": "enum", "name": "E", "symbols": list(symbols)} for symbols in ("AB", "A"))
    found, errors = check_equal(program(record(("f", old)), record(("f", new))), [b"\0", b"\x02"])
    assert (found, errors) == ([("A",), None], {1: "f: the reader's ENUM has no symbol B"})


def test_the_last_of_equal_keys_counts() -> None:
    steps = program(record(("f", {"type": "map", "values": "int"})))
    found, errors = check_equal(steps, [b"\x06\x02a\x02\x02b\x04\x02a\x06\0", b"\x02\x02a\x02\0"])
    assert (found, errors) == ([([("a", 3), ("b", 2)],), ([("a", 1)],)], {})


def test_blocks_with_and_without_sizes_are_decoded_at_once() -> None:
    kinds: list[Any] = [{"type": "array", "items": "int"}, {"type": "map", "values": "string"}]
    steps = program(record(*zip("am", kinds, strict=True)))
    bodies = [b"\x03\x04\x02\x04\x02\x06\0" + b"\x01\x08\x02k\x02v\x04\x02l\0\x02m\0\0", b"\0\0"]
    found, refused = at_once(steps, bodies)
    assert refused == [False, False]
    assert found.to_pylist() == [
        {"a": [1, 2, 3], "m": [("k", "v"), ("l", ""), ("m", "")]},
        {"a": [], "m": []},
    ]


def test_a_few_long_arrays_among_short_ones() -> None:
    steps = program(record(("f", {"type": "array", "items": "int"}), ("g", "string")))
    lengths = [3] * 100 + [5000] + [0] * 100 + [40]
    bodies = [(varint(n) + b"\x02" * n if n else b"") + b"\0\x02x" for n in lengths]
    decoded = decode(steps, bodies)
    assert not decoded.errors
    assert [len(value["f"]) for value in decoded.values.to_pylist()] == lengths


@pytest.mark.parametrize(("kind", "item"), [("double", bytes(8)), ("null", b"")])
def test_a_record_with_very_many_blocks_is_decoded_by_itself(
    monkeypatch: pytest.MonkeyPatch, kind: str, item: bytes
) -> None:
    """A round for each block would take a hundred times as long."""
    picked: list[int] = []
    pick = Cursor.pick

    def counted(self: Cursor, rows: Any) -> Cursor:
        picked.append(len(rows))
        return pick(self, rows)

    monkeypatch.setattr(Cursor, "pick", counted)
    writer = record(("f", {"type": "array", "items": kind}), ("id", "long"))
    steps = program(writer, record(("id", "long")) if kind == "null" else writer)
    bodies = [(varint(1) + item) * 2_000 + b"\0\x02", b"\0\x04"]
    found, refused = at_once(steps, bodies)
    assert (refused, found.to_pylist()[1]["id"]) == ([True, False], 2)
    assert len(picked) < 200
    check_equal(steps, bodies)


LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "n", "type": "long"}],
}


def test_a_recursive_type_can_be_skipped_up_to_a_depth() -> None:
    steps = program(record(("node", LIST), ("id", "long")), record(("id", "long")))
    assert not steps.in_bulk
    decoded = decode(steps, [b"\x02" * depth + b"\0" + b"\x08" * (depth + 1) + b"\x0e" for depth in (0, 3, 199, 200)])
    assert decoded.values.to_pylist() == [{"id": 7}] * 3 + [None]
    assert decoded.errors == {3: "node: records are nested more than 200 levels deep"}


@pytest.mark.parametrize(("length", "fate"), [(30, True), (200, True), (201, False)])
def test_many_nested_records_are_skipped_up_to_the_same_depth_in_any_batch(length: int, fate: bool) -> None:
    fields: list[Any] = [("r0", record(("x", "int")) | {"name": "R0"})]
    fields += [(f"r{n}", record(("inner", f"R{n - 1}")) | {"name": f"R{n}"}) for n in range(1, length)]
    steps = program(record(*fields, ("id", "long")), record(("id", "long")))
    for count in (1, 100):
        decoded = decode(steps, [b"\x02" * (length + 1)] * count)
        assert decoded.values.to_pylist() == [{"id": 1} if fate else None] * count


def test_items_that_take_no_bytes_are_limited() -> None:
    steps = program(record(("f", {"type": "array", "items": "null"})))
    assert not steps.in_bulk
    decoded = decode(steps, [b"\x06\0", varint(1 << 40) + b"\0"])
    assert decoded.values.to_pylist() == [{"f": [None] * 3}, None]
    assert "items without bytes" in decoded.errors[1]


def test_skipped_items_that_take_no_bytes() -> None:
    kind = {"type": "array", "items": "null"}
    steps = program(record(("f", kind), ("id", "long")), record(("id", "long")))
    assert steps.in_bulk
    found, errors = check_equal(steps, [varint(1 << 40) + b"\0\x02", b"\x05\0\0\x04", b"\x05"])
    assert found == [(1,), (2,), None]
    assert list(errors) == [2]


def test_values_that_are_no_records() -> None:
    assert decode(program("long"), [b"\x02", b""]).values.to_pylist() == [1, None]
    assert decode(program(["null", "string"]), [b"\0", b"\x02\x02x"]).values.to_pylist() == [None, "x"]
    assert program(["null", "string"]).is_nullable
    assert not program("string").is_nullable


def test_slices_and_chunks_keep_their_order() -> None:
    steps = program(record(("n", "long")))
    bodies = pa.array([varint(n) if n % 7 else b"" for n in range(70_000)], pa.binary())
    in_chunks = pa.chunked_array([bodies[5:300], bodies[300:302], bodies[302:]])
    for given_bodies in (in_chunks, bodies[5:], bodies[5:].cast(pa.large_binary())):
        decoded = decode(steps, given_bodies)
        assert decoded.values.to_pylist() == [{"n": n} if n % 7 else None for n in range(5, 70_000)]
        assert list(decoded.errors) == [at for at in range(70_000 - 5) if (at + 5) % 7 == 0]


def test_no_bodies() -> None:
    steps = program(record(("n", "long")))
    assert len(decode(steps, []).values) == 0
    assert len(decode(steps, pa.chunked_array([], pa.binary())).values) == 0


def test_a_program_is_json_and_small_batches_are_decoded_as_large_ones() -> None:
    steps = program(record(("n", "long")))
    assert json.loads(steps.as_json())["root"]["read"] == "record"
    for count in (pieces.FEW, pieces.FEW + 1):
        assert decode(steps, [b"\x02"] * count).values.to_pylist() == [{"n": 1}] * count
