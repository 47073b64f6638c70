"""The JSON text of a Struct, a Value or a ListValue. Numbers are written as RFC 8785 specifies, as in JavaScript."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

MOST_DIGITS = 21
"""Digits before the point up to which a number is written without an exponent."""
LEAST_EXPONENT = -7


class NotFinite(ValueError):
    """JSON has no such number."""


def json_text(value: Any) -> str:
    """Write a value without white space."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(name)}:{json_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return number_text(value)
    return "null" if value is None else "true" if value else "false"


def number_text(number: float) -> str:
    """Write a number with the fewest digits that are read as the same number."""
    if not math.isfinite(number):
        raise NotFinite(f"{number} is no number of JSON")
    if number == 0:
        return "0"
    sign, found, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    all_digits = "".join(map(str, found))
    digits = all_digits.rstrip("0")
    point = len(all_digits) + exponent
    return ("-" if sign else "") + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    """Write digits with the decimal point after so many of them."""
    if len(digits) <= point <= MOST_DIGITS:
        return digits + "0" * (point - len(digits))
    if 0 < point <= MOST_DIGITS:
        return f"{digits[:point]}.{digits[point:]}"
    if LEAST_EXPONENT < point - 1 < 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
