"""Decodes Kafka values into Arrow without Spark, as docs/reference/json.md specifies.

Arrow parses many values at once. Values that it can't parse, or may parse differently, are split into smaller and
smaller pieces; the last pieces are decoded value by value (``formats/fields.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymark.core.retry import threads
from tallymark.formats import fields
from tallymark.formats import schema as ddl
from tallymark.formats.decoder import Contents, Decoded
from tallymark.formats.json_lines import LineParser
from tallymark.formats.limits import has_long_number, is_deep, is_doubtful
from tallymark.formats.unnamed import Rowset, finder
from tallymark.formats.value import Json

JSON_SPACE = b" \t\r\n"
JSON_NAMES = {
    list: "an array",
    str: "a string",
    bool: "a boolean",
    fields.Whole: "a number",
    fields.Real: "a number",
    type(None): "null",
}
TINY_DECIMAL = (
    r"""[":,\[\s][0-9.+-]*(?:[eE]-[0-9]{2,}[",}\]\s]|[.][0-9]{30})"""
    r"""|"[0-9.+-]*[eE]?[0-9+-]*\\u00[2-6]"""
)
"""Matches decimals far below 1, as a number or a string, escaped or not, and possibly other values.

For such a decimal, Arrow reads the power of ten beyond the end of a table, which may crash the process.
"""
PIECE_BYTES = 2 << 20
"""Bytes that Arrow parses at once; larger pieces are not faster."""
PIECES = 8
FEW = 100
"""Number of values up to which decoding them individually is about as fast."""

CLOCK = rf"^{fields.DAY}[ T]\d\d:\d\d:\d\d(\.\d+)?"
ZONED = CLOCK + r"(Z|[+-](0\d|1[0-7]):[0-5]\d)$"
SECONDS_LENGTH = len("2026-01-01 00:00:00")
SURPLUS_DIGITS = r"(\.\d{6})\d+"
FIRST_DAY, LAST_DAY = -719162, 2932896
"""Years 1 to 9999 in days since 1970."""
DAY_MICROS = 86_400_000_000


class JsonDecoder:
    """Decodes JSON objects of one schema."""

    is_nullable, header, learns, version = False, None, False, 0

    def __init__(self, source: Json, *, finds: bool = False) -> None:
        """``finds``: look for fields that the schema does not name."""
        self._schema = source.schema
        self.finds = finds
        self._objects = _Objects(source.schema, finds=finds)
        self.type: pa.DataType = self._objects.type
        self.in_bulk = self._objects.bulk

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:  # noqa: ARG002
        if isinstance(contents, (pa.Array, pa.ChunkedArray)):
            given = contents
        elif len(contents) <= FEW:
            return self._few(contents)
        else:
            given = pa.array(contents, pa.binary())
        dead: list[int] = []
        unnamed = Rowset()
        chunks = list(_chunks(given.drop_null() if given.null_count else given))
        firsts = list(accumulate((len(chunk) for chunk in chunks), initial=0))
        # Arrow's parser releases the GIL.
        each = threads().map if len(chunks) > 1 else map
        pieces: list[pa.Array] = []
        for part in each(self._objects.decoded, chunks, firsts):
            pieces += part.pieces
            dead += part.dead
            unnamed.add_rows(part.unnamed.found())
        found, rows = pa.chunked_array(pieces, self.type), unnamed.found()
        if given.null_count:
            places = pc.indices_nonzero(given.is_valid()).to_numpy()
            dead = places[dead].tolist() if dead else []
            rows = {name: places[at].astype(np.int64) for name, at in rows.items()}
            found = _spread(found, given.is_valid())
        return Decoded(found, {at: explain(self._schema, given[at].as_py()) for at in dead}, rows)

    def _few(self, values: Sequence[bytes | None]) -> Decoded:
        part = Part()
        found = self._objects.one_by_one(values, 0, part)
        errors = {at: explain(self._schema, values[at] or b"") for at in part.dead}
        return Decoded(found, errors, part.unnamed.found())


