"""Groups that are meant to pause: waiting until they may go on."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable

from tallymark.errors import GroupPaused
from tallymark.patience import patiently
from tallymark.spans import GroupState
from tallymark.stores.store import Store

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""How often a paused group looks whether it may go on."""


def may_go_on(
    ledger: Store,
    group: str,
    stop: threading.Event,
    patience: float | None,
    *,
    has_end: bool,
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Whether to go on: at once, when a paused group is resumed, or not at all because somebody wants to leave.

    Who waits for an end can't wait for a pause to be over.
    """
    told = False
    while not stop.is_set():
        state = patiently(lambda: ledger.state(group), stop, patience)
        if state is None or not state.paused:
            return True
        if has_end:
            raise _paused(group, state)
        if not told:
            log.warning("paused group=%s by=%s reason=%s", group, state.by, state.reason)
        told = True
        stop.wait(PAUSE_SECONDS)
        meanwhile()
    return False


def _paused(group: str, state: GroupState) -> GroupPaused:
    return GroupPaused(
        f"group {group} is paused since {state.since:%Y-%m-%d %H:%M:%S} UTC by {state.by}: {state.reason}; "
        f"tallymark resume {shlex.quote(group)} lets it go on"
    )
