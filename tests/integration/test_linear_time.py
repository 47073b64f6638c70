"""The time to process a value is proportional to its size: one hostile record must not block the interpreter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from tallymark import Json
from tallymark.cli.values import pretty
from tallymark.core.arrays import appended, joined
from tallymark.formats.json import JsonDecoder

SCHEMA = (
    "id BIGINT, p DECIMAL(10, 2), x STRING, b BINARY, day DATE, at TIMESTAMP, n TIMESTAMP_NTZ, d DOUBLE, "
    "many ARRAY<STRUCT<x: STRING, at: TIMESTAMP>>, m MAP<STRING, INT>"
)
SMALL, LARGE, HUGE = 10_000, 1_000_000, 10_000_000
"""The small value comes first: in quadratic time the others would take hours to fail."""
PER_BYTE, SLACK = 1e-6, 1.0
"""Seconds: about ten times the usual duration, and less than 10,000 bytes take in quadratic time."""


def inner(size: int) -> str:
    return json.dumps({"name": "value", "text": 'quo"ted\\'}) * (size // 40)


def string(field: str, text: str, end: str = "") -> Callable[[int], bytes]:
    return lambda size: (f'{{"{field}":"' + text * (size // len(text)) + end + '"}').encode()


NASTY: dict[str, Callable[[int], bytes]] = {
    "JSON in JSON, cut off": lambda size: json.dumps({"x": inner(size)}).encode()[: size - 10],
    "brackets in JSON in JSON, cut off": lambda size: json.dumps({"x": '["a"],' * (size // 8)}).encode()[:-4],
    "an unclosed string": lambda size: b'{"x":"' + b"a" * size,
    "many unclosed strings": lambda size: b'{"x":' + b'"\\"[' * (size // 4),
    "quotes alone": lambda size: b'"' * size,
    "backslashes": lambda size: b'{"x":"' + b"\\" * size,
    "escapes": string("x", "\\u00e9\\n\\\\"),
    "lone surrogates": string("x", "\\ud800"),
    "digits for a DECIMAL": string("p", "1"),
    "digits for a DECIMAL, and a letter": string("p", "1", "x"),
    "commas for a DECIMAL": string("p", "1,", "x"),
    "a long fraction": string("p", "1", ".1"),
    "a number of many digits": lambda size: b'{"p":' + b"1" * size + b"}",
    "numbers of many digits": lambda size: b'{"z":[' + (b"1" * 990 + b",") * (size // 991) + b"1]}",
    "a long exponent": lambda size: b'{"d":1e' + b"1" * size + b"}",
    "base64": string("b", "QUJD"),
    "base64, and a letter": string("b", "QUJD", "?"),
    "blanks for BINARY": string("b", " ", "?"),
    "digits for a DATE": string("day", "2026"),
    "blanks for a DATE": string("day", " ", "x"),
    "fractions of a second": lambda size: b'{"at":"2026-01-31T12:00:00.' + b"1" * size + b'\\n\\nx"}',
    "a long zone": lambda size: b'{"at":"2026-01-31T12:00:00' + b"+01:00" * (size // 6) + b'"}',
    "a nested time": lambda size: b'{"many":[{"at":"2026-01-31T12:00:00.' + b"1" * size + b'\\n\\nx"}]}',
    "brackets": lambda size: b'{"z":' + b"[" * size,
    "flat brackets": lambda size: b'{"z":[' + b"[],{}," * (size // 30) + b"1]}",
    "a long name": lambda size: b'{"' + b"a" * size + b'":1}',
    "a long name in a map": lambda size: b'{"m":{"' + b"a" * size + b'":"x"}}',
    "objects for a STRING": lambda size: b'{"x":' + b'{"a":' * 190 + b'"' + b"a" * size + b'"' + b"}" * 190 + b"}",
    "blanks": lambda size: b" " * size + b"x",
    "line breaks": lambda size: b'{"id":1,' + b"\n" * size + b"}}",
    "bytes that are not UTF-8": lambda size: b'{"x":"' + b"\xff" * size,
}


HUGE_TOO = [
    "JSON in JSON, cut off",
    "an unclosed string",
    "digits for a DECIMAL, and a letter",
    "brackets",
    "a long name",
]


def seconds(decode: JsonDecoder, value: bytes) -> float:
    began = time.thread_time()
    decode([value])
    return time.thread_time() - began


@pytest.mark.parametrize("name", NASTY)
def test_a_value_is_decoded_in_linear_time(name: str) -> None:
    decode = JsonDecoder(Json(SCHEMA))
    decode([b'{"z":' + b"[" * 300])  # imports and tables are loaded here
    for size in (SMALL, LARGE, HUGE) if name in HUGE_TOO else (SMALL, LARGE):
        spent = seconds(decode, NASTY[name](size))
        assert spent < SLACK + PER_BYTE * size, f"{size:,} bytes took {spent:.2f} s"


ARRAYS: dict[str, Callable[[int], str]] = {
    "numbers": lambda size: f"[{'1,' * (size // 2)}1]",
    "one number": lambda size: f"[1.{'1' * size}]",
    "one text": lambda size: f'["{"," * size}", 1]',
    "quotes": lambda size: '["' + r"\"" * (size // 2) + '", 1]',
    "backslashes": lambda size: '["' + r"\\" * (size // 2) + '", 1]',
    "objects": lambda size: "[" + '{"a":[1,2]},' * (size // 12) + "1]",
    "brackets": lambda size: f"[{('[' * 900 + ']' * 900 + ',') * (size // 1801)}1]",
    "blanks": lambda size: f"[{' ' * size}]",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_appended_in_linear_time(name: str) -> None:
    for size in (SMALL, LARGE, HUGE):
        text, began = ARRAYS[name](size), time.thread_time()
        (batch,) = joined(pa.chunked_array([[text]]), np.array([True]), 2).to_pylist()
        both = appended(text, text, 2)
        spent = time.thread_time() - began
        assert spent < SLACK + 2 * PER_BYTE * size, f"{size:,} bytes took {spent:.2f} s"
        if size == SMALL:
            assert json.loads(both) == (json.loads(batch) * 2)[-2:] == (json.loads(text) * 2)[-2:]


def test_a_value_that_is_nested_too_deeply_is_shown_as_it_is() -> None:
    deep = b"[" * 100_000
    assert pretty(deep + b"]" * 100_000) == [(deep + b"]" * 100_000).decode()]
