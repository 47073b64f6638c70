"""Halving refuses exactly the items that no other item of the batch makes valid, in few attempts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.halving import Undoing, in_any_order, in_new_transactions, in_order, one_by_one

SIZE = 40
bad = st.sets(st.integers(0, SIZE - 1), max_size=6)


class Table:
    """Accepts a part if everything its items need is in the part or was accepted before; counts the attempts."""

    def __init__(self, bad: set[int], needs: dict[int, int] | None = None) -> None:
        self.taken: list[int] = []
        self.tries = 0
        self._bad, self._needs = bad, needs or {}

    def __call__(self, part: range) -> str | None:
        self.tries += 1
        there = {*self.taken, *part}
        wrong = [at for at in part if at in self._bad or self._needs.get(at, at) not in there]
        if not wrong:
            self.taken += part
        return f"{wrong[0]}" if wrong else None


@given(bad)
def test_in_order_all_others_are_taken_in_their_order(bad: set[int]) -> None:
    table = Table(bad)
    refused = list(in_order([range(SIZE)], table))
    assert [(list(part), error) for part, error in refused] == [([at], f"{at}") for at in sorted(bad)]
    assert table.taken == [at for at in range(SIZE) if at not in bad]
    assert table.tries <= 1 + 2 * len(bad) * math.ceil(math.log2(SIZE))


@given(bad, st.permutations(range(SIZE)), st.data())
def test_in_any_order_only_those_are_refused_that_need_what_is_refused(
    bad: set[int], order: list[int], data: st.DataObject
) -> None:
    """Each item may need one that precedes it in some order, so that there are no cycles."""
    needs = {at: order[data.draw(st.integers(0, rank))] for rank, at in enumerate(order)}
    table = Table(bad, needs)
    dead = set(bad)
    while new := {at for at in needs if needs[at] in dead} - dead:
        dead |= new
    refused = in_any_order([range(SIZE // 3), range(SIZE // 3, SIZE)], table)
    assert sorted(part[0] for part, _ in refused) == sorted(dead)
    assert sorted(table.taken) == [at for at in range(SIZE) if at not in dead]


@pytest.mark.parametrize("step", [1, -1])
def test_a_long_chain_takes_few_tries(step: int) -> None:
    size = 4096
    table = Table({size // 2}, {at: at + step for at in range(1, size - 1) if at + step != size // 2})
    assert [part[0] for part, _ in in_any_order([range(size)], table)] == [size // 2]
    assert table.tries < 10 * size


def test_the_search_ends_when_there_is_enough() -> None:
    table = Table(set(range(1000)))
    assert len(in_any_order([range(1000)], table, lambda parts: len(parts) >= 16)) == 16
    assert table.tries == 31


@given(bad)
def test_items_that_undo_the_transaction_are_found_in_new_ones(bad: set[int]) -> None:
    taken: list[int] = []

    def attempt(part: list[int]) -> None:
        if wrong := bad & set(part):
            raise Undoing(part, min(wrong))
        taken.extend(part)

    def work(found: list[tuple[list[int], int]], singly: bool) -> list[int]:
        taken.clear()
        rest = [at for at in range(SIZE) if at not in {part[0] for part, _ in found}]
        assert not list(in_order(one_by_one(rest) if singly else [rest], attempt))
        return [error for _, error in found]

    assert in_new_transactions(work) == sorted(bad)  # type: ignore[arg-type]
    assert taken == [at for at in range(SIZE) if at not in bad]
