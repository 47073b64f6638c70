"""When a log may have been truncated, which request checks that, and how its response is used."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.batch import account
from tallymark.core.claims import Advance, Claim, Note, Restart, advanced, restarted
from tallymark.core.plan import Move, Plan, plan
from tallymark.core.records import PartitionCounts
from tallymark.core.spans import Log, Mark, Partition, Span, Tally, Truncation
from tallymark.errors import LogTruncated, PositionMoved, PositionRefused
from tallymark.run.claimed import Cursor
from tallymark.run.truncation import Validation, may_be_truncated
from tallymark.run.until import Retrying
from tests.unit.strategies import NOON, log, position

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
epochs = st.none() | st.integers(0, 5)


def led(epoch: int | None, partition: Partition = ZERO, start: int = 0) -> Log:
    return replace(log(partition, start, 120), leader_epoch=epoch)


class Asked:
    """Brokers that found these truncations, and the number of requests."""

    def __init__(self, cut: Mapping[Partition, int]) -> None:
        self.cut, self.questions = cut, list[Any]()

    def truncated(self, positions: Mapping[Partition, tuple[int, int]]) -> Mapping[Partition, int]:
        self.questions.append(positions)
        return {one: at for one, at in self.cut.items() if one in positions}


def validation(asked: Asked) -> Validation:
    return Validation(cast("Any", asked), Retrying(threading.Event(), 0.1))


# When a check is needed


@given(st.integers(0, 200), epochs, epochs, st.integers(0, 100))
def test_there_is_a_doubt_only_after_an_election_and_if_something_was_read(
    offset: int, known: int | None, now: int | None, start: int
) -> None:
    doubt = may_be_truncated(Mark(offset, known), led(now, start=start))
    assert doubt == (known is not None and now is not None and now > known and offset > start)


def test_every_election_is_asked_about_once() -> None:
    asked = Asked({})
    checks, marks = validation(asked), {ZERO: Mark(100, 1), ONE: Mark(100, 2)}
    checks.check(marks, {ZERO: led(1), ONE: led(2, ONE)})
    assert asked.questions == []
    for _ in range(2):
        checks.check(marks, {ZERO: led(2), ONE: led(2, ONE)})
        assert asked.questions == [{ZERO: (100, 1)}]
    assert checks.elected(marks, {ZERO: led(3), ONE: led(2, ONE)}) == {ZERO}
    checks.check({ZERO: Mark(110, 1)}, {ZERO: led(2)})
    assert asked.questions[1:] == [{ZERO: (110, 1)}]


def test_a_truncation_says_what_happened_and_the_way_out() -> None:
    checks = validation(Asked({ZERO: 50}))
    with pytest.raises(PositionRefused, match=r"orders\[0\]: the log was truncated at 50 by an unclean") as refused:
        checks.check({ZERO: Mark(100, 1), ONE: Mark(100, 1)}, {ZERO: led(2), ONE: led(2, ONE)})
    words = "of 50..100 are no longer in it, and new records reuse these offsets; to continue at 50, set on_loss="
    assert words in str(refused.value)
    assert str(refused.value).endswith("tallymark reset --topic orders:0 --to-offset 50")
    assert isinstance(refused.value, LogTruncated)
    assert refused.value.found == (Truncation(ZERO, 100, 50, 2),)


# The epoch beside the position


def test_a_move_has_the_epoch_of_the_leader_that_told_its_end_also_in_parts() -> None:
    whole = plan({ZERO: 0}, {ZERO: led(3)}, 100)
    assert [move.leader_epoch for move in (*whole.moves, *whole.part().moves)] == [3, 3]
    assert whole.after(whole.part()) == Plan((Move(ZERO, 50, 0, 50, leader_epoch=3),))


@given(epochs)
def test_a_position_gets_the_epoch_of_the_move_to_it(epoch: int | None) -> None:
    assert account(Move(ZERO, 7, 0, 3, leader_epoch=epoch), PartitionCounts(3), 0, 1).leader_epoch == epoch


@pytest.mark.parametrize(("of_step", "kept"), [(None, 4), (0, 0), (6, 6)])
def test_a_step_that_knows_no_epoch_leaves_it(of_step: int | None, kept: int) -> None:
    claim = Claim.after(replace(position(ZERO, 7), leader_epoch=4))
    step = Advance(ZERO, 7, 9, claim.epoch, Tally(applied=2), None, of_step)
    moved = advanced(claim, step, NOON).position
    assert (moved.mark, moved.tally) == (Mark(9, kept), Tally(applied=2))
    assert advanced(replace(claim, position=moved), step, NOON).position == moved
    cursor = Cursor({ZERO: claim.position.mark})
    cursor.pass_by([Move(ZERO, 7, 0, 2, leader_epoch=of_step)])
    assert cursor.marks == {ZERO: Mark(9, kept)}


# Going back


def test_a_truncation_is_noted_and_begins_a_new_tally_with_the_new_epoch() -> None:
    before = replace(position(ZERO, 100), tally=Tally(applied=100), leader_epoch=1)
    moved, note = restarted(before, Restart(50, "cut", leader_epoch=2, truncated_from=100), NOON)
    assert note == Note("truncation", Span(ZERO, 50, 100), "cut")
    assert (moved.mark, moved.first_offset, moved.tally) == (Mark(50, 2), 50, Tally())


def test_a_position_that_moved_since_is_not_sent_back() -> None:
    with pytest.raises(PositionMoved):
        restarted(position(ZERO, 110), Restart(50, "cut", truncated_from=100), NOON)


def test_a_restart_to_where_it_is_keeps_the_epoch() -> None:
    before = replace(position(ZERO, 100), leader_epoch=1)
    assert restarted(before, Restart(80, "", only_ahead=True, leader_epoch=2), NOON)[0].leader_epoch == 1
    assert restarted(before, Restart(120, "", only_ahead=True, leader_epoch=2), NOON)[0].leader_epoch == 2
