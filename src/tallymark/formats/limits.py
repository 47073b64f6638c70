"""Limits of JSON values that Arrow does not check: nesting, lengths of numbers, and constants such as NaN.

``is_doubtful`` checks many values at once and may suspect valid values; the other functions check one value exactly.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.formats import fields

DEEPEST = 200
"""Maximum nesting of objects and arrays. Far beyond it Python exceeds its stack, sooner if the call stack is deep."""
IN_NUMBERS = b".eE+-"
DIGITS = bytes.maketrans(b"123456789" + IN_NUMBERS, b"0" * 14)
APART = 31
"""Distance in bytes between the samples of the first search for numbers with too many digits."""
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
CONSTANT = re.compile(rb"[:\[,]\s*-?(?:NaN|Inf(?:inity)?)\s*[,}\]]")
"""Constants that Arrow accepts as numbers, but JSON does not."""
Signs = npt.NDArray[np.uint8]


def is_doubtful(values: pa.Array, text: pa.Buffer, signs: Signs, longest: int) -> bool:
    """Whether any value may exceed a limit. ``text`` has all values, one per line; ``signs`` are its bytes."""
    return bool(
        not signs.min()
        or ((_holds(b"NaN", signs) or _holds(b"Inf", signs)) and CONSTANT.search(text))
        or (longest > DEEPEST and any(_may_be_deep(values, signs, sign) for sign in "[{"))
        or (longest > fields.LONGEST and _may_hold_long_numbers(signs))
    )


def is_deep(value: bytes) -> bool:
    """Whether objects and arrays are nested more deeply than Python can parse at any depth of the caller."""
    if value.count(b"[") + value.count(b"{") <= DEEPEST:
        return False
    steps = _outside_strings(value).translate(STEPS, NO_BRACKETS)
    return bool(np.frombuffer(steps, np.int8).cumsum(dtype=np.int64).max(initial=0) > DEEPEST)


def has_long_number(value: bytes) -> bool:
    """Whether a number has too many digits."""
    if len(value) - len(value.translate(None, b"0123456789")) <= fields.LONGEST:
        return False
    return b"0" * (fields.LONGEST + 1) in _outside_strings(value).translate(DIGITS, IN_NUMBERS)


def _holds(word: bytes, signs: Signs) -> bool:
    at = np.flatnonzero(signs[: 1 - len(word)] == word[0])
    return len(at) > 0 and bool(np.all([signs[at + n] == sign for n, sign in enumerate(word)], axis=0).any())


def _may_hold_long_numbers(signs: Signs) -> bool:
    """Whether there may be numbers with too many digits.

    First checks samples at fixed distances, all of which are digits in such a number and hardly ever in other values.
    """
    if b"0" * (fields.LONGEST // APART) not in signs[::APART].tobytes().translate(DIGITS):
        return False
    return b"0" * fields.LONGEST in signs.tobytes().translate(DIGITS)


def _may_be_deep(values: pa.Array, signs: Signs, sign: str) -> bool:
    """Whether any value has many of these brackets.

    First counts over all values, which is faster and usually sufficient.
    """
    others = len(values) - 1 if sign == "{" else 0
    if np.count_nonzero(signs == ord(sign)) - others <= DEEPEST // 2:
        return False
    return bool(pc.max(pc.count_substring(values, sign)).as_py() > DEEPEST // 2)


def _outside_strings(value: bytes) -> bytes:
    """Remove strings. Uses no regular expression, which takes quadratic time for an unclosed string."""
    return b'"'.join(value.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
