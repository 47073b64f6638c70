"""The contract of every store for a handler's transaction: rows and positions commit together, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tallymark.core.claims import Claim, Entry
from tallymark.core.progress import Step
from tallymark.core.spans import Partition
from tallymark.errors import BadInput, CommitRefused, Fenced, Unreachable
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_store
from tests.support.background import Background
from tests.support.commits import SEVERAL_WRITERS, take, work
from tests.support.databases import execute
from tests.support.proxy import Cut, Lose, Proxy
from tests.support.truth import rows

PARTITION = Partition("web", 0)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    made.create_ledger()
    if not url.startswith("redis"):
        execute(url, "CREATE TABLE seen (id INTEGER NOT NULL PRIMARY KEY)")
    yield made
    made.close()


@pytest.fixture
def claims(store: Store) -> dict[Partition, Claim]:
    return take(store, "group", "me", [PARTITION])


def step(claims: dict[Partition, Claim], start: int = 0, stop: int = 3, dead: int = 0) -> Callable[[], Entry]:
    return lambda: work("group", "me", claims, start, stop, dead=dead).entry


def nothing() -> None:
    """No entry: the positions do not move."""


def insert(db: Any, number: int) -> None:
    """Insert a row into ``seen`` with a statement of SQL or a command of Redis."""
    if hasattr(db, "hset"):
        db.hset(f"seen:{number}", "id", number)
    else:
        db.execute("INSERT INTO seen (id) VALUES (:id)", {"id": number})


def seen(url: str, table: str = "seen") -> list[int]:
    return sorted(number for (number,) in rows(url, table, "id").elements())


def position(store: Store) -> int:
    return store.positions("group")["group"][0].next_offset


# Both or neither


def test_rows_and_positions_commit_together(store: Store, url: str, claims: dict[Partition, Claim]) -> None:
    steps: list[Step] = []
    with store.begin(step(claims, dead=1), steps.append) as db:
        insert(db, 1)
        db.write("made", [{"id": 2}, {"id": 3}], key="id", write="upsert")
        assert (steps, seen(url), db.written) == ([], [], {"made": 2})
    assert steps == [Step.WRITTEN, Step.MOVED]
    assert (seen(url), seen(url, "made"), position(store)) == ([1], [2, 3], 3)
    [found] = store.positions("group")["group"]
    assert (found.tally.applied, found.tally.dead) == (2, 1)


def test_the_entry_is_asked_for_when_the_block_has_ended(store: Store, claims: dict[Partition, Claim]) -> None:
    dead = 0
    with store.begin(lambda: step(claims, dead=dead)()) as db:
        insert(db, 1)
        dead = 2
    assert store.positions("group")["group"][0].tally.dead == 2


@pytest.mark.parametrize("at", ["block", "entry", Step.WRITTEN, Step.MOVED])
def test_whatever_raises_nothing_is_written(at: str, store: Store, url: str, claims: dict[Partition, Claim]) -> None:
    def fail(here: str) -> None:
        if here == at:
            raise KeyError(at)

    def entry() -> Entry:
        fail("entry")
        return step(claims)()

    def handle() -> None:
        with store.begin(entry, fail) as db:
            insert(db, 1)
            db.write("seen", {"id": 2})
            fail("block")

    with pytest.raises(KeyError, match=at):
        handle()
    assert (seen(url), position(store)) == ([], 0)
    at = "nowhere"
    handle()
    assert (seen(url), position(store)) == ([1, 2], 3)


def test_without_an_entry_the_rows_commit_alone(store: Store, url: str, claims: dict[Partition, Claim]) -> None:
    with store.begin(nothing) as db:
        insert(db, 1)
    with store.begin(nothing):
        pass
    assert (seen(url), position(store)) == ([1], 0)
    with store.begin(step(claims)):
        pass
    assert (seen(url), position(store)) == ([1], 3), "a block that writes nothing moves the position"


@SEVERAL_WRITERS
def test_an_owner_that_is_fenced_inside_the_block_writes_nothing(
    store: Store, url: str, claims: dict[Partition, Claim]
) -> None:
    def rival_comes() -> Entry:
        take(store, "group", "rival", [PARTITION])
        return step(claims)()

    with pytest.raises(Fenced, match="rival"), store.begin(rival_comes) as db:
        insert(db, 1)
    assert (seen(url), position(store)) == ([], 0)


def test_an_owner_that_was_fenced_before_its_first_statement_writes_nothing(
    store: Store, url: str, claims: dict[Partition, Claim]
) -> None:
    def handle() -> None:
        with store.begin(step(claims)) as db:
            take(store, "group", "rival", [PARTITION])
            insert(db, 1)

    with pytest.raises(Fenced, match="rival"):
        handle()
    assert (seen(url), position(store)) == ([], 0)


def test_a_position_that_moved_refuses_the_commit(store: Store, url: str, claims: dict[Partition, Claim]) -> None:
    with pytest.raises(CommitRefused, match="behind this batch"), store.begin(step(claims, 5, 8)) as db:
        insert(db, 1)
    assert (seen(url), position(store)) == ([], 0)


@pytest.mark.parametrize("lose", ["request", "reply"])
@pytest.mark.parametrize("url", ["postgresql", "mariadb", "redis"], indirect=True)
def test_a_connection_that_breaks_in_the_commit_leaves_both_or_neither(
    lose: Lose, store: Store, url: str, proxy: Proxy, claims: dict[Partition, Claim]
) -> None:
    through = open_store(proxy.url)

    def cut(at: Step) -> None:
        if at is Step.MOVED:
            proxy.arm(Cut(proxy.commit, lose))

    with pytest.raises(Unreachable), through.begin(step(claims), cut) as db:
        insert(db, 1)
    through.close()
    assert (seen(url), position(store)) == (([1], 3) if lose == "reply" else ([], 0))


# Inside the block


def test_a_savepoint_undoes_its_block_and_lets_the_error_pass(
    store: Store, url: str, claims: dict[Partition, Claim]
) -> None:
    with store.begin(step(claims)) as db:
        insert(db, 1)
        with db.savepoint():
            insert(db, 2)
            with suppress(KeyError):
                with db.savepoint():
                    insert(db, 3)
                    db.write("others", {"id": 3})
                    with db.savepoint():
                        insert(db, 4)
                    raise KeyError
                pytest.fail("the error has to pass")
        assert db.written == {}
        db.write("others", {"id": 5})
        assert db.written == {"others": 1}
    assert (seen(url), seen(url, "others"), position(store)) == ([1, 2], [5], 3)


def test_another_thread_may_go_on_with_it(store: Store, url: str, claims: dict[Partition, Claim]) -> None:
    with store.begin(step(claims)) as db:
        Background(lambda: insert(db, 1)).start().result()
        Background(lambda: db.write("seen", {"id": 2})).start().result()
        insert(db, 3)
    assert (seen(url), position(store)) == ([1, 2, 3], 3)


def test_after_the_block_the_transaction_is_over(store: Store, url: str) -> None:
    with store.begin(nothing) as db:
        insert(db, 1)
    uses: list[Callable[[], object]] = [
        lambda: insert(db, 2),
        lambda: db.write("seen", {"id": 2}),
        lambda: db.savepoint().__enter__(),
    ]
    for use in uses:
        with pytest.raises(BadInput, match="has ended"):
            use()
    assert seen(url) == [1]
