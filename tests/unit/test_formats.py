"""Values are decoded in bulk or one by one with the same result, and keep their order."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark import Json
from tallymark.errors import BadInput
from tallymark.formats.decoders import BytesDecoder
from tallymark.formats.json import FEW, JsonDecoder
from tests.support import json_values as corpus

ORDERS = Json("id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP")
MANY = FEW + 1


def order(number: int) -> bytes:
    return json.dumps({"id": number, "customer": f"c{number}", "amount": 0.5, "at": "2026-01-31T12:00:00Z"}).encode()


def ids(decoder: JsonDecoder, values: list[bytes | None]) -> list[int | str | None]:
    decoded = decoder(values)
    rows = decoded.values.to_pylist()
    return [decoded.errors.get(at, row and row["id"]) for at, row in enumerate(rows)]


@given(st.lists(st.sampled_from([None, *corpus.NESTED_VALUES[:80]]), max_size=20))
def test_every_value_stays_in_its_place(values: list[bytes | None]) -> None:
    decoder = JsonDecoder(Json(corpus.NESTED))
    alone = [decoder([value]) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tallymark.formats.json.FEW", 1)
        together = decoder(values)
    assert repr(together.values.to_pylist()) == repr([one.values[0].as_py() for one in alone])
    assert together.errors == {at: one.errors[0] for at, one in enumerate(alone) if one.errors}


@pytest.mark.parametrize(
    "odd",
    [
        [b'{"id":1}{"id":2}', b""],
        [b'{"id":1} {"id":2}', b" "],
        [b'{"id":1}\n{"id":2}', b"\x00"],
        [b'{"id":1}\r{"id":2}', b'{"id":3}\x00'],
        [b'{"x":[{}', b"{}]}"],
        [b'{"x":"}', b'{"}'],
    ],
)
def test_values_that_make_up_for_each_other_die_both(odd: list[bytes]) -> None:
    found = ids(JsonDecoder(ORDERS), [*map(order, range(MANY)), *odd, *map(order, range(MANY))])
    assert found[:MANY] == found[MANY + 2 :] == list(range(MANY))
    assert all(isinstance(why, str) for why in found[MANY : MANY + 2])


def test_a_batch_is_parsed_at_once_and_a_bad_value_costs_only_its_neighbours() -> None:
    values: list[bytes | None] = [order(number) for number in range(2000)]
    decoder = JsonDecoder(ORDERS)
    assert decoder(values).values.num_chunks == 1
    values[777] = b"bad"
    decoded = decoder(values)
    assert max(len(chunk) for chunk in decoded.values.chunks) == 250
    assert decoded.errors == {777: "not JSON: Expecting value: line 1 column 1 (char 0)"}


@pytest.mark.parametrize(
    "at",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31T14:00:00.000000+02:00",
        "2026-01-31 12:00:00",
        "2026-01-31T12:00:00.000000999Z",
    ],
)
def test_the_common_spellings_of_a_time_are_parsed_at_once(at: str) -> None:
    decoded = JsonDecoder(ORDERS)([json.dumps({"at": at}).encode()] * MANY)
    assert decoded.values.num_chunks == 1
    assert {str(row["at"]) for row in decoded.values.to_pylist()} == {"2026-01-31 12:00:00+00:00"}


@pytest.mark.parametrize(
    "kind", ["ARRAY<DOUBLE>", "STRUCT<x: STRING>", "DECIMAL(5, 2)", "DATE", "TIMESTAMP_NTZ", "BYTE"]
)
def test_these_types_are_parsed_at_once(kind: str) -> None:
    assert JsonDecoder(Json(f"id BIGINT, a {kind}"))([b'{"id":1}'] * MANY).values.num_chunks == 1


def test_a_record_without_a_value_is_neither_dead_nor_decoded() -> None:
    decoder = JsonDecoder(ORDERS)
    assert ids(decoder, [None, order(1), None, order(2)]) == [None, 1, None, 2]
    assert ids(decoder, [None, *map(order, range(MANY)), None]) == [None, *range(MANY), None]
    assert decoder([None, None]).values.null_count == 2
    assert len(decoder([]).values) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b' \n{"id":x}', "not JSON: Expecting value: line 2 column 7 (char 8)"),
        (b"\xef\xbb\xbf{}", "not JSON: Unexpected UTF-8 BOM: line 1 column 1 (char 0)"),
        (b"[]", "not a JSON object but an array"),
        (b"1.5", "not a JSON object but a number"),
        (b'{"id":"\xff"}', "not UTF-8: invalid start byte at byte 7"),
        (b'{"id":"1"}', "id: '1' does not fit BIGINT"),
        (b'{"id":true}', "id: true does not fit BIGINT"),
        (b'{"amount":1e400}', "amount: 1e400 does not fit DOUBLE"),
        (b'{"at":"12:30"}', "at: '12:30' does not fit TIMESTAMP"),
        (b'{"at":{"a":1}}', "at: an object does not fit TIMESTAMP"),
        (b'{"id":1,"z":' + b"7" * 1001 + b"}", "a number has more than 1000 digits"),
        pytest.param(b'{"z":' + b"[" * 200 + b"]" * 200 + b"}", "nested too deeply", id="deep"),
        pytest.param(b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply", id="very deep"),
    ],
)
def test_a_dead_value_says_why_in_the_words_of_its_letter(value: bytes, words: str) -> None:
    for values in ([value], [order(1), value], [*map(order, range(MANY)), value]):
        assert JsonDecoder(ORDERS)(values).errors == {len(values) - 1: words}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"price": "123456789012345.678"}, "price: '123456789012345.678' does not fit DECIMAL(10,2)"),
        ({"tiny": 128}, "tiny: 128 does not fit TINYINT"),
        ({"items": [{"price": 1}, None, {"price": "x"}]}, "items[2].price: 'x' does not fit DECIMAL(10,2)"),
        ({"items": {}}, "items: an object does not fit ARRAY"),
        ({"items": [[]]}, "items[0]: an array does not fit STRUCT"),
        ({"days": {"a": None, "b": "2026"}}, "days.b: '2026' does not fit DATE"),
        ({"days": {"k" * 100: 1}}, f"days.{'k' * 60}...: 1 does not fit DATE"),
        ({"text": "fine", "price": "9" * 100}, f"price: '{'9' * 60}...' does not fit DECIMAL(10,2)"),
    ],
)
def test_a_dead_value_names_the_field(value: dict[str, Any], words: str) -> None:
    schema = (
        "text STRING, price DECIMAL(10, 2), tiny TINYINT, items ARRAY<STRUCT<price: DECIMAL(10, 2)>>, "
        "days MAP<STRING, DATE>"
    )
    assert JsonDecoder(Json(schema))([json.dumps(value).encode()]).errors == {0: words}


def test_a_long_batch_of_large_values_is_no_more_than_arrow_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.formats.json.PIECE_BYTES", 50_000)
    decoded = JsonDecoder(ORDERS)([order(number) for number in range(2000)])
    assert [len(chunk) for chunk in decoded.values.chunks] == [667, 667, 666]
    assert [row["id"] for row in decoded.values.to_pylist()] == list(range(2000))


def test_bytes_are_left_as_they_are() -> None:
    decoder = BytesDecoder()
    values: list[Any] = [b"\xff\x00", b"", None, b'{"id":1}']
    decoded = decoder(values)
    assert decoder.type == decoded.values.type == pa.binary()
    assert decoded.values.to_pylist() == values
    assert not decoded.errors


def test_the_type_is_known_before_the_first_value() -> None:
    decoder = JsonDecoder(ORDERS)
    assert decoder.type == decoder([]).values.type == decoder([order(1)]).values.type
    assert [field.name for field in decoder.type] == ["id", "customer", "amount", "at"]
    with pytest.raises(BadInput, match="Json schema 'id NUMBER' is not valid"):
        JsonDecoder(Json("id NUMBER"))


@pytest.mark.parametrize(
    "deep", [b"[" * 201 + b"]" * 201, b'{"a":' * 201 + b"1" + b"}" * 201], ids=["arrays", "objects"]
)
def test_a_value_that_is_nested_too_deeply_is_found_among_many(deep: bytes) -> None:
    good = b'{"id": 1, "z": [{"a": 1}]}'
    found = JsonDecoder(Json("id BIGINT"))([*[good] * 250, b'{"id": 2, "z": ' + deep + b"}", *[good] * 250])
    assert found.errors == {250: "nested too deeply"}


@pytest.mark.parametrize("place", range(0, 65, 4))
def test_a_number_that_is_too_long_is_found_among_many(place: int) -> None:
    good, long = b'{"id": 1, "z": "' + b"x" * 1001 + b'"}', b'{"id": 2, "z": ' + b" " * place + b"7" * 1001 + b"}"
    found = JsonDecoder(Json("id BIGINT"))([*[good] * 250, long, *[good] * 250])
    assert list(found.errors) == [250]


@pytest.mark.parametrize(
    "tiny", [b"1e-6000000", b'"1e-6000000"', b'"1\\u0065-6000000"', b'"1e-\\u0036000000"', b"0e-1000"]
)
def test_a_decimal_that_arrow_can_not_scale_is_found_among_many(tiny: bytes) -> None:
    good = b'{"p": 1.5, "many": [{"p": 2}]}'
    for odd in (b'{"p":' + tiny + b"}", b'{"many": [{"p": ' + tiny + b"}]}"):
        found = JsonDecoder(Json("p DECIMAL(5, 2), many ARRAY<STRUCT<p: DECIMAL(5, 2)>>"))(
            [*[good] * 250, odd, *[good] * 250]
        )
        assert list(found.errors) == [250]


def test_many_numbers_are_not_taken_for_a_long_one() -> None:
    numbers = b'{"id": 1, "z": [' + b",".join([b"1234567890" * 99] * 20) + b"]}"
    found = JsonDecoder(Json("id BIGINT"))([numbers] * 250)
    assert not found.errors
    assert [len(chunk) for chunk in found.values.chunks] == [125, 125]


@pytest.mark.parametrize("odd", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"])
def test_what_is_not_utf_8_is_found_among_many(odd: bytes) -> None:
    found = JsonDecoder(ORDERS)([*map(order, range(250)), b'{"customer": "' + odd + b'"}', *map(order, range(250))])
    assert list(found.errors) == [250]
    assert found.errors[250].startswith("not UTF-8: ")


@pytest.mark.parametrize("word", [b"NaN", b"-Infinity", b"Inf"])
def test_a_name_that_arrow_takes_for_a_number_is_none(word: bytes) -> None:
    named = b'{"customer": "NaN, Infinity: I Need Nan", "amount": 1}'
    found = JsonDecoder(ORDERS)([*[named] * 250, b'{"amount": ' + word + b"}", *[named] * 250])
    alone = JsonDecoder(ORDERS)([b'{"amount": ' + word + b"}"])
    assert list(found.errors) == [250 for _ in alone.errors]
    assert found.values[250].as_py() == alone.values[0].as_py()
