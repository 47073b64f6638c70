"""Reads the lines of ``tallymark produce`` as records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tallymark.errors import BadInput
from tallymark.formats.value import Part

if TYPE_CHECKING:
    from tallymark.operate.json_records import JsonPart

Headers = Sequence[tuple[str, bytes | None]]


class Line(NamedTuple):
    """The record of a line."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: datetime | None = None


def from_lines(lines: Iterable[bytes], delimiter: str | None, value_as: JsonPart | None = None) -> Iterator[Line]:
    """Read a value from each line, after its key if there is a delimiter. ``value_as`` writes values that are JSON."""
    for number, line in enumerate(lines, 1):
        content = line.removesuffix(b"\n").removesuffix(b"\r")
        key = None
        if delimiter is not None:
            key, found, content = content.partition(delimiter.encode())
            if not found:
                raise BadInput(f"line {number} has no {delimiter!r} between key and value")
        if value_as is None:
            yield Line(content, key)
        else:
            value, headers = _encoded(value_as, _parsed(content, number), (), f"line {number}")
            yield Line(value, key, headers)


def from_json(
    lines: Iterable[bytes], value_as: JsonPart | None = None, key_as: JsonPart | None = None
) -> Iterator[Line]:
    """Read records as ``tallymark consume --json`` prints them. ``value_as`` and ``key_as`` write what is JSON."""
    for number, line in enumerate(lines, 1):
        try:
            record = _members(_parsed(line, number))
            headers: Headers = [(_text(one["name"]), _plain(one, "value")) for one in _headers(record)]
            when = datetime.fromisoformat(_text(record["timestamp"])) if record.get("timestamp") else None
            value, headers = _part(record, "value", value_as, headers, number)
            key, headers = _part(record, "key", key_as, headers, number)
        except (ValueError, TypeError, KeyError):
            raise BadInput(f"line {number} is not a record as tallymark consume --json prints them") from None
        yield Line(value, key, headers, when)


def _part(
    record: dict[str, Any], part: Part, write_as: JsonPart | None, headers: Headers, number: int
) -> tuple[bytes | None, Headers]:
    schema = record.get(f"{part}_schema")
    if schema is not None and write_as is None:
        raise BadInput(
            f"line {number}: the {part} was decoded with schema {schema}; to write it again, name its registry with "
            f"--registry and register a schema for the {part}s of the topic"
        )
    content, message = record.get(part), record.get(f"{part}_message")
    # Without a schema, null is no key or a tombstone. Avro has a null of its own.
    is_absent = schema is None and content is None
    if write_as is None or is_absent or f"{part}_base64" in record:
        return _plain(record, part), headers
    place = f"line {number}, {part}"
    if write_as.schema.kind == "JSON" and schema is None and type(content) is str:
        # It is what consume prints of bytes that it can't decode, and JSON could be any text.
        raise BadInput(f"{place}: text without {part}_schema; write the JSON itself, or the bytes as {part}_base64")
    return _encoded(write_as, content, headers, place, None if message is None else _text(message))


def _encoded(
    write_as: JsonPart, content: Any, headers: Headers, place: str, message: str | None = None
) -> tuple[bytes, Headers]:
    try:
        return write_as(content, headers, message)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


def _plain(record: dict[str, Any], name: str) -> bytes | None:
    """Return text as UTF-8, or the bytes of base64."""
    if f"{name}_base64" in record:
        return base64.b64decode(_text(record[f"{name}_base64"]), validate=True)
    given = record.get(name)
    return None if given is None else _text(given).encode()


def _headers(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return map(_members, record.get("headers") or ())


def _text(value: Any) -> str:
    # Numbers are parsed as subclasses of str.
    if type(value) is not str:
        raise TypeError
    return value


def _members(value: Any) -> dict[str, Any]:
    from tallymark.formats.fields import Pairs

    if not isinstance(value, Pairs):
        raise TypeError
    return dict(value)


def _parsed(line: bytes, number: int) -> Any:
    # Imported here, because pyarrow takes long.
    from tallymark.formats.fields import parse

    try:
        return parse(line)
    except RecursionError:
        raise BadInput(f"line {number} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"line {number} is not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise BadInput(f"line {number} is not JSON: {error}") from None
