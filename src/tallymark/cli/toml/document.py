"""A TOML file: its values with the environment filled in, and the line of every key, for messages.

A message never shows a value that came out of the environment: what it shows is what stands in the file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tallymark.errors import BadInput

Keys = tuple[str, ...]

VARIABLE = re.compile(r"\$(\$\{)|\$\{([^}]*)(\}?)")
NAME = re.compile(r"([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
KEY = r"""(?:[\w-]+|"(?:\\.|[^"\\])*"|'[^']*')"""
KEYS = rf"{KEY}(?:\s*\.\s*{KEY})*"
HEADER, ASSIGNED = re.compile(rf"\s*\[\[?\s*({KEYS})\s*\]"), re.compile(rf"\s*({KEYS})\s*=")
OPAQUE = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*",
    re.DOTALL,
)
"""Strings and comments, in which nothing that looks like a key is one."""


@dataclass(frozen=True)
class Document:
    """What a file says."""

    name: str
    written: dict[str, Any] = field(repr=False)
    """As it stands in the file."""
    values: dict[str, Any] = field(repr=False)
    """With the environment filled in."""
    lines: dict[Keys, int] = field(repr=False)
    hidden: dict[str, str] = field(default_factory=dict, repr=False)
    """What came out of the environment, and what stands in the file for it."""

    def where(self, keys: Sequence[str] = ()) -> str:
        """File and line of a key; of one that is not there, the line of the table it belongs to."""
        line = self.line(keys)
        return f"{self.name} line {line}" if line else self.name

    def line(self, keys: Sequence[str]) -> int:
        ends = range(len(keys), 0, -1)
        return next((self.lines[tuple(keys[:end])] for end in ends if tuple(keys[:end]) in self.lines), 0)

    @contextmanager
    def blamed(self, *keys: str) -> Iterator[None]:
        """Whatever is refused in the block is refused because of this key."""
        try:
            yield
        except BadInput as error:
            # The same error, since another one would drag this one along, and what it shows.
            error.args, error.__context__ = (f"{self.where(keys)}: {self.as_written(str(error))}",), None
            raise

    def as_written(self, said: str) -> str:
        """The words with what stands in the file in place of what came out of the environment."""
        written = {shown: text for one, text in self.hidden.items() for shown in (one, repr(one)[1:-1])}
        # The longest first: one may be a part of another.
        patterns = map(_pattern, sorted(written, key=len, reverse=True))
        return re.sub("|".join(patterns), lambda found: written[found[0]], said) if written else said


def read(path: Path) -> Document:
    """The file, if it is TOML and every variable that it names is set."""
    written, text = _parsed(path)
    document = Document(str(path), written, {}, find_lines(text))
    complaints: list[str] = []

    def fill(keys: Keys, value: Any) -> Any:
        try:
            return _filled(value, document.hidden)
        except BadInput as error:
            complaints.append(f"{document.where(keys)}: {'.'.join(keys)} {error}")
            return ""

    document.values.update(_each(written, fill))
    if complaints:
        raise BadInput("\n".join(complaints))
    return document


def _filled(value: Any, hidden: dict[str, str]) -> Any:
    if value != value:
        raise BadInput("is nan, which is no number; write one")
    if not isinstance(value, str):
        return value
    found: dict[str, str] = {}
    text = filled(value, found)
    for one, written in found.items():
        # Addresses are looked at one by one, and shown so.
        hidden.update({part.strip(): written for part in [one, *one.split(",")] if part.strip()})
    hidden.update({text: value} if found else {})
    return text


def _pattern(value: str) -> str:
    """What is very short may be part of any word."""
    return re.escape(value) if len(value) > 3 else rf"\b{re.escape(value)}\b"


def filled(text: str, hidden: dict[str, str] | None = None) -> str:
    """The text with ``${NAME}`` and ``${NAME:-default}`` replaced; ``$${`` is the text ``${``.

    ``hidden`` is told which values came out of the environment, and for what.
    """

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        named = NAME.fullmatch(found[2])
        if named is None or not found[3]:
            raise BadInput("has a ${ that names no variable; write ${NAME}, ${NAME:-default}, or $${ for the text ${")
        # A variable that is set to nothing counts as not set.
        found_value = os.environ.get(named[1])
        if found_value and hidden is not None:
            hidden[found_value] = found[0]
        found_value = found_value or named[2]
        if found_value is None:
            raise BadInput(
                f"needs the variable {named[1]}, which is not set; set it, or write ${{{named[1]}:-default}}"
            )
        return found_value

    return VARIABLE.sub(value, text)


def find_lines(text: str) -> dict[Keys, int]:
    """The line of every header and key of a text that is known to be TOML."""
    found: dict[Keys, int] = {}
    table: Keys = ()
    for number, line in enumerate(OPAQUE.sub(_hidden, text).split("\n"), start=1):
        if header := HEADER.match(line):
            table = _split(header[1])
            found.setdefault(table, number)
        elif assigned := ASSIGNED.match(line):
            keys = (*table, *_split(assigned[1]))
            for end in range(len(table) + 1, len(keys) + 1):
                found.setdefault(keys[:end], number)
    return found


def _hidden(found: re.Match[str]) -> str:
    """Nothing but the line breaks of what spans lines; a short string may be a key and stays."""
    text = found[0]
    if text.startswith("#"):
        return ""
    return '""' + "\n" * text.count("\n") if text.startswith(('"""', "'''")) else text


def _split(keys: str) -> Keys:
    return tuple(key.strip("\"'") for key in re.findall(KEY, keys))


def _each(value: Any, change: Callable[[Keys, Any], Any], keys: Keys = ()) -> Any:
    """The same value with every single one in it changed."""
    if isinstance(value, dict):
        return {key: _each(one, change, (*keys, key)) for key, one in value.items()}
    if isinstance(value, list):
        return [_each(one, change, keys) for one in value]
    return change(keys, value)


def _parsed(path: Path) -> tuple[dict[str, Any], str]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = path.read_text(encoding="utf-8")
        return toml.loads(text), text
    except OSError as error:
        raise BadInput(f"{path}: the file can't be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: the file is not UTF-8; save it as UTF-8") from None
    except toml.TOMLDecodeError as error:
        words, _, place = str(error).rstrip(")").partition(" (at ")
        line = f" {place.split(',')[0]}" if place.startswith("line") else ""
        raise BadInput(f"{path}{line}: this is no TOML: {words[:1].lower()}{words[1:]}") from None
