"""Planning accounts for every offset once, in order, and reads only what the log holds."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.plan import (
    Jump,
    Limits,
    Move,
    Plan,
    adapt,
    apportion,
    caught_up,
    check_identity,
    lowered,
    plan,
    readable_from,
)
from tallymark.core.spans import Log, Partition, Span
from tallymark.errors import BadInput, BeyondEnd, ForeignCluster, RecordsLost, TopicRecreated
from tests.unit import strategies as draw
from tests.unit.strategies import log, position

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)

limits = st.integers(1, 20_000)


@given(draw.lags, limits)
def test_shares_use_the_whole_limit_or_one_for_each_that_lags(lags: dict[Partition, int], limit: int) -> None:
    lagging = sum(1 for lag in lags.values() if lag)
    assert sum(apportion(lags, limit).values()) == min(sum(lags.values()), max(limit, lagging))


@given(draw.lags, limits)
def test_a_share_is_at_least_one_and_never_more_than_the_lag(lags: dict[Partition, int], limit: int) -> None:
    shares = apportion(lags, limit)
    assert shares.keys() == lags.keys()
    assert all(min(1, lag) <= shares[partition] <= lag for partition, lag in lags.items())


@given(draw.lags, limits)
def test_shares_above_the_first_record_are_proportional_to_the_lag(lags: dict[Partition, int], limit: int) -> None:
    lagging = sum(1 for lag in lags.values() if lag)
    if sum(lags.values()) <= limit or limit <= lagging:
        return
    ratio = Fraction(limit - lagging, sum(lags.values()) - lagging)
    for partition, taken in apportion(lags, limit).items():
        exact = 1 + (lags[partition] - 1) * ratio if lags[partition] else Fraction(0)
        assert abs(taken - exact) < 1, f"{partition} takes {taken} instead of about {float(exact)}"


@given(draw.lags, limits)
def test_who_lags_more_never_gets_less(lags: dict[Partition, int], limit: int) -> None:
    taken = apportion(lags, limit)
    by_lag = sorted(lags, key=lambda partition: lags[partition])
    assert all(taken[a] <= taken[b] for a, b in pairwise(by_lag) if lags[a] < lags[b])


@st.composite
def positions_in(drawn: st.DrawFn, logs: dict[Partition, Log]) -> dict[Partition, int]:
    return {partition: drawn(st.integers(0, found.end)) for partition, found in logs.items()}


@given(st.data(), draw.logs(), limits)
def test_a_move_goes_on_where_the_position_is_and_stops_within_the_stable_log(
    data: st.DataObject, logs: dict[Partition, Log], limit: int
) -> None:
    positions = data.draw(positions_in(logs))
    for move in plan(positions, logs, limit, "record").moves:
        found = logs[move.partition]
        assert move.start == positions[move.partition]
        assert move.lost_span.stop == move.read_span.start
        assert move.lost == max(0, found.start - move.start)
        assert move.read == 0 or found.start <= move.read_span.start < move.read_span.stop <= found.stop
        assert move.stop == move.start + move.lost + move.read > move.start


@given(st.data(), draw.logs(), limits)
def test_unread_records_that_are_gone_fail_the_plan_unless_told_to_record_them(
    data: st.DataObject, logs: dict[Partition, Log], limit: int
) -> None:
    positions = data.draw(positions_in(logs))
    lost = [partition for partition, found in logs.items() if positions[partition] < found.start]
    if lost:
        with pytest.raises(RecordsLost):
            plan(positions, logs, limit)
        recorded = {move.partition for move in plan(positions, logs, limit, "record").moves if move.lost}
        assert recorded == set(lost)
    else:
        assert not any(move.lost for move in plan(positions, logs, limit).moves)


@given(st.data(), draw.logs(), limits)
def test_a_plan_is_empty_exactly_when_everything_is_caught_up(
    data: st.DataObject, logs: dict[Partition, Log], limit: int
) -> None:
    positions = data.draw(positions_in(logs))
    behind = any(positions[partition] < max(found.start, found.stop) for partition, found in logs.items())
    assert bool(plan(positions, logs, limit, "record")) == behind


@given(st.data(), draw.logs(), st.integers(1, 300))
def test_batch_after_batch_drains_any_log_and_accounts_for_each_offset_once(
    data: st.DataObject, logs: dict[Partition, Log], limit: int
) -> None:
    first = data.draw(positions_in(logs))
    positions, accounted = dict(first), dict.fromkeys(first, 0)
    batches = 0
    while batch := plan(positions, logs, limit, "record"):
        assert batch.offsets <= max(limit, len(logs))
        assert batch.spans == tuple(move.read_span for move in batch.moves if move.read)
        for move in batch.moves:
            assert move.start == positions[move.partition]
            positions[move.partition] = move.stop
            accounted[move.partition] += move.lost + move.read
        batches += 1
        assert batches <= 1 + sum(found.stop for found in logs.values()), "a batch did not move anything"
    for partition, found in logs.items():
        assert positions[partition] == max(first[partition], found.stop)
        assert accounted[partition] == positions[partition] - first[partition]


def test_a_position_past_the_end_of_the_log_is_refused_but_not_one_in_an_open_transaction() -> None:
    found = log(ZERO, start=0, stop=10, end=20)
    assert readable_from(15, found, "fail") == 15
    assert not plan({ZERO: 15}, {ZERO: found}, 100)
    assert not plan({ZERO: 20}, {ZERO: found}, 100)
    with pytest.raises(BeyondEnd, match=r"orders\[0\]: the saved position 21 is past the end of the log at 20"):
        plan({ZERO: 21}, {ZERO: found}, 100, "record")


def test_the_error_about_lost_records_names_them_and_the_way_out() -> None:
    with pytest.raises(RecordsLost, match=r"orders\[0\]: offsets 3\.\.7 .*\(4 offsets\); on_loss='record'"):
        plan({ZERO: 3}, {ZERO: log(ZERO, start=7, stop=9)}, 100)


def test_a_loss_with_nothing_left_to_read_is_a_move_without_a_span() -> None:
    batch = plan({ZERO: 3}, {ZERO: log(ZERO, start=9, stop=9)}, 100, "record")
    assert batch.moves == (Move(ZERO, 3, lost=6, read=0),)
    assert batch.spans == ()


@given(st.data(), draw.logs(), limits)
def test_a_jump_goes_neither_back_nor_past_what_can_be_read_and_counts_what_it_skips(
    data: st.DataObject, logs: dict[Partition, Log], limit: int
) -> None:
    positions = data.draw(positions_in(logs))
    wanted = data.draw(st.fixed_dictionaries({}, optional={one: st.integers(0, 600) for one in logs}))
    planned = plan(positions, logs, limit, "record", {one: Jump(to, "because") for one, to in wanted.items()})
    for move in planned.moves:
        found, to = logs[move.partition], wanted.get(move.partition, 0)
        readable = max(positions[move.partition], found.start)
        assert (move.start, move.lost) == (positions[move.partition], readable - positions[move.partition])
        assert move.skipped == max(0, min(to, found.stop) - readable)
        assert (move.lost_span.stop, move.skipped_span.stop) == (move.skipped_span.start, move.read_span.start)
        assert (len(move.skipped_span), len(move.read_span)) == (move.skipped, move.read)
        assert move.stop == move.start + move.lost + move.skipped + move.read
        assert move.reason == ("because" if move.skipped else "")
        assert move.stop <= max(found.stop, readable)
    waiting = {one for one in logs if positions[one] < max(logs[one].start, logs[one].stop)}
    assert {move.partition for move in planned.moves} == waiting


moves = st.dictionaries(
    draw.partitions, st.tuples(st.integers(0, 100), st.integers(0, 20), st.integers(0, 50), st.integers(0, 20))
)


@given(moves, st.just(0.5) | st.floats(0, 1))
def test_a_part_of_a_plan_and_what_is_left_cover_the_same_offsets_once(
    found: dict[Partition, tuple[int, int, int, int]], share: float
) -> None:
    whole = Plan(tuple(Move(partition, *move) for partition, move in sorted(found.items()) if any(move[1:])))
    first = whole.part(share)
    rest = whole.after(first)
    reached = {move.partition: move.start for move in whole.moves}
    for move in (*first.moves, *rest.moves):
        assert move.start == reached[move.partition]
        assert move.stop > move.start, "no move that moves nothing"
        reached[move.partition] = move.stop
    assert reached == {move.partition: move.stop for move in whole.moves}
    assert [move.lost_span for move in first.moves] == [move.lost_span for move in whole.moves]
    assert [move.skipped_span for move in first.moves] == [move.skipped_span for move in whole.moves]
    assert not any(move.lost or move.skipped for move in rest.moves)
    for part, move in zip(first.moves, whole.moves, strict=True):
        # At least one offset, and less than all.
        assert part.read in (math.ceil(move.read * share), min(1, move.read), move.read - 1)
        assert (part.read < move.read) == (move.read > 1)
        assert bool(part.read) == bool(move.read)
    assert bool(rest) == any(move.read > 1 for move in whole.moves)


def test_a_half_is_rounded_up() -> None:
    assert [Plan((Move(ZERO, 0, 0, read),)).part().offsets for read in (0, 1, 2, 3, 10)] == [0, 1, 1, 2, 5]


@given(moves)
def test_halves_of_halves_end_with_one_record_of_each(found: dict[Partition, tuple[int, int, int, int]]) -> None:
    step = Plan(tuple(Move(partition, *move) for partition, move in sorted(found.items())))
    for _ in range(6):
        step = step.part()
    assert all(len(span) == 1 for span in step.spans)
    assert step.part() == step
    assert not step.after(step)


settings = st.builds(Limits, st.integers(1, 1_000_000), st.floats(0.01, 1000), st.integers(1, 1 << 30))


@given(st.data(), settings, st.floats(0, 10_000), st.integers(0, 1 << 34))
def test_the_next_limit_stays_in_bounds_and_halves_or_doubles_at_most(
    data: st.DataObject, limits: Limits, seconds: float, size: int
) -> None:
    limit = data.draw(st.integers(1, limits.records))
    offsets = data.draw(st.integers(0, limit))
    adapted = adapt(limit, offsets, seconds, size, limits)
    assert max(1, limit // 2) <= adapted <= min(limits.records, limit * 2)


@given(
    st.integers(1, 1_000_000),
    st.integers(1, 1_000_000),
    st.floats(0.1, 100),
    st.floats(1, 1_000_000),
    st.integers(1, 10_000),
    st.integers(1, 1 << 30),
)
def test_the_limit_converges_on_what_fits_into_time_and_memory(
    first: int, records: int, seconds: float, rate: float, width: int, memory: int
) -> None:
    """With a steady rate and enough to read, the limit converges to the tighter of the two limits."""
    limits = Limits(records, seconds, memory)
    limit = min(first, records)
    for _ in range(64):
        limit = adapt(limit, limit, limit / rate, limit * width, limits)
    wanted = max(1.0, min(float(records), rate * seconds, memory / width))
    assert wanted * 0.5 - 1 <= limit <= wanted + 1


def test_a_batch_that_took_no_time_and_no_memory_at_all_doubles_the_limit() -> None:
    assert adapt(10, 10, 5e-324, 0, Limits(1000, 30.0)) == 20


def test_a_batch_that_was_too_large_for_the_memory_makes_the_next_one_smaller() -> None:
    limits = Limits(1000, 30.0, memory=1_000)
    assert adapt(100, 100, 1.0, 1_250, limits) == 80
    assert adapt(100, 100, 1.0, 1_000_000, limits) == 50
    assert adapt(100, 100, 1.0, 1_000, limits) == 100


def test_a_small_batch_says_nothing_about_the_limit() -> None:
    assert adapt(1000, 499, 1e9, 0, Limits(1000, 1.0)) == 1000
    assert adapt(1000, 500, 1e9, 0, Limits(1000, 1.0)) == 500


@pytest.mark.parametrize(("records", "seconds", "memory"), [(0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, -1, 1), (1, 1, 0)])
def test_limits_are_positive(records: int, seconds: float, memory: int) -> None:
    with pytest.raises(BadInput, match="limits must be positive"):
        Limits(records, seconds, memory)


def test_a_position_of_the_same_topic_and_cluster_is_accepted() -> None:
    check_identity(position(ZERO), draw.TOPIC_ID, draw.CLUSTER_ID)


def test_a_recreated_topic_is_refused_with_both_ids() -> None:
    with pytest.raises(TopicRecreated, match=r"topic orders .*\(id topic-id, now other\).*position 7 of orders\[0\]"):
        check_identity(position(ZERO), "other", draw.CLUSTER_ID)


def test_another_cluster_is_refused_even_if_the_topic_differs_too() -> None:
    with pytest.raises(ForeignCluster, match="belongs to cluster cluster-id, but these brokers are cluster other"):
        check_identity(replace(position(ZERO), topic_id="another"), draw.TOPIC_ID, "other")


def test_caught_up_means_every_goal_is_reached() -> None:
    goals = [Span(ZERO, 0, 5), Span(ONE, 0, 0)]
    assert caught_up({ZERO: 5}, goals)
    assert caught_up({ZERO: 6, ONE: 1}, goals)
    assert not caught_up({ZERO: 4, ONE: 9}, goals)


@given(st.data(), draw.logs(), limits)
def test_a_run_comes_to_the_goals_in_the_logs_of_now_and_to_no_other(
    data: st.DataObject, logs: dict[Partition, Log], limit: int
) -> None:
    goals = [Span(partition, 0, data.draw(st.integers(0, 600))) for partition in logs]
    positions = data.draw(positions_in(logs))
    within = lowered(goals, positions, logs)
    assert all(now.stop == min(goal.stop, logs[goal.partition].stop) for goal, now in zip(goals, within, strict=True))
    while batch := plan(positions, logs, limit, "record"):
        positions |= {move.partition: move.stop for move in batch.moves}
    assert caught_up(positions, within)


def test_a_position_past_the_end_of_its_log_keeps_its_goal_and_a_log_that_is_gone_has_none() -> None:
    goals = [Span(ZERO, 0, 100), Span(ONE, 0, 100)]
    assert lowered(goals, {ZERO: 60}, {ZERO: log(ZERO, 0, 50)}) == [Span(ZERO, 0, 100)]
    assert lowered(goals, {ZERO: 50}, {ZERO: log(ZERO, 0, 50)}) == [Span(ZERO, 0, 50)]
    # Up to the start of open transactions, because a batch must not wait for them.
    assert lowered(goals, {ZERO: 60}, {ZERO: log(ZERO, 0, 50, 70)}) == [Span(ZERO, 0, 50)]
