"""A handler's transaction on Redis: its commands, and what is refused before anything is written.

The contract of every store is in test_contract_transaction.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from tallymark.core.claims import Claim, Entry
from tallymark.core.progress import Step
from tallymark.core.spans import Partition
from tallymark.errors import AccessDenied, BadInput, BatchTooLarge, CommitRefused, DataRefused, Fenced
from tallymark.stores.redis import script, transaction
from tallymark.stores.redis.store import RedisStore
from tests.support.commits import take, work
from tests.support.redis import client, dump, key

PARTITION = Partition("web", 0)


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    made = RedisStore(redis_url)
    made.create_ledger()
    yield made
    made.close()


@pytest.fixture
def claims(store: RedisStore) -> dict[Partition, Claim]:
    return take(store, "group", "me", [PARTITION])


def step(claims: dict[Partition, Claim], start: int = 0, stop: int = 3, dead: int = 0) -> Callable[[], Entry]:
    return lambda: work("group", "me", claims, start, stop, dead=dead).entry


def nothing() -> None:
    """No entry: the positions belong to another owner."""


def run(
    store: RedisStore,
    entry: Callable[[], Entry | None],
    *handlers: Callable[[Any], object],
    on_step: Callable[[Step], None] = lambda _: None,
) -> None:
    with store.begin(entry, on_step) as db:
        for handler in handlers:
            handler(db)


def theirs(url: str) -> dict[str, Any]:
    """All keys but those of the ledger."""
    return {name: held for name, held in dump(url).items() if not name.startswith("tallymark:")}


def position(store: RedisStore) -> int:
    return store.positions("group")["group"][0].next_offset


def test_rows_commands_and_positions_are_written_at_once(
    store: RedisStore, redis_url: str, claims: dict[Partition, Claim]
) -> None:
    steps: list[Step] = []
    with store.begin(step(claims, dead=1), steps.append) as db:
        db.write("orders", [{"id": 42, "name": "a"}], key="id", write="upsert")
        db.set("last", "x")
        db.hset("h", "f", 1.5)
        db.hset("h", {"g": b"\xff", "gone": ""})
        db.hdel("h", "gone")
        db.rpush("l", "a", "b", 3)
        db.sadd("s", "a", "b")
        db.srem("s", "b")
        db.zadd("z", {"a": 1, "b": 2.5})
        db.zrem("z", "a")
        db.incrby("n")
        db.incrby("n", 4)
        db.hincrby("counts", "x", -2)
        db.set("gone", 1)
        db.delete("gone", "never")
        assert (theirs(redis_url), steps, db.written) == ({}, [], {"orders": 1})
    assert theirs(redis_url) == {
        "orders:42": {b"id": b"42", b"name": b"a"},
        "last": b"x",
        "h": {b"f": b"1.5", b"g": b"\xff"},
        "l": [b"a", b"b", b"3"],
        "s": {b"a"},
        "z": [(b"b", 2.5)],
        "n": b"5",
        "counts": {b"x": b"-2"},
    }
    assert (steps, position(store)) == ([Step.WRITTEN, Step.MOVED], 3)
    [found] = store.positions("group")["group"]
    assert (found.tally.applied, found.tally.dead) == (2, 1)


def test_reads_see_what_was_committed_before(store: RedisStore) -> None:
    run(store, nothing, lambda db: db.set("a", 1), lambda db: db.hset("h", "f", "x"), lambda db: db.sadd("s", 1))
    run(store, nothing, lambda db: db.rpush("l", 1, 2), lambda db: db.zadd("z", {"a": 2}))
    with store.begin(nothing) as db:
        db.set("a", 2)
        db.set("b", 2)
        assert (db.get("a"), db.exists("b"), db.hget("h", "f"), db.hgetall("h")) == (b"1", False, b"x", {b"f": b"x"})
        assert (db.smembers("s"), db.lrange("l"), db.zscore("z", "a")) == ({b"1"}, [b"1", b"2"], 2.0)


def test_who_was_fenced_writes_nothing(store: RedisStore, redis_url: str, claims: dict[Partition, Claim]) -> None:
    def rival(_: object) -> None:
        take(store, "group", "rival", [PARTITION])

    def at_the_last_moment(at: Step) -> None:
        if at is Step.MOVED:
            rival(at)

    with pytest.raises(Fenced, match="rival"):
        run(store, step(claims), lambda db: db.set("a", 1), rival)
    again = take(store, "group", "me", [PARTITION])
    with pytest.raises(Fenced, match="rival"):
        run(store, step(again), lambda db: db.set("a", 1), on_step=at_the_last_moment)
    with pytest.raises(CommitRefused):
        run(store, step(take(store, "group", "me", [PARTITION]), 5, 8), lambda db: db.set("a", 1))
    assert (theirs(redis_url), position(store)) == ({}, 0)


def test_a_savepoint_forgets_what_its_block_collected(
    store: RedisStore, redis_url: str, claims: dict[Partition, Claim]
) -> None:
    with store.begin(step(claims)) as db:
        db.incrby("n")
        with suppress(KeyError), db.savepoint():
            db.incrby("n", 10)
            db.set("a", 1)
            db.write("orders", {"id": 1}, key="id", write="upsert")
            with db.savepoint():
                db.set("b", 1)
            raise KeyError
        assert db.written == {}
        with db.savepoint():
            db.incrby("n")
    assert (theirs(redis_url), position(store)) == ({"n": b"2"}, 3)


@pytest.mark.parametrize("form", ["hash", "json"])
def test_rows_are_written_in_every_mode(redis_url: str, form: str) -> None:
    url = f"{redis_url}&rows={form}"
    store = RedisStore(url)
    given = [{"id": 2, "v": 5, "x": "a"}, {"id": 1, "v": 9, "x": None}, {"id": 2, "v": 4, "x": "c"}]
    for table, options, expected in [
        ("latest", {"write": "upsert"}, b"c"),
        ("first", {"write": "ignore"}, b"a"),
        ("highest", {"write": "upsert", "version": "v"}, b"a"),
    ]:
        for number, writes in enumerate([[given], [given[:2], given[2:]], [pa.Table.from_pylist(given)]]):
            with store.begin(nothing) as db:
                for rows in writes:
                    db.write(f"{table}{number}", rows, key="id", **options)  # type: ignore[arg-type]
            found = dump(url, f"{table}{number}:")
            assert sorted(found) == ["1", "2"]
            assert (found["2"][b"x"] if form == "hash" else found["2"].split(b'"x":"')[1][:1]) == expected
    with store.begin(nothing) as db:
        for _ in range(2):
            db.write("clicks", [{"n": 1, "more": {"a": [1]}, "none": None}, {"n": 2}])
    assert len(dump(url, "clicks:")) == 4
    assert any(
        b'{"a": [1]}' in (held[b"more"] if form == "hash" else held)
        for held in dump(url, "clicks:").values()
        if form == "json" or b"more" in held
    )
    store.close()


# No command may fail in the middle: a script is not rolled back.

Handler = Callable[[Any], object]
WRONG: dict[str, tuple[type[Exception], str, Handler]] = {
    "set": (DataRefused, "list holds a list", lambda db: db.set("list", 1)),
    "hset": (DataRefused, "list holds a list", lambda db: db.hset("list", "f", 1)),
    "rpush": (DataRefused, "text holds a string", lambda db: db.rpush("text", 1)),
    "sadd": (DataRefused, "text holds a string", lambda db: db.sadd("text", 1)),
    "srem": (DataRefused, "text holds a string", lambda db: db.srem("text", 1)),
    "zadd": (DataRefused, "text holds a string", lambda db: db.zadd("text", {"a": 1})),
    "zrem": (DataRefused, "text holds a string", lambda db: db.zrem("text", 1)),
    "hdel": (DataRefused, "text holds a string", lambda db: db.hdel("text", "f")),
    "incrby": (DataRefused, "text holds a string without a number", lambda db: db.incrby("text")),
    "incrby a list": (DataRefused, "list holds a list", lambda db: db.incrby("list")),
    "zeros": (DataRefused, "without a number", lambda db: db.incrby("zeros")),
    "large": (DataRefused, "without a number", lambda db: db.incrby("large")),
    "hincrby": (DataRefused, "hash holds a hash without a number in f", lambda db: db.hincrby("hash", "f")),
    "a row": (DataRefused, "orders:1 holds a list", lambda db: db.write("orders", {"id": 1}, key="id", write="upsert")),
    "two kinds": (DataRefused, "is a string and a hash", lambda db: (db.set("k", 1), db.hset("k", "f", 1))),
    "text, then a number": (DataRefused, "needs a number", lambda db: (db.set("k", "x"), db.incrby("k"))),
    "in a hash": (DataRefused, "needs a number", lambda db: (db.hset("k", "f", "x"), db.hincrby("k", "f"))),
    "too much": (DataRefused, "15 digits", lambda db: [db.incrby("k", 6 * 10**14) for _ in range(2)]),
    "row and command": (
        DataRefused,
        "as a row and by a command",
        lambda db: (db.write("t", {"id": 1}, key="id", write="upsert"), db.hincrby("t:1", "id")),
    ),
    "ledger": (BadInput, "is reserved for the ledger", lambda db: db.delete("tallymark:schema")),
    "table of the ledger": (BadInput, "ledger", lambda db: db.write("tallymark", {"id": 1})),
    "bool": (DataRefused, "bool", lambda db: db.set("k", True)),
    "none": (DataRefused, "NoneType", lambda db: db.set("k", None)),
    "no score": (DataRefused, "not a number", lambda db: db.zadd("k", {"a": float("nan")})),
    "no member": (DataRefused, "NoneType", lambda db: db.zadd("k", {None: 1.0})),
    "half a character": (DataRefused, "surrogates not allowed", lambda db: db.set("k", "\ud800")),
    "half a character in a key": (DataRefused, "surrogates not allowed", lambda db: db.set("\ud800", 1)),
    "half a character in a field": (DataRefused, "surrogates not allowed", lambda db: db.hset("k", "\ud800", 1)),
    "null key": (DataRefused, "is NULL", lambda db: db.write("t", {"id": None, "x": 1}, key="id", write="upsert")),
    "empty row": (DataRefused, "all columns are NULL", lambda db: db.write("t", {"id": None})),
}


@pytest.mark.parametrize(("error", "words", "handler"), WRONG.values(), ids=WRONG)
def test_what_could_fail_is_refused_before_anything_is_written(
    store: RedisStore, redis_url: str, claims: dict[Partition, Claim], error: Any, words: str, handler: Handler
) -> None:
    server = client(redis_url)
    server.rpush(key(redis_url, "list"), "a")
    server.rpush(key(redis_url, "orders:1"), "a")
    server.set(key(redis_url, "text"), "abc")
    server.set(key(redis_url, "zeros"), "007")
    server.set(key(redis_url, "large"), "9" * 19)
    server.hset(key(redis_url, "hash"), "f", "1.5")
    server.close()
    before = dump(redis_url)
    with pytest.raises(error, match=words):
        run(store, step(claims), lambda db: db.set("first", 1), handler, lambda db: db.set("last", 1))
    assert dump(redis_url) == before


def test_numbers_go_on_from_what_the_block_has_set(store: RedisStore, redis_url: str) -> None:
    def count(db: Any) -> None:
        db.incrby("n", 1)
        db.set("n", 5)
        db.incrby("n", 2)
        db.hincrby("h", "a", 7)
        db.delete("h")
        db.hincrby("h", "a")
        db.hincrby("h", "a")
        db.hset("h", "b", 1)
        db.hincrby("h", "b")
        db.hset("h", "c", "text")
        db.hdel("h", "c")
        db.hincrby("h", "c")

    run(store, nothing, count)
    assert theirs(redis_url) == {"n": b"7", "h": {b"a": b"2", b"b": b"2", b"c": b"1"}}


def test_what_is_deleted_may_be_of_any_type(store: RedisStore, redis_url: str) -> None:
    run(store, nothing, lambda db: db.rpush("l", 1), lambda db: db.hset("h", "f", 1), lambda db: db.set("s", 1))
    run(store, nothing, lambda db: db.delete("l", "h", "s"), lambda db: db.rpush("l", 2))
    assert theirs(redis_url) == {"l": [b"2"]}


def test_long_commands_are_cut_in_pieces(store: RedisStore, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MOST_AT_ONCE", 4)
    run(
        store,
        nothing,
        lambda db: db.rpush("l", *range(10)),
        lambda db: db.hset("h", {str(n): n for n in range(9)}),
    )
    found = theirs(redis_url)
    assert (len(found["l"]), len(found["h"])) == (10, 9)


def test_a_batch_of_more_than_a_command_takes_is_too_large(
    store: RedisStore, claims: dict[Partition, Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MOST_ARGUMENTS", 100)
    many: Handler = lambda db: db.sadd("s", *range(100))  # noqa: E731
    with pytest.raises(BatchTooLarge):
        run(store, step(claims), many)
    with pytest.raises(BadInput):
        run(store, nothing, many)
    monkeypatch.undo()
    assert position(store) == 0


def test_a_user_needs_the_right_to_what_the_block_calls(redis_url: str) -> None:
    server, user = client(redis_url), f"clerk-{uuid.uuid4().hex[:8]}"
    server.execute_command("ACL", "SETUSER", user, "on", ">open-sesame", "+@all", "-incrby", "~*")
    store = RedisStore(redis_url.replace("redis://", f"redis://{user}:open-sesame@"))
    with pytest.raises(AccessDenied, match="may not call INCRBY"):
        run(store, nothing, lambda db: db.set("a", 1), lambda db: db.incrby("n"))
    assert theirs(redis_url) == {}
    run(store, nothing, lambda db: db.set("a", 1), lambda db: db.zrem("z", 1))
    assert theirs(redis_url) == {"a": b"1"}
    store.close()
    server.execute_command("ACL", "DELUSER", user)
    server.close()
