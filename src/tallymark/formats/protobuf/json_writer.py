"""Encodes JSON as Struct, Value or ListValue, which contain each other. All numbers of these are doubles."""

from __future__ import annotations

import json
import math
from typing import Any

from tallymark.formats.fields import LONGEST, Pairs, Real, Whole, parse, shown
from tallymark.formats.misfit import Misfit, cut
from tallymark.formats.protobuf.json_text import number_text
from tallymark.formats.protobuf.json_tree import ARRAY, DOUBLE, KEY, NULL, NUMBER, OBJECT, TEXT, TRUTH, VALUE
from tallymark.formats.protobuf.leaves import Output, Write, tag, write_text

ITEMS = 1
"""The only field of a Struct and of a ListValue."""


def tree_of(value: Any) -> Any:
    """Return a value as ``fields.parse`` does: text is JSON, and everything else is written as JSON first."""
    try:
        return parse((value if isinstance(value, str) else json.dumps(value, allow_nan=False)).encode())
    except (ValueError, TypeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Misfit(f"JSON: {why}", value) from None


def write_object(tree: Any, out: Output) -> None:
    """Append the fields of a Struct."""
    if not isinstance(tree, Pairs):
        raise Misfit(f"{shown(tree)} does not fit google.protobuf.Struct, which is a JSON object")
    # Of equal names the last one counts.
    for name, item in dict(tree).items():
        entry = out.inside()
        try:
            entry += tag(KEY, "string")
            write_text(name, entry)
            entry += tag(VALUE, "message")
            _nested(write_value, item, entry)
        except Misfit as misfit:
            raise misfit.within(f".{cut(name)}") from None
        out += tag(ITEMS, "message")
        out.add(entry)


def write_array(tree: Any, out: Output) -> None:
    """Append the fields of a ListValue."""
    if not isinstance(tree, list):
        raise Misfit(f"{shown(tree)} does not fit google.protobuf.ListValue, which is a JSON array")
    for at, item in enumerate(tree):
        out += tag(ITEMS, "message")
        try:
            _nested(write_value, item, out)
        except Misfit as misfit:
            raise misfit.within(f"[{at}]") from None


def write_value(tree: Any, out: Output) -> None:
    """Append the field of a Value."""
    if isinstance(tree, (Pairs, list)):
        is_object = isinstance(tree, Pairs)
        out += tag(OBJECT if is_object else ARRAY, "message")
        _nested(write_object if is_object else write_array, tree, out)
    elif isinstance(tree, (Whole, Real)):
        out += tag(DOUBLE, "double") + NUMBER.pack(_number(tree))
    elif isinstance(tree, str):
        out += tag(TEXT, "string")
        write_text(tree, out)
    else:
        out += tag(NULL if tree is None else TRUTH, "bool") + bytes([bool(tree)])


WRITERS: dict[str, Write] = {"struct": write_object, "value": write_value, "list": write_array}


def _nested(write: Write, tree: Any, out: Output) -> None:
    inner = out.inside()
    write(tree, inner)
    out.add(inner)


def _number(text: Whole | Real) -> float:
    number = float(text)
    # Decoders write a double with as few digits as it needs, and zeros after them.
    if math.isinf(number) or (isinstance(text, Whole) and not _is_exact(text, number)):
        raise Misfit(f"{cut(str(text))} does not fit a number of google.protobuf.Value, which is a double")
    return number


def _is_exact(text: Whole, number: float) -> bool:
    return len(text) <= LONGEST and (int(text) == int(number) or text == number_text(number))
