"""Says which part of a value does not fit the type that it is to be written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHOWN = 60
"""Maximum number of characters of a value that an error message quotes."""
_NOTHING = object()


class Misfit(ValueError):
    """A value does not fit its type. ``path`` leads to the part at fault.

    The message is made when it is asked for, because a union tries its branches.
    """

    def __init__(self, why: str, value: Any = _NOTHING, path: str = "") -> None:
        super().__init__(why)
        self.why, self.path = why, path
        self._value = value

    def within(self, step: str) -> Misfit:
        return Misfit(self.why, self._value, step + self.path)

    def sentence(self, show: Callable[[Any], str] | None = None) -> str:
        """Return the message; ``show`` returns what it quotes of the value."""
        why = self.why if self._value is _NOTHING else f"{(show or shown)(self._value)} does not fit {self.why}"
        return f"{self.path.removeprefix('.')}: {why}" if self.path else why

    __str__ = sentence


def shown(value: Any) -> str:
    """Return what an error message quotes of a value."""
    try:
        return cut(repr(value))
    except Exception:  # noqa: BLE001 - the value's own code
        return "the value"


def cut(text: str) -> str:
    """Return the text, or its beginning."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
