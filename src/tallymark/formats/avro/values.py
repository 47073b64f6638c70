"""Decodes Avro values one by one, and says why a value is dead. ``bulk.py`` decodes the same, many at once.

Values are those that Arrow converts to the column: structs are tuples, maps lists of pairs, dates and times numbers.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np

from tallymark.formats.avro.program import DEEPEST_SKIP, MOST_EMPTY, Skips, Step

SHOWN = 60
"""Maximum number of characters of a value that an error message quotes."""
UUID = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
EXACT = Context(prec=76)
INT_LIMIT = 1 << 31

Read = Callable[["Body"], Any]
Convert = Callable[[Any], Any]


class Dead(ValueError):
    """A value can't be decoded. ``path`` leads to the part at fault."""

    def __init__(self, why: str, path: str = "") -> None:
        self.why, self.path = why, path
        super().__init__(f"{path.lstrip('.')}: {why}" if path else why)

    def within(self, step: str) -> Dead:
        return Dead(self.why, step + self.path)


class Body:
    """A position in the bytes of a record. Every method reads what its name says and moves past it."""

    __slots__ = ("at", "content", "empty", "size")

    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)
        self.at = 0
        self.empty = MOST_EMPTY

    def long(self, what: str = "a LONG") -> int:
        content, at = self.content, self.at
        try:
            byte = content[at]
            found, shift = byte & 127, 0
            while byte > 127:
                at += 1
                shift += 7
                byte = content[at]
                if shift > 63 or (shift == 63 and byte > 1):
                    raise Dead(f"{what} takes more than 64 bits")
                found |= (byte & 127) << shift
        except IndexError:
            raise Dead(f"the bytes end within {what}") from None
        self.at = at + 1
        return (found >> 1) ^ -(found & 1)

    def int(self) -> int:
        found = self.long("an INT")
        if not -INT_LIMIT <= found < INT_LIMIT:
            raise Dead(f"{found} does not fit INT")
        return found

    def take(self, size: int, what: str) -> bytes:
        start = self.at
        self.at = end = start + size
        if not start <= end <= self.size:
            raise Dead(f"the bytes end within {what}" if size >= 0 else f"{what} has a negative length")
        return self.content[start:end]

    def bytes(self) -> bytes:
        return self.take(self.long("a length"), "BYTES")

    def text(self) -> str:
        return _text(self.take(self.long("a length"), "a STRING"))

    def block(self, what: str, empty: bool = False) -> int:
        """Read the number of items of the next block."""
        count = self.long(f"the length of {what}")
        if count < 0:
            count = -count
            self.long(f"the size of {what}")
        if count > self.size - self.at and not empty:
            raise Dead(f"the bytes end within {what} of {count} items")
        return count

    def branch(self, count: int) -> int:
        index = self.long("the branch of a UNION")
        if not 0 <= index < count:
            raise Dead(f"the UNION has no branch {index}")
        return index


def decoder(root: Step, skips: Skips) -> Callable[[bytes], Any]:
    """Return the function that decodes a value, or raises Dead."""
    read = _Steps(skips).read(root)

    def decode(content: bytes) -> Any:
        body = Body(content)
        found = read(body)
        if body.at != body.size:
            raise Dead(f"{body.size - body.at} bytes follow the value")
        return found

    return decode


