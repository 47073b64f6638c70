"""When a run has caught up, with its own and other members' partitions, in logs that may be truncated."""

from __future__ import annotations

import pytest

from tallymark.core.spans import Partition
from tallymark.run import until
from tests.unit.strategies import log, position

OURS, THEIRS = Partition("orders", 0), Partition("orders", 1)


def test_logs_that_were_cut_are_not_waited_for_whoever_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "LOOK_SECONDS", -1.0)
    saved = {THEIRS: position(THEIRS, 60)}
    logs = {one: log(one, 0, 100) for one in (OURS, THEIRS)}
    made = until.Goals(list(logs.values()), lambda: saved, lambda: logs)
    made.lower({OURS: 50})
    assert not made.reached({OURS: 50})
    logs |= {one: log(one, 0, 50) for one in logs}
    made.lower({OURS: 50})
    assert not made.reached({OURS: 50}), "the other member has yet to notice that it is past the end"
    saved[THEIRS] = position(THEIRS, 50)
    made.lower({OURS: 50})
    assert made.reached({OURS: 50})
    assert not made.reached({OURS: 49})


def test_a_topic_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "LOOK_SECONDS", -1.0)
    made = until.Goals([log(one, 0, 100) for one in (OURS, THEIRS)], dict, lambda: {OURS: log(OURS, 0, 100)})
    made.lower({OURS: 100})
    assert made.reached({OURS: 100})
