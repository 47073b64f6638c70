"""``tallymark pause`` and ``tallymark resume``."""

from __future__ import annotations

from datetime import UTC, datetime

from tallymark.cli.output import say, show_json
from tallymark.cli.target import AsJson, Reason, Target, operator, targeted
from tallymark.core.spans import GroupState


@targeted(brokers=False)
def pause(target: Target, reason: Reason = None, as_json: AsJson = False) -> None:
    """Pause a group: it finishes the batch in flight, then waits until it is resumed."""
    _set(target, "paused", reason or "paused by hand", as_json)


@targeted(brokers=False)
def resume(target: Target, as_json: AsJson = False) -> None:
    """Resume a paused group. Its budget for dead letters starts a new window, even if it was not paused."""
    _set(target, "running", None, as_json)


def _set(target: Target, desired: str, reason: str | None, as_json: bool) -> None:
    group, by = target.group, operator()
    with target.ledger() as store:
        before = store.state(group)
        assert before is not None
        store.set_state(group, GroupState(desired, reason, by, datetime.now(UTC)))
    if as_json:
        show_json({"group": group, "before": before.desired, "now": desired, "reason": reason, "by": by}, indent=None)
    else:
        say(f"{group}: {before.desired} -> {desired}")
