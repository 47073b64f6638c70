"""Detects JSON numbers that Spark's parser must not see, or that overflow without an error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.formats import fields

STRICT = {
    "allowSingleQuotes": "false",
    # NaN and Infinity are not JSON, and not every database can hold them.
    "allowNonNumericNumbers": "false",
    "maxStringLen": str((1 << 31) - 1),
}
TEXTS = "MAP<STRING, STRING>"
SHORT = 900
"""A text of fewer characters can't exceed fields.LONGEST, whatever its exponent is."""
MAYBE_ODD = (
    r"[:,\[\s]-?[0-9.]++[eE][+-]?[0-9]{4}"
    r'|"[0-9.,+-]*+(?:[eE][0-9,+-]{4,}+"|[eE]?[0-9,+-]*+(?:\\u[01aAfF]|\p{Nd}))'
    rf'|"[0-9.,+-]{{{SHORT}}}'
)
"""Matches everything that Java accepts as a decimal and fields.DECIMAL does not: long exponents, digits of other
scripts, plain or escaped, and long text. It may match more.
"""
EXPONENT = r"[eE](?<=[0-9.,][eE])[0-9,+-]{4}"
"""A fast check for long exponents, so that few values need the full check."""
DECIMAL = rf"^(?:{fields.DECIMAL.pattern})\z"
LONG_EXPONENT = r"(?<![0-9.eE+-])-?[0-9][0-9.]*+[eE][+-]?[0-9]{4,}+"
REAL = r"(?<![0-9.eE+-])-?[0-9]++[.eE][0-9.eE+-]*+"


def only(leaf: type[T.DataType], kind: T.DataType) -> T.DataType | None:
    """The parts of a type that have the type ``leaf``, each as text; None if there are none."""
    if isinstance(kind, T.StructType):
        parts = [T.StructField(f.name, part) for f in kind if (part := only(leaf, f.dataType)) is not None]
        return T.StructType(parts) if parts else None
    if isinstance(kind, T.ArrayType):
        element = only(leaf, kind.elementType)
        return None if element is None else T.ArrayType(element)
    if isinstance(kind, T.MapType):
        value = only(leaf, kind.valueType)
        return None if value is None else T.MapType(kind.keyType, value)
    return T.StringType() if isinstance(kind, leaf) else None


def has_odd_decimals(json: Column, decimals: T.DataType) -> Column:
    """Whether a DECIMAL does not match fields.DECIMAL.

    The parser must not see such a value: Java computes the power of ten of an exponent, and takes quadratic time for
    the digits of a text.
    """
    is_ascii = F.length(json) == F.octet_length(json)
    doubt = json.rlike(EXPONENT) | json.contains("\\u") | ~is_ascii | (F.length(json) > SHORT)
    return F.when(doubt & json.rlike(MAYBE_ODD), _is_odd(_quoted(json, LONG_EXPONENT), decimals)).otherwise(
        F.lit(False)
    )


def has_overflow(json: Column, strings: T.StructType) -> Column:
    """Whether a number in place of a STRING, or within its object or array, is too large for a double.

    Spark writes "Infinity" for such a number, but keeps a number in quotes. So the overflow shows as a difference in
    the count of "Infinity" between the JSON and the JSON with its numbers in quotes.
    """
    infinities = [
        F.regexp_count(F.to_json(F.from_json(text, strings, STRICT)), F.lit("Infinity"))
        for text in (json, _quoted(json, REAL))
    ]
    return infinities[0] != infinities[1]


def _is_odd(text: Column, kind: T.DataType) -> Column:
    """Whether a DECIMAL in this text is odd, or the text does not have the type.

    All values of a repeated field are checked, because the parser reads each.
    """
    if isinstance(kind, T.StructType):
        pairs = F.map_entries(F.from_json(text, TEXTS, STRICT))
        odd = F.exists(pairs, lambda pair: _is_odd_field(pair, kind.fields))
    elif isinstance(kind, T.MapType):
        odd = F.exists(F.map_values(F.from_json(text, TEXTS, STRICT)), lambda one: _is_odd(one, kind.valueType))
    elif isinstance(kind, T.ArrayType):
        items = F.from_json(text, "ARRAY<STRING>", STRICT)
        odd = F.exists(items, lambda one: _is_odd(one, kind.elementType))
    else:
        odd = (F.length(text) > fields.LONGEST) | ~F.replace(text, F.lit(","), F.lit("")).rlike(DECIMAL)
    return text.isNotNull() & F.coalesce(odd, F.lit(True))


def _is_odd_field(pair: Column, known: Sequence[T.StructField]) -> Column:
    return reduce(or_, [(pair["key"] == field.name) & _is_odd(pair["value"], field.dataType) for field in known])


def _quoted(json: Column, number: str) -> Column:
    """The JSON with each matching number in quotes. Strings stay, except for escaped quotes and backslashes."""
    plain = F.replace(F.replace(json, F.lit("\\\\"), F.lit("__")), F.lit('\\"'), F.lit("__"))
    pieces = F.transform(
        F.split(plain, '"'),
        lambda piece, at: F.when(at % 2 == 0, F.regexp_replace(piece, number, '"$0"')).otherwise(piece),
    )
    return F.array_join(pieces, '"')
