"""Extends a reader's message by the fields of a later one. What the reader has stays as it is."""

from __future__ import annotations

from dataclasses import replace

from tallymark.formats.protobuf.columns import SPECIAL
from tallymark.formats.protobuf.schema import Field, Message


def extended(reader: Message, later: Message) -> Message:
    """Return the reader's message with the fields whose numbers only ``later`` has; the same if there are none."""
    return _Extension().message(reader, later)


class _Extension:
    def __init__(self) -> None:
        self._open: list[Message] = []
        """The messages that contain the current one."""

    def message(self, reader: Message, later: Message) -> Message:
        # A message that contains itself has no column, also as a part of the reader's.
        if reader.name in SPECIAL or later.name in SPECIAL or reader in self._open:
            return reader
        self._open.append(reader)
        numbers = {field.number: field for field in later.fields}
        known = {field.number for field in reader.fields}
        kept = tuple(self._field(field, numbers.get(field.number)) for field in reader.fields)
        new = tuple(field for field in later.fields if field.number not in known)
        self._open.pop()
        if not new and all(one is other for one, other in zip(kept, reader.fields, strict=True)):
            return reader
        return replace(reader, fields=(*kept, *new))

    def _field(self, field: Field, later: Field | None) -> Field:
        if later is None or field.message is None or later.message is None or field.is_map != later.is_map:
            return field
        message = self.message(field.message, later.message)
        return field if message is field.message else replace(field, message=message)
