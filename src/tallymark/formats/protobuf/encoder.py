"""Encodes Python values as Protobuf, and says which field does not fit the message.

Values are those that the decoders return, as docs/reference/protobuf.md lists them. A message is compiled into
functions that check a value and append its bytes in one pass; ``from_json.py`` does the same for JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tallymark.errors import BadInput
from tallymark.formats.misfit import Misfit, cut
from tallymark.formats.protobuf.columns import FIELD_MASK, JSON, TIMESTAMP, WRAPPERS
from tallymark.formats.protobuf.json_writer import WRITERS, tree_of
from tallymark.formats.protobuf.leaves import Output, Write, key, leaf, tag, write_paths, write_timestamp
from tallymark.formats.protobuf.numbers import varint
from tallymark.formats.protobuf.program import END_GROUP
from tallymark.formats.protobuf.schema import Field, Message


class ProtobufEncoder:
    """Encodes values of one message, which may contain itself."""

    def __init__(self, message: Message) -> None:
        self._name = message.name
        self._write = Values().compiled(message)

    def __call__(self, value: Any) -> bytes:
        out = Output()
        try:
            self._write(value, out)
        except Misfit as misfit:
            raise BadInput(f"the value does not fit the Protobuf message {self._name}: {misfit}") from None
        return bytes(out)


class Values:
    """Makes the functions for the messages of one schema, which encode Python values."""

    an_object, a_list = "a dict", "a list"
    """What error messages tell to write."""
    plain: Mapping[str, Write] = {TIMESTAMP: write_timestamp, FIELD_MASK: write_paths}
    """The functions for messages whose values have no fields."""

    def __init__(self) -> None:
        self._messages: dict[Message, Write] = {}
        self._waiting: list[tuple[Message, dict[str, Write]]] = []

    def compiled(self, message: Message) -> Write:
        """Return the function that appends the fields of a message."""
        write = self._body(message)
        # A loop, because a message may contain itself, or lead to many others.
        while self._waiting:
            one, fields = self._waiting.pop()
            # By number, so that equal messages have equal bytes.
            fields |= {part.name: self._field(part) for part in sorted(one.fields, key=lambda part: part.number)}
        return write

    def leaf(self, field: Field) -> Write:
        """Return the function for a type without fields."""
        return leaf(field)

    def tree_of(self, value: Any) -> Any:
        """Return the content of a Struct, a Value or a ListValue as parsed JSON."""
        return tree_of(value)

    def fields_of(self, value: Any) -> dict[str, Any] | None:
        """Return the fields of a message; None if the value is not a message."""
        return value if isinstance(value, dict) else None

    def entries_of(self, value: Any) -> Collection[tuple[Any, Any]] | None:
        """Return the entries of a map; None if the value is not a map."""
        # The decoders return maps as lists of pairs.
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return value
        return value.items() if isinstance(value, dict) else None

    def items_of(self, value: Any) -> Sequence[Any] | None:
        """Return the items of a repeated field; None if the value is not a list."""
        return value if isinstance(value, (list, tuple)) else None

    def _body(self, message: Message) -> Write:
        """Return the function that appends the fields of a message, without its length."""
        if message not in self._messages:
            self._messages[message] = self._special(message) or self._message(message)
        return self._messages[message]

    def _special(self, message: Message) -> Write | None:
        """Return the function for a message that is not written as a dict."""
        if message.name in WRAPPERS:
            return self._implicit(message.fields[0])
        if message.name in JSON:
            write, tree = WRITERS[JSON[message.name]], self.tree_of
            return lambda value, out: write(tree(value), out)
        return self.plain.get(message.name)

    def _message(self, message: Message) -> Write:
        parts: dict[str, Write] = {}
        self._waiting.append((message, parts))
        required = [field.name for field in message.fields if field.is_required]
        oneofs = _oneofs(message)
        fields_of, kind = self.fields_of, f"message {message.name}; write {self.an_object}"

        def write(value: Any, out: Output) -> None:
            given = fields_of(value)
            if given is None:
                raise Misfit(kind, value)
            if not given.keys() <= parts.keys():
                extra = ", ".join(sorted(str(name) for name in given if name not in parts))
                raise Misfit(f"{message.name} has no field {cut(extra)}")
            for name in required:
                if given.get(name) is None:
                    raise Misfit(f"required field {name} of {message.name} is missing")
            for oneof, names in oneofs:
                _check_oneof(oneof, [name for name in names if given.get(name) is not None])
            for name, part in parts.items():
                if name in given:
                    try:
                        part(given[name], out)
                    except Misfit as misfit:
                        raise misfit.within(f".{name}") from None

        return write

    def _field(self, field: Field) -> Write:
        """Return the function that appends a field with its tag, or nothing."""
        if field.is_map:
            return self._map(field)
        if field.is_repeated:
            return self._list(field)
        if not field.has_presence and field.message is None:
            return self._implicit(field)
        before, part = tag(field.number, field.type), self._content(field)

        def write(value: Any, out: Output) -> None:
            if value is not None:
                out += before
                part(value, out)

        return write

    def _implicit(self, field: Field) -> Write:
        """Return the function for a field that is not written if it has the default of its type."""
        before, part = tag(field.number, field.type), self.leaf(field)

        def write(value: Any, out: Output) -> None:
            content = Output()
            part(value, content)
            if any(content):
                out += before
                out += content

        return write

    def _content(self, field: Field) -> Write:
        """Return the function that appends what follows the tag."""
        if field.message is None:
            return self.leaf(field)
        body = self._body(field.message)
        end = varint(field.number << 3 | END_GROUP)

        def nested(value: Any, out: Output) -> None:
            inner = out.inside()
            body(value, inner)
            out.add(inner)

        def group(value: Any, out: Output) -> None:
            inner = out.inside()
            body(value, inner)
            out += inner
            out += end

        return group if field.type == "group" else nested

    def _list(self, field: Field) -> Write:
        part, is_packed, items_of = self._content(field), field.is_packed, self.items_of
        before = tag(field.number, "bytes" if is_packed else field.type)
        kind = f"a repeated field; write {self.a_list}"

        def write(value: Any, out: Output) -> None:
            items = items_of(value)
            if items is None:
                raise Misfit(kind, value)
            target = Output() if is_packed else out
            for at, item in enumerate(items):
                if not is_packed:
                    out += before
                try:
                    part(item, target)
                except Misfit as misfit:
                    raise misfit.within(f"[{at}]") from None
            if is_packed and items:
                out += before
                out.add(target)

        return write

    def _map(self, field: Field) -> Write:
        assert field.message is not None, "its entries"
        of_key, of_value = field.message.fields
        write_key, part, entries_of = key(of_key), self._content(of_value), self.entries_of
        before, inner = tag(field.number, "message"), (tag(1, of_key.type), tag(2, of_value.type))
        kind = f"a map; write {self.an_object}"

        def write(value: Any, out: Output) -> None:
            entries = entries_of(value)
            if entries is None:
                raise Misfit(kind, value)
            seen: set[bytes] = set()
            for name, item in entries:
                entry = out.inside()
                try:
                    entry += inner[0]
                    write_key(name, entry)
                    if bytes(entry) in seen:
                        raise Misfit("this key is there twice")
                    seen.add(bytes(entry))
                    entry += inner[1]
                    part(item, entry)
                except Misfit as misfit:
                    raise misfit.within(f"[{cut(repr(name))}]") from None
                out += before
                out.add(entry)

        return write


def _oneofs(message: Message) -> list[tuple[str, list[str]]]:
    """Return the oneofs of a message with the names of their members."""
    found: dict[str, list[str]] = {}
    for field in message.fields:
        if field.oneof:
            found.setdefault(field.oneof, []).append(field.name)
    return [(oneof, names) for oneof, names in found.items() if len(names) > 1]


def _check_oneof(oneof: str, given: Sequence[str]) -> None:
    if len(given) > 1:
        raise Misfit(f"{' and '.join(given)} are set, but of oneof {oneof} only one can be")
