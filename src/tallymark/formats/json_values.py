"""Converts parsed JSON to the values that encoders write: text in base64 to bytes, ISO 8601 to times.

``fields.py`` parses the JSON, and docs/reference/json.md has the forms of types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa

from tallymark.formats.fields import DECIMAL, LONGEST, MISFITS, Pairs, Real, Unfit, Whole, converter
from tallymark.formats.misfit import Misfit

Convert = Callable[[Any], Any]
"""Converts a value, or raises one of MISFITS."""
Out = TypeVar("Out")
NOT_FINITE = ("nan", "inf", "-inf")
_REALS = {"float": converter(pa.float32()), "double": converter(pa.float64())}
_MOMENT = converter(pa.timestamp("us", tz="UTC"))


class JsonParts:
    """The parts of parsed JSON, for encoders that compile a schema; None if a value has no such parts."""

    an_object, a_list = "an object", "an array"

    def fields_of(self, value: Any) -> dict[str, Any] | None:
        return dict(value) if isinstance(value, Pairs) else None

    def entries_of(self, value: Any) -> Collection[tuple[Any, Any]] | None:
        return dict(value).items() if isinstance(value, Pairs) else None

    def items_of(self, value: Any) -> Sequence[Any] | None:
        return value if isinstance(value, list) else None


def converted(convert: Convert, write: Callable[[Any, Out], None], name: str) -> Callable[[Any, Out], None]:
    """Return the function that writes what a value is converted to. Its error shows the JSON."""

    def write_json(value: Any, out: Out) -> None:
        try:
            write(convert(value), out)
        except MISFITS as error:
            raise Misfit(error.why if isinstance(error, Misfit) else name, value) from None

    return write_json


def same(value: Any) -> Any:
    return value


def text(value: Any) -> str:
    # Numbers are parsed as subclasses of str.
    if type(value) is not str:
        raise Unfit
    return value


def real(kind: str) -> Convert:
    """Return the conversion to ``float`` or ``double``. JSON has no number that is not finite: these are text."""
    convert = _REALS[kind]
    return lambda value: float(value) if type(value) is str and value in NOT_FINITE else convert(value)


def decimal(value: Any) -> Decimal:
    if not isinstance(value, (str, Whole, Real)) or len(value) > LONGEST or not DECIMAL.fullmatch(value):
        raise Unfit
    return Decimal(value)


def moment(value: Any) -> datetime:
    found: datetime = _MOMENT(value)
    return found.replace(tzinfo=UTC)
