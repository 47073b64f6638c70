"""Code of the user's that sees every record on its way out and what becomes of it. One that raises is passed over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tallymark.outgoing import Outgoing

if TYPE_CHECKING:
    from tallymark.delivery import Metadata
    from tallymark.errors import TallymarkError

log = logging.getLogger(__name__)


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it, and log what it raises: no record fails because of somebody who looks on."""
    try:
        return function(*arguments)
    except Exception:
        log.exception("function=%r raised and is passed over", function)
        return None


class Interceptors:
    """Objects with any of ``on_send(record) -> record``, ``on_acknowledgement(metadata, error)`` and ``close()``."""

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self.sending = _methods(interceptors, "on_send")
        self.acknowledging = _methods(interceptors, "on_acknowledgement")
        self._closing = _methods(interceptors, "close")

    def on_send(self, record: Outgoing) -> Outgoing:
        """The record as the last of them leaves it. Each gets what the one before has made of it."""
        for function in self.sending:
            record = guarded(function, record) or record
        return record

    def on_acknowledgement(self, metadata: Metadata | None, error: TallymarkError | None) -> None:
        for function in self.acknowledging:
            guarded(function, metadata, error)

    def close(self) -> None:
        for function in self._closing:
            guarded(function)


def _methods(interceptors: Sequence[Any], name: str) -> list[Callable[..., Any]]:
    return [getattr(one, name) for one in interceptors if hasattr(one, name)]