class _Steps:
    """Makes the functions for steps. The methods have the names of the steps."""

    def __init__(self, skips: Skips) -> None:
        self._skips = skips

    def read(self, step: Step) -> Read:
        made: Read = getattr(self, f"_{step['read']}")(step)
        return made

    def _null(self, _: Step) -> Read:
        return lambda body: None

    def _boolean(self, _: Step) -> Read:
        def read(body: Body) -> bool:
            byte = body.take(1, "a BOOLEAN")[0]
            if byte > 1:
                raise Dead(f"{byte} is no BOOLEAN")
            return byte == 1

        return read

    def _int(self, step: Step) -> Read:
        convert = _number(step)
        return Body.int if convert is None else lambda body: convert(body.int())

    def _long(self, step: Step) -> Read:
        convert = _number(step)
        return Body.long if convert is None else lambda body: convert(body.long())

    def _float(self, _: Step) -> Read:
        unpack = struct.Struct("<f").unpack
        return lambda body: unpack(body.take(4, "a FLOAT"))[0]

    def _double(self, _: Step) -> Read:
        unpack = struct.Struct("<d").unpack
        return lambda body: unpack(body.take(8, "a DOUBLE"))[0]

    def _bytes(self, step: Step) -> Read:
        if step["as"] == "string":
            return Body.text
        if step["as"] == "bytes":
            return Body.bytes
        convert = _decimal(step) if step["as"] == "decimal" else _uuid_of_text
        return lambda body: convert(body.bytes())

    def _fixed(self, step: Step) -> Read:
        size = step["size"]
        if step["as"] == "bytes":
            return lambda body: body.take(size, "a FIXED")
        if step["as"] == "decimal":
            convert = _decimal(step)
        else:
            convert = _uuid_of_bytes if step["as"] == "uuid" else struct.Struct("<III").unpack
        return lambda body: convert(body.take(size, "a FIXED"))

    def _enum(self, step: Step) -> Read:
        symbols, written = step["symbols"], step.get("written", step["symbols"])

        def read(body: Body) -> str:
            index = body.long("an ENUM")
            if not 0 <= index < len(symbols):
                raise Dead(f"the ENUM has no symbol {index}")
            found: str | None = symbols[index]
            if found is None:
                raise Dead(f"the reader's ENUM has no symbol {written[index]}")
            return found

        return read

    def _array(self, step: Step) -> Read:
        items, empty = self.read(step["items"]), "empty" in step

        def read(body: Body) -> list[Any]:
            found: list[Any] = []
            append = found.append
            while count := body.block("an ARRAY", empty):
                if empty:
                    body.empty -= count
                    if body.empty < 0:
                        raise Dead(f"the record has more than {MOST_EMPTY} items without bytes")
                try:
                    for _ in range(count):
                        append(items(body))
                except Dead as error:
                    raise error.within(f"[{len(found)}]") from None
            return found

        return read

    def _map(self, step: Step) -> Read:
        value = self.read(step["values"])

        def read(body: Body) -> list[tuple[str, Any]]:
            found: dict[str, Any] = {}
            while count := body.block("a MAP"):
                for _ in range(count):
                    key = body.text()
                    try:
                        found[key] = value(body)
                    except Dead as error:
                        raise error.within(f".{_cut(key)}") from None
            return list(found.items())

        return read

    def _record(self, step: Step) -> Read:
        empty: list[Any] = [None] * step["width"]
        for default in step["defaults"]:
            empty[default["to"]] = self._default(default)
        fields = [(part["name"], part["to"], self._field(part["step"])) for part in step["fields"]]

        def read(body: Body) -> tuple[Any, ...]:
            found = empty.copy()
            name = ""
            try:
                for name, to, part in fields:
                    if to >= 0:
                        found[to] = part(body)
                    else:
                        part(body)
            except Dead as error:
                raise error.within(f".{name}") from None
            return tuple(found)

        return read

    def _default(self, default: Step) -> Any:
        return self.read(default["step"])(Body(bytes.fromhex(default["bytes"])))

    def _field(self, step: Step) -> Read:
        if "read" in step:
            return self.read(step)
        skips = self._skips
        return lambda body: _skip(step, skips, body)

    def _union(self, step: Step) -> Read:
        branches = [self.read(branch) for branch in step["branches"]]
        count = len(branches)
        return lambda body: branches[body.branch(count)](body)

    def _branch(self, step: Step) -> Read:
        part = self.read(step["step"])
        before: tuple[None, ...] = (None,) * step["to"]
        after: tuple[None, ...] = (None,) * (step["width"] - step["to"] - 1)
        return lambda body: (*before, part(body), *after)

    def _dead(self, step: Step) -> Read:
        path = f".{step['path']}" if step["path"] else ""

        def read(_: Body) -> Any:
            raise Dead(step["why"], path)

        return read


