"""Producers that nobody has closed: what the end of the process does for them, and what a fork makes of them."""

from __future__ import annotations

import atexit
import logging
import os
from typing import Protocol

from tallymark.errors import TallymarkError

log = logging.getLogger(__name__)

EXIT_SECONDS = 10.0
"""How long the end of the process waits for what a producer that nobody has closed still holds."""


class Closeable(Protocol):
    def close(self, timeout: float) -> None: ...
    def disown(self) -> None: ...


still_open: set[Closeable] = set()


@atexit.register
def _close_all() -> None:
    for producer in tuple(still_open):
        try:
            producer.close(EXIT_SECONDS)
        except TallymarkError as error:
            log.error("a producer was not closed before the process ended: %s", error)


def _disown_all() -> None:
    """In a forked child, where the threads of the client are missing: what the producers hold is the parent's."""
    for producer in still_open:
        producer.disown()
    still_open.clear()


os.register_at_fork(after_in_child=_disown_all)
