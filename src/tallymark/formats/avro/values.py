"""Decodes Avro values one by one, and says why a value is dead. ``bulk.py`` decodes the same, many at once.

Values are those that Arrow converts to the column: structs are tuples, maps lists of pairs, dates and times numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from tallymark.formats.avro.body import Body, Dead
from tallymark.formats.avro.program import DEEPEST_SKIP, MOST_EMPTY, Skips, Step
from tallymark.formats.avro.scalars import decimal, instant, number, uuid_of_bytes, uuid_of_text
from tallymark.formats.avro.schema import cut

__all__ = ["Dead", "decoder"]

Read = Callable[[Body], Any]
SKIP_KEY: Step = {"skip": "bytes"}


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
        return lambda _: None

    def _boolean(self, _: Step) -> Read:
        def read(body: Body) -> bool:
            byte = body.take(1, "a BOOLEAN")[0]
            if byte > 1:
                raise Dead(f"{byte} is no BOOLEAN")
            return byte == 1

        return read

    def _int(self, step: Step) -> Read:
        convert = number(step)
        return Body.read_int if convert is None else lambda body: convert(body.read_int())

    def _long(self, step: Step) -> Read:
        convert = number(step)
        return Body.read_long if convert is None else lambda body: convert(body.read_long())

    def _float(self, _: Step) -> Read:
        unpack = struct.Struct("<f").unpack
        return lambda body: unpack(body.take(4, "a FLOAT"))[0]

    def _double(self, _: Step) -> Read:
        unpack = struct.Struct("<d").unpack
        return lambda body: unpack(body.take(8, "a DOUBLE"))[0]

    def _bytes(self, step: Step) -> Read:
        if step["as"] == "string":
            return Body.read_text
        if step["as"] == "bytes":
            return Body.read_bytes
        if step["as"] == "instant-text":
            return lambda body: instant(body.read_text())
        convert = decimal(step) if step["as"] == "decimal" else uuid_of_text
        return lambda body: convert(body.read_bytes())

    def _fixed(self, step: Step) -> Read:
        size = step["size"]
        if step["as"] == "bytes":
            return lambda body: body.take(size, "a FIXED")
        if step["as"] == "decimal":
            convert = decimal(step)
        else:
            convert = uuid_of_bytes if step["as"] == "uuid" else struct.Struct("<III").unpack
        return lambda body: convert(body.take(size, "a FIXED"))

    def _enum(self, step: Step) -> Read:
        symbols, written = step["symbols"], step.get("written", step["symbols"])

        def read(body: Body) -> str:
            index = body.read_long("an ENUM")
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
            while count := body.read_block("an ARRAY", empty):
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
            while count := body.read_block("a MAP"):
                for _ in range(count):
                    key = body.read_text()
                    try:
                        found[key] = value(body)
                    except Dead as error:
                        raise error.within(f".{cut(key)}") from None
            return list(found.items())

        return read

    def _record(self, step: Step) -> Read:
        empty: list[Any] = [None] * step["width"]
        for default in step["defaults"]:
            empty[default["to"]] = self._default(default)
        fields = [(part["name"], part["to"], self._field(part["step"])) for part in step["fields"]]

        def read(body: Body) -> tuple[Any, ...]:
            found = empty.copy()
            at = ""
            try:
                for name, to, part in fields:
                    at = name
                    if to >= 0:
                        found[to] = part(body)
                    else:
                        part(body)
            except Dead as error:
                raise error.within(f".{at}") from None
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
        return lambda body: branches[body.read_branch(count)](body)

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
            body.read_long()
        elif kind == "bytes":
            body.read_bytes()
        elif kind == "fixed":
            body.take(step["size"], "a field of fixed size")
        elif kind == "union":
            branches: Sequence[Step] = step["branches"]
            waiting.append((branches[body.read_branch(len(branches))], depth))
        elif kind == "record":
            if depth >= DEEPEST_SKIP:
                raise Dead(f"records are nested more than {DEEPEST_SKIP} levels deep")
            waiting += [(part, depth + 1) for part in reversed(skips[step["name"]])]
        else:
            _skip_block(step, depth, body, waiting)


def _skip_block(step: Step, depth: int, body: Body, waiting: list[tuple[Step, int]]) -> None:
    if step["skip"] == "map":
        what, empty, parts = "a MAP", False, [(step["values"], depth), (SKIP_KEY, depth)]
    else:
        what, empty, parts = "an ARRAY", step["items"].get("size") == 0, [(step["items"], depth)]
    count = body.read_block(what, empty)
    if count:
        waiting.append((step, depth))
        waiting += [] if empty else parts * count
