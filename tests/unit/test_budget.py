"""A budget limits the dead records of a batch and of a window."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.budget import RATIO_NEEDS, Budget
from tallymark.core.spans import GroupState, Tally
from tallymark.errors import BadInput, TooManyDead
from tests.unit.strategies import NOON

HOUR = timedelta(hours=1)
small = st.integers(0, 20)


@given(st.none() | small, small)
def test_a_batch_fails_with_the_first_dead_record_above_its_budget(most: int | None, dead: int) -> None:
    budget = Budget(max_dead_per_batch=most)
    if most is None or dead <= most:
        budget.check_batch("shop", dead, "an example")
    else:
        words = rf"group shop: .*max_dead_per_batch={most}, for example: an example; this batch moved no position"
        with pytest.raises(TooManyDead, match=words):
            budget.check_batch("shop", dead, "an example")


@given(st.none() | small, small, st.integers(0, 2_000))
def test_a_total_is_overdrawn_by_the_first_dead_record_above_it(most: int | None, dead: int, applied: int) -> None:
    said = Budget(max_dead_total=most).overdrawn(Tally(applied=applied, dead=dead))
    assert bool(said) == (most is not None and dead > most)
    assert said is None or said == f"{dead} dead records within 1:00:00 are more than max_dead_total={most}"


@given(st.floats(0, 1), st.integers(0, 1_500), st.integers(0, 1_500))
def test_a_ratio_is_of_what_was_read_and_says_nothing_about_a_few(ratio: float, dead: int, applied: int) -> None:
    said = Budget(max_dead_ratio=ratio).overdrawn(Tally(applied=applied, dead=dead, absent=9, lost=9, skipped=9))
    enough = dead + applied >= RATIO_NEEDS
    assert bool(said) == (enough and dead > ratio * (dead + applied))
    assert said is None or said.startswith(f"{dead} dead records of {dead + applied} within")


@given(st.floats(0, 1), st.integers(0, 1_500), st.integers(0, 1_500))
def test_a_batch_that_is_mostly_dead_fails_once_there_are_enough_records(ratio: float, dead: int, applied: int) -> None:
    budget, recent = Budget(max_dead_ratio_per_batch=ratio), Tally(applied=applied, dead=dead)
    assert budget.is_suspicious(recent) == (dead > ratio * (dead + applied))
    if dead + applied >= RATIO_NEEDS and dead > ratio * (dead + applied):
        words = (
            rf"group shop: .* records are dead, .*max_dead_ratio_per_batch={ratio} .*: price: 'x' .*moved no position.*"
            "start a new window: tallymark resume shop"
        )
        with pytest.raises(TooManyDead, match=words):
            budget.check_ratio("shop", recent, "price: 'x' does not fit DOUBLE")
    else:
        budget.check_ratio("shop", recent, "")


@pytest.mark.parametrize("off", [None, 1])
def test_a_ratio_of_a_batch_can_be_turned_off(off: float | None) -> None:
    assert not Budget(max_dead_ratio_per_batch=off).is_suspicious(Tally(dead=5_000))
    assert Budget().is_suspicious(Tally(dead=5_000))


def test_the_window_starts_anew_when_the_group_is_resumed() -> None:
    budget = Budget(window=HOUR)
    assert budget.window_start(NOON, None) == NOON - HOUR
    long_ago = GroupState("running", None, "me", NOON - timedelta(days=1))
    assert budget.window_start(NOON, long_ago) == NOON - HOUR
    just_now = GroupState("running", None, "me", NOON - timedelta(minutes=5))
    assert budget.window_start(NOON, just_now) == NOON - timedelta(minutes=5)


def test_only_limits_over_a_while_need_the_history() -> None:
    assert not Budget().has_window
    assert Budget(max_dead_total=0).has_window
    assert Budget(max_dead_ratio=0.0).has_window


@pytest.mark.parametrize(
    "settings",
    [
        {"max_dead_per_batch": -1},
        {"max_dead_total": -1},
        {"max_dead_ratio": -0.1},
        {"max_dead_ratio": 1.1},
        {"max_dead_ratio": float("nan")},
        {"max_dead_ratio_per_batch": 1.1},
    ],
)
def test_a_budget_that_means_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="Budget: counts must be 0 or more, ratios between 0 and 1, not"):
        Budget(**settings)
