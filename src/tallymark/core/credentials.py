"""Reads secrets from the environment or from files, to keep them out of URLs, programs and command lines."""

from __future__ import annotations

import os
from pathlib import Path

from tallymark.errors import BadInput

PREFIX, IN_FILE = "TALLYMARK_", "_FILE"
NO = ("no", "off", "false", "0")
YES = ("yes", "on", "true", "1")
assumed: dict[str, str] = {}
"""Variables that count as set in this process, but not in the environment, which child processes inherit."""


def variable(name: str) -> str | None:
    """Return the value of ``TALLYMARK_<name>``. An empty variable counts as not set."""
    return os.environ.get(f"{PREFIX}{name}") or assumed.get(f"{PREFIX}{name}") or None


def switch(name: str) -> bool | None:
    """Return whether ``TALLYMARK_<name>`` is on; None if it is not set."""
    value = variable(name)
    if value is None:
        return None
    if value.lower() not in (*YES, *NO):
        raise BadInput(f"{PREFIX}{name}={value} is not known; write on or off")
    return value.lower() in YES


def from_environment(name: str) -> str | None:
    """Return the value of ``TALLYMARK_<name>``, or the content of the file that ``TALLYMARK_<name>_FILE`` names."""
    value, path = variable(name), variable(f"{name}{IN_FILE}")
    if value and path:
        raise BadInput(f"{PREFIX}{name} and {PREFIX}{name}{IN_FILE} are both set; unset one of them")
    return read_secret(path, f"{PREFIX}{name}{IN_FILE}") if path else value


def read_secret(path: str | Path, setting: str = "the secret") -> str:
    """Return the content of a file without the trailing newline. ``setting`` is the option or variable naming it."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise BadInput(
            f"{setting}: the file {path} can't be read: {reason}; check the path and its permissions"
        ) from None
    text = content.decode(errors="replace").removesuffix("\n").removesuffix("\r")
    # A decoding error would contain the secret.
    if not text or "\N{REPLACEMENT CHARACTER}" in text or "\0" in text:
        raise BadInput(f"{setting}: the file {path} is empty or not UTF-8 text; write the secret to it")
    return text
