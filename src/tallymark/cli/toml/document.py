"""A TOML file: its values with variables replaced, and the line of every key, for error messages.

Messages never show the value of a variable: they show how the file refers to it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
"""Strings and comments, which may contain what looks like a key."""


@dataclass(frozen=True)
class Document:
    """The content of a file."""

    name: str
    written: dict[str, Any] = field(repr=False)
    """The values as written."""
    values: dict[str, Any] = field(repr=False)
    """The values with variables replaced."""
    lines: dict[Keys, int] = field(repr=False)
    hidden: dict[str, str] = field(default_factory=dict, repr=False)
    """The values of variables, and how the file refers to them."""

    def where(self, keys: Sequence[str] = ()) -> str:
        """File and line of a key, or of its table if the key is missing."""
        line = self.line(keys)
        return f"{self.name} line {line}" if line else self.name

    def line(self, keys: Sequence[str]) -> int:
        ends = range(len(keys), 0, -1)
        return next((self.lines[tuple(keys[:end])] for end in ends if tuple(keys[:end]) in self.lines), 0)

    @contextmanager
    def blamed(self, *keys: str) -> Iterator[None]:
        """Name this key in every error that the block raises."""
        try:
            yield
        except BadInput as error:
            # The same error: another one would have this one as its context, with the secrets in its message.
            error.args, error.__context__ = (f"{self.where(keys)}: {self.as_written(str(error))}",), None
            raise

    def as_written(self, said: str) -> str:
        """The words with the values of variables as the file refers to them."""
        written = {shown: text for one, text in self.hidden.items() for shown in (one, repr(one)[1:-1])}
        # The longest first, because one value may contain another.
        patterns = map(_pattern, sorted(written, key=len, reverse=True))
        return re.sub("|".join(patterns), lambda found: written[found[0]], said) if written else said


def read(path: Path) -> Document:
    """Read a file. Raises ``BadInput`` if it is not TOML, or if a variable is not set."""
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
        raise BadInput("is nan; write a number")
    if not isinstance(value, str):
        return value
    found: dict[str, str] = {}
    text = filled(value, found)
    for one, written in found.items():
        # Addresses are checked and shown one by one.
        hidden.update({part.strip(): written for part in [one, *one.split(",")] if part.strip()})
    hidden.update({text: value} if found else {})
    return text


def _pattern(value: str) -> str:
    """Very short values match only whole words."""
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
        # An empty variable counts as not set.
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
    """The line of every header and key of a valid TOML text."""
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
    """Reduce strings of several lines to their line breaks. Other strings may be keys, and stay."""
    text = found[0]
    if text.startswith("#"):
        return ""
    return '""' + "\n" * text.count("\n") if text.startswith(('"""', "'''")) else text


def _split(keys: str) -> Keys:
    return tuple(key.strip("\"'") for key in re.findall(KEY, keys))


def _each(value: Any, change: Callable[[Keys, Any], Any], keys: Keys = ()) -> Any:
    """The same value with each of its scalars changed."""
    if isinstance(value, dict):
        return {key: _each(one, change, (*keys, key)) for key, one in value.items()}
    if isinstance(value, list):
        return [_each(one, change, keys) for one in value]
    return change(keys, value)


def _parsed(path: Path) -> tuple[dict[str, Any], str]:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except OSError as error:
        raise BadInput(f"{path}: the file can't be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: the file is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        words, _, place = str(error).rstrip(")").partition(" (at ")
        line = f" {place.split(',')[0]}" if place.startswith("line") else ""
        raise BadInput(f"{path}{line}: this is not TOML: {words[:1].lower()}{words[1:]}") from None
