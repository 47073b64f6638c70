"""Resets race with a starting run and with each other: one wins, and every record is as the journal says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tallymark.core.claims import Advance, Entry, PositionChanges
from tallymark.core.spans import Log, Partition, Tally
from tallymark.errors import CommitRefused, PositionMoved
from tallymark.kafka.brokers import Brokers, Topic
from tallymark.kafka.membership import Standalone
from tallymark.operate.emptying import Consent
from tallymark.operate.moves import Resetting
from tallymark.operate.reset import Aim
from tallymark.operate.survey import ledger
from tallymark.run.setup import new_owner
from tallymark.stores.opening import open_store
from tests.support.kafka import Topics
from tests.support.standing import Service, journal, make_table, numbers, offsets, seen, stand, standing

PARTITIONS = 3
MANY = 15
AIMS = (5, 15, 25)
SQL = ("postgresql", "mariadb", "sqlite")


def several(*kinds: str) -> list[Any]:
    """Two rounds on the first store; many on all of them in ``make faults``."""
    many = [pytest.param((kind, MANY), marks=pytest.mark.faults, id=f"{kind}-many") for kind in kinds]
    return [pytest.param((kinds[0], 2), id=kinds[0]), *many]


@pytest.fixture
def store(rounds_on: tuple[str, int], database: Callable[[str], str]) -> str:
    kind, _ = rounds_on
    return database(kind)


@pytest.fixture
def topic(topics: Topics) -> str:
    made = topics.create(PARTITIONS)
    topics.send(made, numbers(40 * PARTITIONS), partitions=PARTITIONS)
    return made


@pytest.fixture
def groups(group: str, rounds_on: tuple[str, int]) -> list[str]:
    """One for each round."""
    return [f"{group}-{number}" for number in range(rounds_on[1])]


def at_once(*jobs: Callable[[], Any]) -> list[BaseException | None]:
    """Start all of them at the same moment; returns what each of them raised."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> BaseException | None:
        start.wait()
        try:
            job()
        except CommitRefused as refused:
            return refused
        return None

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def reset(store: str, brokers: str, group: str, topic: str, aim: Aim, *, take_over: bool = False) -> None:
    with ledger(store, group) as opened:
        resetting = Resetting(opened, group, Brokers(brokers), aim, [topic], all_topics=False)
        resetting.execute("a test", None, take_over=take_over, consent=Consent(repeat=aim.kind == "offset"))


def to_offset(number: int) -> Aim:
    return Aim("offset", f"--to-offset {number}", number=number)


def go_on(store_url: str, group: str, partition: Partition, stop: int) -> None:
    """A run claims the partition, commits up to this offset, and stays its owner."""
    store, owner = open_store(store_url), new_owner()
    claims = store.claim(group, owner, [partition], lambda _: PositionChanges({}), {})
    at = claims[partition].position.next_offset
    step = Advance(partition, at, stop, claims[partition].epoch, Tally(applied=stop - at), None)
    store.apply([], Entry(group, f"{owner.run}-1", owner.since, owner.since, [step]))
    store.close()


def applied_as_the_journal_says(store: str, group: str, began: int, end: int) -> Counter[tuple[int, int]]:
    """Once from its start, and once more for every time that the group was moved back over it."""
    spans = [line.note.span for line in journal(store, group, "reset")]
    times = Counter((part, offset) for part in range(PARTITIONS) for offset in range(began, end))
    return times + Counter((one.partition.number, offset) for one in spans for offset in range(one.start, one.stop))


@pytest.mark.parametrize("rounds_on", several(*SQL))
def test_a_reset_against_a_run_that_starts(brokers: str, store: str, groups: list[str], topic: str) -> None:
    make_table(store)
    for group in groups:
        stand(brokers, store, group, topic, dict.fromkeys(range(PARTITIONS), 20))
        before = seen(store)
        moving = partial(reset, store, brokers, group, topic, to_offset(10))
        refused, fenced = at_once(moving, Service(brokers, store, group, topic, membership=Standalone()).catch_up)
        moved = journal(store, group, "reset")
        # All partitions or none, and the loser got an error.
        assert len(moved) == (0 if refused else PARTITIONS), refused
        assert fenced is None or moved, fenced
        Service(brokers, store, group, topic, membership=Standalone()).catch_up()
        assert seen(store) - before == applied_as_the_journal_says(store, group, 20, 40)
        assert all(position.balanced for position in standing(store, group).values())


@pytest.mark.parametrize("kind", [*SQL, "redis"])
def test_a_takeover_whose_ends_are_out_of_date_repeats_nothing(
    kind: str, database: Callable[[str], str], brokers: str, topics: Topics, group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The group commits after the log ends were read, and before its positions are locked."""
    store, topic, ask = database(kind), topics.create(3), Brokers.logs
    topics.send(topic, numbers(3 * 40), partitions=3)
    stand(brokers, store, group, topic, dict.fromkeys(range(3), 30))

    def ask_and_go_on(self: Brokers, asked: Mapping[str, Topic]) -> dict[Partition, Log]:
        found = ask(self, asked)
        for partition in found:
            topics.send_to(topic, partition.number, numbers(20))
            go_on(store, group, partition, 60)
        return found

    monkeypatch.setattr(Brokers, "logs", ask_and_go_on)
    moving = partial(reset, store, brokers, group, take_over=True)
    moving(f"{topic}:0", Aim("current", "--to-current"))
    moving(f"{topic}:1", Aim("latest", "--to-latest"))
    moving(f"{topic}:2", Aim("shift", "--shift-by 5", number=5))
    assert offsets(store, group) == dict.fromkeys(range(3), 60)
    assert journal(store, group, "reset") == []
    assert [position.tally.applied for position in standing(store, group).values()] == [30] * 3


@pytest.mark.parametrize("rounds_on", several(*SQL, "redis"))
def test_resets_at_once_are_never_mixed(brokers: str, store: str, groups: list[str], topic: str) -> None:
    for group in groups:
        stand(brokers, store, group, topic, dict.fromkeys(range(PARTITIONS), 30))
        moving = partial(reset, store, brokers, group, topic)
        refused = at_once(*(partial(moving, to_offset(to)) for to in AIMS))
        assert all(isinstance(one, PositionMoved) for one in refused if one), refused
        won = {to for to, one in zip(AIMS, refused, strict=True) if one is None}
        (at,) = set(offsets(store, group).values())
        assert at in won
        notes = [line.note for line in journal(store, group, "reset", "skip")]
        assert {note.span.partition.number for note in notes} == set(range(PARTITIONS))
        assert all(position.balanced for position in standing(store, group).values())