def _skip(root: Step, skips: Skips, body: Body) -> None:
    """Move past a value. Uses no recursion, because records may contain themselves."""
    waiting: list[tuple[Step, int]] = [(root, 0)]
    while waiting:
        step, depth = waiting.pop()
        kind = step["skip"]
        if kind == "varint":
            body.long()
        elif kind == "bytes":
            body.bytes()
        elif kind == "fixed":
            body.take(step["size"], "a field of fixed size")
        elif kind == "union":
            branches: Sequence[Step] = step["branches"]
            waiting.append((branches[body.branch(len(branches))], depth))
        elif kind == "record":
            if depth >= DEEPEST_SKIP:
                raise Dead(f"records are nested more than {DEEPEST_SKIP} levels deep")
            waiting += [(part, depth + 1) for part in reversed(skips[step["name"]])]
        else:
            _skip_block(step, depth, body, waiting)


def _skip_block(step: Step, depth: int, body: Body, waiting: list[tuple[Step, int]]) -> None:
    if step["skip"] == "map":
        parts = [(step["values"], depth), ({"skip": "bytes"}, depth)]
    else:
        parts = [(step["items"], depth)]
    empty = parts[0][0].get("size") == 0 and len(parts) == 1
    count = body.block("an ARRAY" if len(parts) == 1 else "a MAP", empty)
    if count:
        waiting.append((step, depth))
        if not empty:
            waiting += parts * count


def _number(step: Step) -> Convert | None:
    """Return the conversion of a whole number; None if it stays what it is."""
    if step["as"] in ("int", "long"):
        return None
    if step["as"] in ("float", "double"):
        # Python converts to FLOAT through DOUBLE, which rounds twice.
        return float if step["as"] == "double" else lambda number: float(np.int64(number).astype(np.float32))
    return _in_range(step, {"date": lambda number: number, "time": _time(step), "timestamp": _timestamp(step)}[step["as"]])


def _in_range(step: Step, convert: Convert) -> Convert:
    least, most, kind = step["least"], step["most"], step["as"].upper()

    def checked(number: int) -> Any:
        if not least <= number <= most:
            raise Dead(f"{number} is no {kind}")
        return convert(number)

    return checked


def _time(step: Step) -> Convert:
    times, digits = step.get("times", 1), step.get("digits", 0)
    unit = 10**digits

    def convert(number: int) -> str:
        seconds, fraction = divmod(number * times, unit)
        minutes, second = divmod(seconds, 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{digits}}"

    return convert


def _timestamp(step: Step) -> Convert:
    over, times = step.get("over", 1), step.get("times", 1)
    return lambda number: number // over * times


def _decimal(step: Step) -> Convert:
    precision, scale = step["precision"], step["scale"]
    limit = 10**precision

    def convert(content: bytes) -> Decimal:
        if not content:
            raise Dead("a DECIMAL has no bytes")
        number = int.from_bytes(content, "big", signed=True)
        if abs(number) >= limit:
            raise Dead(f"a number does not fit DECIMAL({precision},{scale})")
        return Decimal(number).scaleb(-scale, EXACT)

    return convert


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Dead(f"not UTF-8: {error.reason} at byte {error.start}") from None


def _uuid_of_text(content: bytes) -> str:
    text = _text(content)
    if not UUID.fullmatch(text):
        raise Dead(f"{_cut(text)!r} is no UUID")
    return text.lower()


def _uuid_of_bytes(content: bytes) -> str:
    return str(uuid.UUID(bytes=content))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
