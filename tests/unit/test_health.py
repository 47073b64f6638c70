"""The state of a group is derived from the ledger and Kafka."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallymark.core.claims import Note
from tallymark.core.journal import BatchLine, NoteLine, Run
from tallymark.core.spans import STREAMING, GroupState, Log, Owner, Partition, Position, Span, Tally
from tallymark.kafka.lag import Lag
from tallymark.operate.health import HISTORY, Facts, applied_rates, drain, duration, judge, patience

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
RUNNING = GroupState("running", None, "a", NOW - timedelta(days=9))
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def run(name: str = "r1", *, began: timedelta = HOUR, seen: timedelta = timedelta(0), **ended: Any) -> Run:
    return replace(Run(name, "here", NOW - began, NOW - seen), **ended)


def over(name: str = "r1", *, ago: timedelta = MINUTE, error: str | None = None, began: timedelta = HOUR) -> Run:
    return run(name, began=began, seen=ago, ended=NOW - ago, error=error)


def at(offset: int, partition: Partition = ZERO, *, owner: str | None = "r1", ago: timedelta = MINUTE / 2) -> Position:
    held = Owner(owner, "here", NOW - HOUR) if owner else None
    return Position(partition, offset, 0, "t", "c", 1, held, Tally(applied=offset), None, NOW - ago)


def behind(offset: int, end: int, *, waits: timedelta = 2 * HOUR, stop: int | None = None) -> Lag:
    log = Log(ZERO, "t", "c", 0, end if stop is None else stop, end)
    return Lag(log, end - offset, waits.total_seconds() if end > offset else 0.0, NOW - waits if end > offset else None)


def batch(ago: float, *spans: Span, took: float = 1.0, tally: Tally | None = None) -> BatchLine:
    committed = NOW - timedelta(seconds=ago)
    counted = tally or Tally(applied=sum(map(len, spans)))
    return BatchLine("b", committed - timedelta(seconds=took), committed, counted, {}, spans)


def note(kind: str, start: int, stop: int, *, ago: timedelta = MINUTE, partition: Partition = ZERO) -> NoteLine:
    return NoteLine(Note(kind, Span(partition, start, stop), "to repeat, by op@host"), None, NOW - ago)


def facts(runs: Sequence[Run] = (run(),), positions: Sequence[Position] = (at(10),), **more: Any) -> Facts:
    return replace(Facts(NOW, RUNNING, positions, runs), **more)


def said(judged: Facts) -> str:
    verdict = judge(judged)
    return f"{verdict.state}: {verdict.reason}"


PAUSED = GroupState("paused", "stock taking", "op@host", NOW - HOUR)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (facts(state=PAUSED), "paused: by op@host since 2026-01-31 11:00:00 UTC: stock taking"),
        (facts([], state=PAUSED), "paused: by op@host"),
        (facts([over(error="it broke")], state=PAUSED), "paused: by op@host"),
        (facts([], [at(10, owner=None)]), "stopped: no run is recorded"),
        (facts([over()]), "stopped: run r1 on here ended 2026-01-31 11:59:00 UTC"),
        (facts([over(error="KeyError: 7")]), "failed: run r1 on here ended 2026-01-31 11:59:00 UTC: KeyError: 7"),
        (
            facts([run(seen=MINUTE)]),
            "failed: run r1 on here ended without a final heartbeat, last seen 2026-01-31 11:59:00",
        ),
        # The newest run counts: an earlier failed run has a successor.
        (facts([over("r2", began=2 * MINUTE), over(ago=3 * MINUTE, error="x")]), "stopped: run r2"),
        (facts([over("r2", began=1.2 * MINUTE), over(ago=1.3 * MINUTE, error="x")]), "stopped: run r2"),
        # If runs overlapped, one may have failed and ended the others.
        (facts([over("r2"), over(ago=1.1 * MINUTE, error="boom")]), "failed: run r1 on here"),
        (facts([over("r2"), over(ago=HOUR / 2, error="boom")]), "stopped: run r2"),
        (facts([run("r2"), over(error="boom")]), "running: "),
        (facts([over(), run("r2")]), "running: "),
    ],
)
def test_states_by_runs(known: Facts, words: str) -> None:
    assert said(known).startswith(words)


def test_where_a_group_was_sent_since_its_last_run_is_told() -> None:
    notes = [note("skip", 40, 45), note("reset", 0, 9, ago=MINUTE / 2), note("reset", 0, 1000, partition=ONE)]
    assert said(facts([over(ago=HOUR)], notes=notes)) == (
        "stopped: run r1 on here ended 2026-01-31 11:00:00 UTC; moved back by 1,009 offsets since then: "
        "to repeat, by op@host; moved ahead by 5 offsets since then: to repeat, by op@host"
    )
    assert "moved" not in said(facts([over(ago=MINUTE / 2)], notes=notes[:1]))
    assert "moved ahead" in said(facts([], [at(10, owner=None)], notes=notes[:1]))


def test_an_owner_that_does_not_report_is_judged_by_its_commits() -> None:
    lines = [batch(30, Span(ZERO, 0, 10))]
    assert said(facts([], history=lines)) == (
        "running: run r1 on here has owned it since 2026-01-31 11:00:00 UTC without heartbeats; "
        "last commit 2026-01-31 11:59:30 UTC"
    )
    assert said(facts([], history=[batch(90, Span(ZERO, 0, 10))])).startswith("unknown: run r1 on here has owned it")
    assert said(facts([])).endswith("no commit yet")
    # A run that ended after the claim began is newer than the claim.
    assert said(facts([over("r9", error="boom")], history=lines)).startswith("failed: run r9")


@pytest.mark.parametrize(
    ("position", "lag", "lines", "stalled"),
    [
        (at(10, ago=2 * MINUTE), behind(10, 60), [], True),
        (at(10, ago=MINUTE / 2), behind(10, 60), [], False),
        (at(10, ago=2 * MINUTE), behind(10, 10), [], False),
        (at(10, ago=2 * MINUTE), behind(10, 60, waits=MINUTE / 2), [], False),
        # A record from the future, or from after the start of the measurement, has just arrived.
        (at(10, ago=2 * HOUR), behind(10, 60, waits=-HOUR), [], False),
        (at(10, ago=2 * HOUR), behind(10, 60, waits=-MINUTE / 600), [], False),
        (at(10, ago=2 * HOUR), replace(behind(10, 60), seconds=None, unread=None), [], False),
        (at(10, ago=2 * MINUTE), behind(10, 60, stop=10), [], False),
        (at(10, ago=2 * MINUTE), Lag(None), [], False),
        (at(10, ago=2 * MINUTE, owner=None), behind(10, 60), [], False),
        (at(10, ago=2 * MINUTE), behind(10, 60), [batch(120, took=30.0)], False),
        (at(10, ago=3 * MINUTE), behind(10, 60), [batch(180, took=30.0)], True),
    ],
)
def test_stalled_is_who_could_commit_and_does_not(
    position: Position, lag: Lag, lines: list[BatchLine], stalled: bool
) -> None:
    verdict = judge(facts([run(began=2 * HOUR)], [position], lags={ZERO: lag}, history=lines))
    assert (verdict.state == "stalled") is stalled, verdict


def test_an_old_record_is_no_stall_while_its_owner_goes_on_elsewhere() -> None:
    mirrored, busy = behind(10, 60, waits=20 * HOUR), behind(10, 10)
    lags = {ZERO: mirrored, ONE: busy}
    assert judge(facts(positions=[at(10, ago=HOUR), at(10, ONE)], lags=lags)).state == "running"
    others = facts(positions=[at(10, ago=HOUR), at(10, ONE, owner="r2")], lags=lags)
    assert judge(others).state == "stalled", "that another member goes on proves nothing"
    since = {ZERO: behind(10, 60, waits=HOUR / 2), ONE: busy}
    assert judge(facts(positions=[at(10, ago=HOUR), at(10, ONE)], lags=since)).state == "stalled"


def test_a_stall_names_the_partition_the_time_and_the_records() -> None:
    positions = [at(10, ago=2 * MINUTE), at(4, ONE, owner="r2", ago=3 * MINUTE)]
    lags = {ZERO: behind(10, 60), ONE: behind(4, 2004)}
    assert said(facts(positions=positions, lags=lags)) == (
        "stalled: orders[1] has 2,000 unread records and no commit since 2026-01-31 11:57:00 UTC; "
        "2 partitions are stalled"
    )
    assert (
        judge(facts(positions=positions, lags=lags, state=replace(RUNNING, since=NOW - MINUTE / 2))).state != "stalled"
    )
    assert judge(facts(positions=positions)).state == "running", "without Kafka nobody knows what is unread"


def test_rewound_until_it_is_where_it_was() -> None:
    notes = [note("reset", 5, 30, ago=HOUR), note("skip", 30, 99), note("reset", 0, 9)]
    assert said(facts(notes=notes[:2])) == (
        "rewound: 20 offsets are applied again, orders[0] up to 30: to repeat, by op@host"
    )
    assert judge(facts(notes=notes[:2], positions=[at(30)])).state == "running"
    assert judge(facts(notes=[note("emptying", 0, 30)])).state == "rewound"
    assert "up to 30" in said(facts(notes=notes)), "sent back once more on the way"
    assert judge(facts(notes=notes[2:])).state == "running"
    assert judge(facts([over()], notes=notes[:2])).state == "stopped"
    assert judge(facts(notes=[note("reset", 0, 99, partition=ONE)])).state == "running", "a partition that is gone"


def pace(*, came: float, went: int, unread: int, waits: timedelta = MINUTE, **more: Any) -> str:
    lines = [batch(10, Span(ZERO, 0, went))] if went else []
    known = facts(lags={ZERO: behind(10, 10 + unread, waits=waits)}, rates_in={ZERO: came}, history=lines)
    return said(replace(known, **more))


def test_a_running_group_has_a_pace() -> None:
    assert pace(came=120.0, went=24_000, unread=1234) == (
        "running: falling behind: 120.0/s in, 80.0/s applied, 1,234 unread"
    )
    assert pace(came=120.0, went=24_000, unread=0) == "running: caught up"
    assert pace(came=0.0, went=0, unread=0) == "running: idle: no new records for 5 minutes"
    assert pace(came=10.0, went=6_000, unread=200) == "running: catching up: 200 unread, 20s left"
    assert pace(came=120.0, went=24_000, unread=50, waits=MINUTE / 60) == "running: catching up: 50 unread"
    young = [run(began=MINUTE / 3)]
    assert pace(came=120.0, went=24, unread=1234, runs=young) == "running: catching up: 1,234 unread"


def test_a_rate_that_is_not_known_is_no_rate() -> None:
    assert pace(came=0.0, went=0, unread=0, rates_in={}) == "running: caught up"
    assert pace(came=0.0, went=600, unread=50, rates_in={}) == "running: catching up: 50 unread"


def test_lag_that_is_not_known_is_not_taken_for_none() -> None:
    known = facts(positions=[at(10), at(10, ONE)], lags={ZERO: behind(10, 60), ONE: Lag(None)}, history=[batch(60)])
    assert (known.unread, known.waited) == (None, None)
    assert said(known) == (
        "running: lag is unknown, because these brokers do not have orders[1]; last commit 2026-01-31 11:59:00 UTC"
    )
    query = replace(at(10), cluster_id=STREAMING)
    assert said(facts(positions=[query], lags={ZERO: Lag(None)}, history=[batch(60)])) == (
        "running: last commit 2026-01-31 11:59:00 UTC"
    )
    timeless = facts(lags={ZERO: replace(behind(10, 60), seconds=None, unread=None)})
    assert (timeless.unread, timeless.waited) == (50, None)


def test_without_kafka_the_last_commit_is_told() -> None:
    assert said(facts(history=[batch(60)])) == "running: last commit 2026-01-31 11:59:00 UTC"
    assert said(facts()) == "running: no commit yet"
    assert said(facts(positions=[])) == "running: waiting for an assignment"


def test_what_waits_for_a_producer_is_not_stalled() -> None:
    waiting = {ZERO: behind(10, 60, stop=10)}
    assert said(facts(lags=waiting)) == "running: orders[0] waits for an open transaction of its producer"
    both = facts(positions=[at(10), at(10, ONE)], lags=waiting | {ONE: behind(10, 20, waits=MINUTE / 60)})
    assert "catching up" in said(both)


def test_a_partition_that_nobody_has_is_told_of_after_a_minute() -> None:
    positions = [at(10), at(10, ONE, owner=None), at(10, Partition("orders", 2), owner=None)]
    assert said(facts(positions=positions)).endswith("; 2 partitions have no owner, such as orders[1]")
    assert "no owner" not in said(facts([run(began=MINUTE)], positions))


def test_rates_are_of_what_was_worked_on_while_somebody_could() -> None:
    lines = [
        batch(10, Span(ZERO, 100, 400), Span(ONE, 0, 300)),
        batch(20, Span(ZERO, 0, 100), tally=Tally(applied=10, skipped=60, lost=30)),
        batch(30, Span(ZERO, 0, 50), tally=Tally(applied=50, skipped=-50)),
        batch(400, Span(ZERO, 0, 9000)),
    ]
    assert applied_rates(facts(history=lines)) == pytest.approx({ZERO: 310 / 300, ONE: 1.0})
    young = facts([run(began=timedelta(seconds=100))], history=lines)
    assert applied_rates(young) == pytest.approx({ZERO: 3.1, ONE: 3.0})
    resumed = facts(history=lines, state=replace(RUNNING, since=NOW - MINUTE))
    assert resumed.measured == MINUTE
    cut_off = facts(history=[batch(50 - n / 20, Span(ZERO, n, n + 1)) for n in range(HISTORY - 1, -1, -1)])
    assert applied_rates(cut_off)[ZERO] == pytest.approx(20, rel=0.01)


def test_a_partition_that_only_skipped_has_applied_nothing() -> None:
    lines = [batch(10, Span(ZERO, 0, 300), Span(ONE, 0, 900), tally=Tally(applied=600, skipped=600))]
    skips = [note("skip", 0, 300), note("skip", 0, 300, partition=ONE)]
    skips = [replace(skip, batch="b") for skip in skips]
    assert applied_rates(facts(history=lines, notes=skips)) == pytest.approx({ZERO: 0.0, ONE: 2.0})
    elsewhere = [replace(skip, batch="c") for skip in skips]
    assert applied_rates(facts(history=lines, notes=elsewhere)) == pytest.approx({ZERO: 0.5, ONE: 1.5})
    assert applied_rates(facts(history=[replace(lines[0], tally=Tally(skipped=1200))])) == {ZERO: 0.0, ONE: 0.0}


def test_time_to_drain() -> None:
    assert drain(100, 10.0, 20.0) == 10.0
    assert drain(0, 10.0, 0.0) == 0.0
    assert drain(1, 10.0, 10.0) == math.inf
    assert drain(1, None, 10.0) is None
    assert drain(1000, 0.0, 0.0) is None


def test_patience_follows_the_usual_batch() -> None:
    assert patience([]) == MINUTE
    assert patience([batch(1), batch(2, took=900.0), batch(3)]) == MINUTE
    assert patience([batch(1, took=60.0)]) == 5 * MINUTE


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.9, "59s"), (60, "1m00s"), (3599, "59m59s"), (7500, "2h05m"), (86_400 * 4 + 3 * 3600, "4d03h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seen", "owner", "later", "state"),
    [
        (20, None, 15, "stopped"),
        (20, "killed", 15, "running"),
        (20, None, 25, "running"),
        (5, None, 3, "running"),
    ],
)
def test_a_killed_run_that_another_one_has_succeeded_is_over(
    seen: int, owner: str | None, later: int, state: str
) -> None:
    """Before its heartbeat is so old that no run could be behind it."""
    killed = run("killed", seen=timedelta(seconds=seen))
    next_one = over("next", ago=timedelta(seconds=1), began=timedelta(seconds=later))
    assert said(facts([next_one, killed], [at(10, owner=owner)])).startswith(f"{state}: ")