def explain(schema: str, value: bytes) -> str:
    """Return the error of a dead value for its dead letter. It names the field that does not fit."""
    decoded = parsed(value)
    if isinstance(decoded, str):
        return decoded
    kind, convert = _fields(schema)
    try:
        convert(decoded)
    except fields.MISFITS:
        return fields.misfit(decoded, kind)
    return too_long(value)


def parsed(value: bytes) -> fields.Pairs | str:
    """Return the object that a value is, or why it is none."""
    if is_deep(value):
        return "nested too deeply"
    try:
        decoded = fields.parse(value)
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    return decoded if isinstance(decoded, fields.Pairs) else f"not a JSON object but {JSON_NAMES[type(decoded)]}"


def too_long(value: bytes) -> str:
    """Return the error of a dead value whose fields all fit."""
    return f"a number has more than {fields.LONGEST} digits" if has_long_number(value) else "does not fit the schema"


@lru_cache(maxsize=64)
def _fields(schema: str) -> tuple[pa.StructType, fields.Convert]:
    kind = pa.struct(list(ddl.parse(schema)))
    return kind, fields.converter(kind)


class _Doubt(Exception):
    """Arrow may parse a value differently from the specification."""


@dataclass
class Part:
    """What was decoded of some values: pieces, indexes of dead values, and fields that the schema does not name."""

    pieces: list[pa.Array] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    unnamed: Rowset = field(default_factory=Rowset)


