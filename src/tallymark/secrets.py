"""Secrets from the environment or from files, so that they need not stand in a URL, a program or a command line."""

from __future__ import annotations

import os
from pathlib import Path

from tallymark.errors import BadInput

PREFIX, IN_FILE = "TALLYMARK_", "_FILE"


def from_environment(name: str) -> str | None:
    """The value of ``TALLYMARK_<name>``, or what is in the file that ``TALLYMARK_<name>_FILE`` names.

    A variable that is set to nothing counts as not set.
    """
    variable, told_by = f"{PREFIX}{name}", f"{PREFIX}{name}{IN_FILE}"
    value, path = os.environ.get(variable), os.environ.get(told_by)
    if value and path:
        raise BadInput(f"{variable} and {told_by} are both set; unset one of them")
    return read_secret(path, told_by) if path else value or None


def read_secret(path: str | Path, told_by: str = "the secret") -> str:
    """What is in a file, without the newline at its end. ``told_by`` is what named the file: an option, a variable."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise BadInput(
            f"{told_by}: the file {path} can't be read: {reason}; check the path and who may read it"
        ) from None
    text = content.decode(errors="replace").removesuffix("\n").removesuffix("\r")
    # A decoding error would carry the content with it.
    if not text or "\N{REPLACEMENT CHARACTER}" in text or "\0" in text:
        raise BadInput(f"{told_by}: the file {path} is empty or is no text; write the secret into it, in UTF-8")
    return text
