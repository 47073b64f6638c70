"""A reader that counts wrong is stopped before anything is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.commit import account, check_letters
from tallymark.errors import TallymarkError
from tallymark.plan import Move
from tallymark.read import DeadLetter, Reading, Seen
from tallymark.spans import Partition, Tally
from tests.unit.strategies import NOON

ZERO = Partition("orders", 0)
small = st.integers(0, 20)


@given(st.builds(Move, st.just(ZERO), small, small, small), small, small)
def test_every_offset_of_a_move_is_accounted_for_once_or_the_count_is_refused(
    move: Move, records: int, dead: int
) -> None:
    if dead <= records <= move.read:
        step = account(move, Seen(records, dead, NOON), epoch=4)
        assert step.tally == Tally(records - dead, dead, 0, move.lost, move.read - records)
        assert step.tally.total == step.stop - step.start
        assert (step.start, step.stop, step.epoch, step.record_time) == (move.start, move.stop, 4, NOON)
    else:
        with pytest.raises(TallymarkError, match=rf"orders\[0\].*counted {records} records, {dead} of them dead"):
            account(move, Seen(records, dead), epoch=4)


def letter(offset: int) -> DeadLetter:
    return DeadLetter(ZERO, offset, None, None, b"x", [], None, "not JSON")


def test_every_dead_record_has_its_letter() -> None:
    seen = {ZERO: Seen(5, 1), Partition("orders", 1): Seen(5, 1)}
    check_letters(Reading(seen, {}, [letter(1), letter(2)]))
    for letters in ([], [letter(1)], [letter(1), letter(2), letter(3)]):
        with pytest.raises(TallymarkError, match=f"counted 2 dead records and kept {len(letters)} of them"):
            check_letters(Reading(seen, {}, letters))
