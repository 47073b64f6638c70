"""The ids of schemas are taken from values and from headers, for many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.raw import HEADERS
from tallymark.formats.framing import Id, Identified, framed, framing_error, guid_header, in_headers, prefix

GUID = "89791762-2336-4186-9674-299b90a802e2"
VALUE, KEY = "__value_schema_id", "__key_schema_id"


def ids_of(found: Identified) -> list[Id | None]:
    return [None if code < 0 else found.ids[code] for code in found.codes]


def headers(*records: Sequence[tuple[str, bytes | None]] | None) -> pa.Array:
    return pa.array(
        [None if one is None else [{"key": name, "value": value} for name, value in one] for one in records], HEADERS
    )


def test_the_id_is_taken_from_the_first_five_bytes() -> None:
    found = framed(
        pa.array([b"\0\0\0\0\7abc", None, b"\0\1\2\3\4", b"\0\0\0\0\7", b"\0\x7f\xff\xff\xffx"], pa.binary())
    )
    assert ids_of(found) == [7, None, 0x01020304, 7, 2**31 - 1]
    assert found.bodies.to_pylist() == [b"abc", None, b"", b"", b"x"]
    assert not found.errors
    assert found.rows_of(found.ids.index(7)).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'{"a": 1}', "starts with 7b instead of the magic byte 0: the value is not in the registry's framing"),
        (b"\1" + UUID(GUID).bytes, "starts with 01 instead of the magic byte 0"),
        (b"\0\0\0\0", "has 4 bytes: the registry's framing needs the magic byte 0 and four bytes of an id"),
        (b"", "has 0 bytes: the registry's framing"),
    ],
)
def test_a_content_without_the_framing_is_an_error_of_its_own(content: bytes, error: str) -> None:
    found = framed(pa.array([b"\0\0\0\0\1a", content, b"\0\0\0\0\2b"], pa.binary()))
    assert ids_of(found) == [1, None, 2]
    assert found.bodies.to_pylist() == [b"a", None, b"b"]
    assert list(found.errors) == [1]
    assert found.errors[1].startswith(error)


def test_nothing_and_tombstones_alone_have_no_ids() -> None:
    for contents in (pa.array([], pa.binary()), pa.array([None, None], pa.binary()), pa.chunked_array([], pa.binary())):
        found = framed(contents)
        assert (found.ids, found.errors, found.bodies.null_count) == ((), {}, len(contents))
        assert len(found.codes) == len(contents)


contents = st.lists(
    st.none() | st.binary(max_size=8) | st.builds(lambda id, body: prefix(id) + body, st.integers(0, 5), st.binary()),
    max_size=30,
)


@given(contents, st.integers(0, 5), st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_many_at_once_are_taken_apart_as_each_alone(
    given_: list[bytes | None], before: int, after: int, kind: pa.DataType
) -> None:
    whole = pa.array([b"before"] * before + given_ + [b"after"] * after, kind)
    found = framed(whole.slice(before, len(given_)))
    for row, content in enumerate(given_):
        good = content is not None and len(content) >= 5 and content[0] == 0
        assert found.bodies[row].as_py() == (content[5:] if good and content else None)
        assert ids_of(found)[row] == (int.from_bytes(content[1:5], signed=True) if good and content else None)
        assert found.errors.get(row) == (None if good or content is None else framing_error(content))


def test_chunks_are_one() -> None:
    found = framed(pa.chunked_array([[b"\0\0\0\0\1a"], [b"?"], [b"\0\0\0\0\1b"]]))
    assert ids_of(found) == [1, None, 1]
    assert list(found.errors) == [1]


def test_the_id_is_taken_from_a_header_as_a_number_or_a_guid() -> None:
    given = headers(
        [(VALUE, prefix(7))], [("other", b"x"), (VALUE, guid_header(GUID))], [(KEY, prefix(8)), (VALUE, prefix(7))]
    )
    bodies = pa.array([b"a", b"b", b"c"], pa.binary())
    found = in_headers(bodies, given)
    assert ids_of(found) == [7, GUID, 7]
    assert found.bodies is bodies
    assert ids_of(in_headers(bodies.slice(2), given.slice(2), "key")) == [8]


def test_a_tombstone_has_no_id_and_ids_are_signed_as_in_values() -> None:
    given = headers([(VALUE, prefix(7))], [(VALUE, b"\0\xff\xff\xff\xff")])
    assert ids_of(in_headers(pa.array([None, b"a"], pa.binary()), given)) == [None, -1]
    assert ids_of(framed(pa.array([None, b"\0\xff\xff\xff\xff"], pa.binary()))) == [None, -1]


def test_the_last_header_of_a_name_counts_and_what_follows_the_id_is_ignored() -> None:
    given = headers([(VALUE, b"?"), (VALUE, prefix(7) + b"\2\4"), ("z", None)], [(VALUE, guid_header(GUID) + b"\0")])
    assert ids_of(in_headers(pa.array([b"a", b"b"], pa.binary()), given)) == [7, GUID]


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (None, "the header __value_schema_id is missing: it has the id of the schema"),
        ([(KEY, prefix(7))], "the header __value_schema_id is missing"),
        ([(VALUE, None)], "the header __value_schema_id is missing"),
        ([(VALUE, prefix(7)), (VALUE, None)], "the header __value_schema_id is missing"),
        ([(VALUE, b"")], "the header __value_schema_id starts with nothing instead of the byte 0 and four bytes"),
        ([(VALUE, b"7")], "the header __value_schema_id starts with 37 instead of the byte 0"),
        ([(VALUE, prefix(7)[:4])], "the header __value_schema_id has 4 bytes instead of the byte 0"),
        ([(VALUE, guid_header(GUID)[:16])], "the header __value_schema_id has 16 bytes instead of the byte 0"),
    ],
)
def test_a_record_without_such_a_header_is_an_error_unless_it_is_a_tombstone(
    header: Sequence[tuple[str, bytes | None]] | None, error: str
) -> None:
    bodies = pa.array([b"a", None, b"c"], pa.binary())
    found = in_headers(bodies, headers(header, header, [(VALUE, prefix(7))]))
    assert ids_of(found) == [None, None, 7]
    assert found.bodies.to_pylist() == [None, None, b"c"]
    assert list(found.errors) == [0]
    assert found.errors[0].startswith(error)


lists = st.lists(st.tuples(st.sampled_from([VALUE, KEY, "x"]), st.sampled_from([None, b"", prefix(1), prefix(2)])))


@given(st.lists(st.none() | lists, max_size=12), st.integers(0, 3), st.booleans())
def test_headers_of_many_are_read_as_those_of_each(
    given_: list[list[tuple[str, bytes | None]] | None], before: int, chunked: bool
) -> None:
    whole = headers(*([[(VALUE, prefix(9))]] * before), *given_).slice(before)
    bodies = pa.array([b"a"] * len(given_), pa.binary())
    parts = pa.chunked_array([whole.slice(0, 1), whole.slice(1)]) if chunked else whole
    expected = []
    for record in given_:
        named = [value for name, value in record or () if name == VALUE]
        expected.append(int.from_bytes(named[-1][1:]) if named and named[-1] else None)
    assert ids_of(in_headers(bodies, parts)) == expected


def test_codes_are_those_of_numpy() -> None:
    found = framed(pa.array([prefix(id % 3) for id in range(300)], pa.binary()))
    assert found.codes.dtype == np.int32
    assert sorted(found.ids) == [0, 1, 2]
    assert sum(len(found.rows_of(at)) for at in range(3)) == 300
