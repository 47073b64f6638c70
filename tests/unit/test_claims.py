"""Which owner may move a position: claims, restarts, and the reason for every refusal."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.claims import (
    Advance,
    Claim,
    Entry,
    Fill,
    Note,
    Restart,
    Skip,
    check_held,
    explain_loss,
    explain_refusal,
    explain_unfillable,
    restarted,
)
from tallymark.core.spans import Owner, Partition, Position, Span, Tally
from tallymark.errors import CommitRefused, Fenced, PositionMoved
from tests.unit.strategies import NOON, position

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
US, RIVAL = Owner("us", "here", NOON), Owner("rival", "there", NOON)
small = st.integers(0, 30)


def at(partition: Partition = ZERO, offset: int = 7, epoch: int = 1, owner: Owner | None = US) -> Position:
    return replace(position(partition, offset), epoch=epoch, owner=owner)


def step(partition: Partition = ZERO, start: int = 7, epoch: int = 1) -> Advance:
    return Advance(partition, start, start + 3, epoch, Tally(applied=3), None)


# Claims


@given(st.integers(0, 2**40))
def test_a_claim_raises_the_epoch_by_one_and_changes_nothing_else(epoch: int) -> None:
    before = at(epoch=epoch)
    claim = Claim.after(before)
    assert (claim.partition, claim.epoch) == (ZERO, epoch + 1)
    assert claim.position == replace(before, epoch=epoch + 1)


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (at(), True),
        (at(epoch=9), True),  # the run's own reclaim, whose response was lost
        (at(owner=replace(US, host="elsewhere")), True),
        (at(owner=RIVAL), False),
        (at(owner=None), False),
    ],
)
def test_a_claim_is_held_as_long_as_it_names_our_run(found: Position, held: bool) -> None:
    claims = {ONE: Claim.after(at(ONE)), ZERO: Claim.after(at())}
    assert claims[ZERO].held_in(found) is held
    if held:
        check_held(claims, {ZERO: found, ONE: at(ONE)})
    else:
        with pytest.raises(Fenced, match=r"orders\[0\] was claimed by"):
            check_held(claims, {ZERO: found, ONE: at(ONE)})


def test_a_claim_without_a_position_is_not_held() -> None:
    assert not Claim.after(at(owner=None)).held_in(at(owner=None))
    with pytest.raises(
        PositionMoved, match=r"orders\[0\]: the ledger has no position any more; check whether the group"
    ):
        check_held({ZERO: Claim.after(at())}, {})
    check_held({}, {})


# Compare and set


def test_an_advance_that_does_not_add_up_can_not_be_made() -> None:
    with pytest.raises(ValueError, match=r"does not account for 0\.\.5"):
        Advance(ZERO, 0, 5, 1, Tally(applied=4), None)


@given(small, small, st.integers(1, 3), st.integers(1, 3))
def test_a_step_is_refused_exactly_when_offset_or_epoch_differ(start: int, found: int, ours: int, epoch: int) -> None:
    refusal = explain_refusal({ZERO: at(offset=found, epoch=epoch)}, [step(start=start, epoch=ours)])
    assert (refusal is None) == (start == found and ours == epoch)
    if refusal is not None:
        assert type(refusal) is (Fenced if ours != epoch else PositionMoved)


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (at(offset=9), PositionMoved, "orders[0]: the ledger is ahead of this batch, at 9 instead of 7: "),
        (at(offset=5), PositionMoved, "orders[0]: the ledger is behind this batch, at 5 instead of 7: "),
        (at(epoch=2, owner=RIVAL), Fenced, f"orders[0] was claimed by {RIVAL} (epoch 2, this run had 1): "),
        (
            at(epoch=2, owner=None),
            Fenced,
            "orders[0] was claimed by another owner, which has released it since (epoch 2",
        ),
        # The other owner also explains why the position moved.
        (at(offset=9, epoch=2, owner=RIVAL), Fenced, "orders[0] was claimed by run rival on there since 2026-01-31"),
    ],
)
def test_a_refusal_says_why(found: Position, kind: type[CommitRefused], words: str) -> None:
    refusal = explain_refusal({ZERO: found, ONE: at(ONE)}, [step(ONE), step()])
    assert type(refusal) is kind
    assert str(refusal).startswith(words)


def test_a_position_that_is_gone_refuses_its_step() -> None:
    assert type(explain_refusal({ONE: at(ONE)}, [step(ONE), step()])) is PositionMoved
    assert str(explain_loss(ZERO, 1, None)).startswith("orders[0]: the ledger has no position any more")


# Somewhere else


@given(small, small, small, small)
def test_a_restart_stays_balanced_and_writes_down_what_it_jumped(first: int, done: int, to: int, dead: int) -> None:
    tally = Tally(applied=done, dead=dead)
    before = replace(at(offset=first + done + dead), first_offset=first, tally=tally)
    later = NOON + timedelta(minutes=1)
    moved, note = restarted(before, Restart(to, "because"), later)
    assert moved.balanced
    assert (moved.next_offset, moved.updated_at, moved.epoch, moved.owner) == (to, later, before.epoch, before.owner)
    if to == before.next_offset:
        assert note is None
        assert moved == replace(before, updated_at=later)
    elif to > before.next_offset:
        assert note == Note("skip", Span(ZERO, before.next_offset, to), "because")
        assert moved.tally == tally + Tally(skipped=to - before.next_offset)
        assert moved.first_offset == first
    else:
        assert note == Note("reset", Span(ZERO, to, before.next_offset), "because")
        assert (moved.tally, moved.first_offset) == (Tally(), to)


@given(small, small)
def test_the_end_of_a_log_that_was_asked_earlier_sends_nobody_back(at_offset: int, end: int) -> None:
    before = replace(at(offset=at_offset), first_offset=0, tally=Tally(applied=at_offset))
    moved, note = restarted(before, Restart(end, "start=latest", only_ahead=True), NOON)
    assert moved.next_offset == max(at_offset, end)
    assert moved.balanced
    assert note is None or note.kind == "skip"


def test_the_tally_of_an_entry_is_that_of_its_steps() -> None:
    lost = Advance(ONE, 0, 2, 1, Tally(lost=2), None)
    assert Entry("shop", "b", NOON, NOON, [step(), lost]).tally == Tally(applied=3, lost=2)


# What was skipped


def test_an_entry_notes_every_skip_that_it_counts() -> None:
    skipping = Advance(ZERO, 0, 5, 1, Tally(applied=2, skipped=3), None)
    noted = Note("skip", Span(ZERO, 0, 3), "because")
    assert Entry("shop", "b", NOON, NOON, [skipping], notes=[noted]).journal == [noted]
    for notes in ([], [noted, noted], [replace(noted, span=Span(ONE, 0, 3))], [replace(noted, kind="loss")]):
        with pytest.raises(ValueError, match=r"batch b skips .* offsets and notes"):
            Entry("shop", "b", NOON, NOON, [skipping], notes=notes)


@given(small, st.integers(1, 30), st.integers(1, 30), st.integers(0, 30))
def test_a_fill_takes_the_first_part_and_leaves_the_rest_open(start: int, length: int, done: int, lost: int) -> None:
    skip = Span(ZERO, start, start + length)
    tally = Tally(applied=done - lost, lost=lost)
    if done > length:
        with pytest.raises(ValueError, match="is not the first part of"):
            Fill(skip, Span(ZERO, start, start + done), tally)
        return
    fill = Fill(skip, Span(ZERO, start, start + done), tally)
    assert fill.rest == Span(ZERO, start + done, start + length)
    assert fill.change.total == 0, "the position does not move"
    assert fill.change == replace(tally, skipped=-done)
    entry = Entry("shop", "b", NOON, NOON, [step(ONE)], fills=[fill])
    assert entry.tally == Tally(applied=3) + fill.change
    assert entry.journal == [Note("backfill", fill.done, fill.reason)]
    assert entry.spans == [Span(ONE, 7, 10), fill.done]


@pytest.mark.parametrize(
    ("done", "tally"),
    [
        (Span(ONE, 0, 5), Tally(applied=5)),
        (Span(ZERO, 1, 5), Tally(applied=4)),
        (Span(ZERO, 0, 0), Tally()),
        (Span(ZERO, 0, 5), Tally(applied=4)),
        (Span(ZERO, 0, 5), Tally(applied=4, skipped=1)),
    ],
)
def test_a_fill_that_does_not_add_up_can_not_be_made(done: Span, tally: Tally) -> None:
    with pytest.raises(ValueError, match=r"is not the first part of|does not account for"):
        Fill(Span(ZERO, 0, 10), done, tally)


@pytest.mark.parametrize(
    ("found", "fine"),
    [([(0, 10)], True), ([(0, 9)], False), ([(5, 10)], False), ([], False), ([(20, 30), (0, 10)], True)],
)
def test_only_a_skip_that_is_open_as_it_was_can_be_filled(found: list[tuple[int, int]], fine: bool) -> None:
    skips = [Skip(Span(ZERO, *span), "because", NOON) for span in found]
    refusal = explain_unfillable(skips, [Fill(Span(ZERO, 0, 10), Span(ZERO, 0, 5), Tally(applied=5))])
    assert (refusal is None) == fine
    if refusal is not None:
        assert str(refusal).startswith("orders[0] 0..10 is no longer an open skip: another run has filled it")
