"""Keys and values of records as text, as JSON, or as a hex dump; never with control characters."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallymark.operate.shown import Shown

HEX_BYTES = 16


def printable(data: bytes | str | None, shown: Shown | None = None) -> str:
    """The text, or what was decoded as JSON, with its control characters escaped."""
    if shown is not None and shown.error is None:
        data = json.dumps(shown.content, ensure_ascii=False)
    if data is None:
        return "null"
    text = data if isinstance(data, str) else data.decode(errors="backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def member(name: str, data: bytes | None, shown: Shown | None = None) -> dict[str, Any]:
    """Text under its name; other bytes as base64, under ``<name>_base64``.

    What was decoded is an object under the name, with the id of its schema under ``<name>_schema``, and the message of
    Protobuf under ``<name>_message``. What could not be decoded is base64: it is not text, even if it looks like it.
    """
    if shown is not None and shown.error is not None and data is not None:
        return _base64(name, data)
    if shown is not None:
        message = {} if shown.message is None else {f"{name}_message": shown.message}
        return {name: shown.content, f"{name}_schema": shown.schema, **message}
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return _base64(name, data or b"")


def _base64(name: str, data: bytes) -> dict[str, Any]:
    return {f"{name}_base64": base64.b64encode(data).decode()}


def pretty(data: bytes | None, shown: Shown | None = None) -> list[str]:
    """Lines of indented JSON, of text, or of a hex dump."""
    if shown is not None and shown.error is None:
        data = json.dumps(shown.content, ensure_ascii=False).encode()
    try:
        text = "null" if data is None else data.decode()
    except UnicodeDecodeError:
        return _dump(data or b"")
    with suppress(ValueError, RecursionError):
        # A number or a string alone is shown as it is.
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False) if text.lstrip()[:1] in ("{", "[") else text
    return [printable(line) for line in text.split("\n")]


def _dump(data: bytes) -> list[str]:
    rows = [(at, data[at : at + HEX_BYTES]) for at in range(0, len(data), HEX_BYTES)]
    return [f"{at:08x}  {row.hex(' '):<{HEX_BYTES * 3}} {_ascii(row)}" for at, row in rows]


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