class _Objects:
    """JSON objects of one schema."""

    def __init__(self, schema: str, *, finds: bool) -> None:
        self.type, self._convert = _fields(schema)
        self._find = finder(self.type) if finds else None
        self._is_flat = not any(pa.types.is_nested(column.type) for column in self.type)
        self.bulk = all(_is_time(column.type) or _in_bulk(column.type) for column in self.type)
        self._check_digits = "decimal" in str(self.type)
        as_text = pa.schema(pa.field(f.name, pa.string()) if _is_time(f.type) else f for f in self.type)
        self._parse = LineParser(as_text, finds=finds)

    def decoded(self, values: pa.Array, first: int) -> Part:
        """Decode values, whose indexes are counted from ``first``."""
        part = Part()
        self._decode(values, first, part)
        return part

    def _decode(self, values: pa.Array, first: int, part: Part) -> None:
        if not self.bulk or len(values) <= FEW:
            part.pieces.append(self.one_by_one(values.to_pylist(), first, part))
            return
        try:
            part.pieces.append(self._at_once(values, first, part.unnamed))
        except (_Doubt, pa.ArrowException):
            step = -(-len(values) // PIECES)
            for at in range(0, len(values), step):
                self._decode(values[at : at + step], first + at, part)

    def one_by_one(self, values: Sequence[bytes | None], first: int, part: Part) -> pa.Array:
        found: list[Any] = []
        for at, value in enumerate(values, first):
            if value is None:
                found.append(None)
                continue
            try:
                if is_deep(value) or has_long_number(value):
                    raise fields.Unfit
                parsed_value = fields.parse(value.strip(JSON_SPACE))
                found.append(self._convert(parsed_value))
            except fields.MISFITS:
                found.append(None)
                part.dead.append(at)
                continue
            # All fields of a flat object are named if as many were converted.
            if self._find is not None and not (self._is_flat and len(found[-1]) == len(parsed_value)):
                paths: set[str] = set()
                self._find(parsed_value, paths)
                part.unnamed.add(paths, at)
        return pa.array(found, self.type)

    def _at_once(self, values: pa.Array, first: int, unnamed: Rowset) -> pa.Array:
        longest = pc.max(pc.binary_length(values)).as_py()
        text = _lines(values, longest)
        if text is None:
            # Replacing LF by CR is safe: both are invalid within strings and valid between tokens.
            stripped = [value.strip(JSON_SPACE).replace(b"\n", b"\r") for value in values.to_pylist()]
            text = _lines(pa.array(stripped, pa.binary()), longest)
        if text is None:
            raise _Doubt
        if self._check_digits and pc.any(pc.match_substring_regex(values, TINY_DECIMAL)).as_py():
            raise _Doubt
        table, rows = self._parse(text)
        if len(table) != len(values):
            raise _Doubt
        columns = [_column(table[column.name].combine_chunks(), column.type) for column in self.type]
        found = pa.StructArray.from_arrays(columns, fields=list(self.type))
        # Arrow parses 1e3 as DECIMAL(5, 2), although it does not fit; only full validation detects this.
        found.validate(full=self._check_digits)
        unnamed.add_rows(rows, first)
        return found


def _chunks(values: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Split the values into pieces that fit into the processor caches."""
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        # Pieces of equal size, because the values of a small remainder would be decoded individually.
        step = max(FEW + 1, -(-len(chunk) // max(1, round(chunk.nbytes / PIECE_BYTES))))
        yield from (chunk[at : at + step] for at in range(0, len(chunk), step))


def _lines(values: pa.Array, longest: int) -> pa.Buffer | None:
    """Join the values with one per line; None if a value contains a line break or is not enclosed in braces.

    JSON never continues between ``}`` and ``{``, so each line holds at least one object. If Arrow then finds as many
    objects as there are values, each line holds exactly one object.
    """
    if not (pc.all(pc.starts_with(values, "{")).as_py() and pc.all(pc.ends_with(values, "}")).as_py()):
        return None
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    lines = pc.binary_join(whole, b"\n").cast(pa.string())  # raises for invalid UTF-8
    _, ends, text = lines.buffers()
    text = text.slice(0, np.frombuffer(ends, np.int32)[1])
    # Not converted to bytes: a copy would take longer than all checks below.
    signs = np.frombuffer(text, np.uint8)
    if np.count_nonzero(signs == ord("\n")) != len(values) - 1:
        return None
    if is_doubtful(values, text, signs, longest):
        raise _Doubt
    return text


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind))


def _in_bulk(kind: pa.DataType) -> bool:
    """Whether Arrow's parser decodes this type."""
    if pa.types.is_struct(kind):
        return all(_in_bulk(inner.type) for inner in kind)
    if pa.types.is_list(kind):
        return _in_bulk(kind.value_type)
    return not (_is_time(kind) or pa.types.is_map(kind) or pa.types.is_binary(kind))


def _column(found: pa.Array, kind: pa.DataType) -> pa.Array:
    if _is_time(kind):
        return _times(found, kind)
    _check_floats(found)
    return found


def _check_floats(found: pa.Array) -> None:
    """Raise for infinity: the number is too large."""
    if pa.types.is_floating(found.type):
        if pc.any(pc.is_inf(found)).as_py():
            raise _Doubt
    elif pa.types.is_struct(found.type):
        for part in found.flatten():
            _check_floats(part)
    elif pa.types.is_list(found.type):
        _check_floats(found.flatten())


def _times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert dates and times in common formats, if all values have the same format."""
    if kind == pa.date32():
        found = _cast(text, f"^{fields.DAY}$", kind)
    else:
        zoned = kind.tz is not None and _all_match(text.drop_null()[:1], ZONED)
        found = (_cast(text, ZONED, kind) if zoned else _clocks(text)).cast(kind)
    days = 1 if kind == pa.date32() else DAY_MICROS
    ends = pc.min_max(found.cast(pa.int32() if days == 1 else pa.int64())).as_py()
    if ends["min"] is not None and not FIRST_DAY * days <= ends["min"] <= ends["max"] < (LAST_DAY + 1) * days:
        raise _Doubt
    return found


def _clocks(text: pa.Array) -> pa.Array:
    """Convert timestamps without a zone."""
    shortest = pc.min(pc.binary_length(text)).as_py()
    if shortest is None or shortest >= SECONDS_LENGTH:
        try:
            # Arrow also accepts times without minutes or seconds, but these are shorter.
            return text.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            pass
    return _cast(text, CLOCK + "$", pa.timestamp("us"))


def _cast(text: pa.Array, pattern: str, kind: pa.DataType) -> pa.Array:
    if not _all_match(text, pattern):
        raise _Doubt
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(text, SURPLUS_DIGITS, r"\1").cast(kind)


def _all_match(text: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(text, pattern)).as_py() is not False


def _spread(found: pa.ChunkedArray, present: pa.BooleanArray | pa.ChunkedArray) -> pa.ChunkedArray:
    """Insert NULL for the records without a value."""
    return found.take(pc.if_else(present, pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1), None))
