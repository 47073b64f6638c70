"""Redis servers that crash, are full, are a cluster, or refuse permissions."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
import redis

from tallymark.core.progress import Step
from tallymark.core.spans import GroupState, Partition
from tallymark.core.tables import Changes, TableSpec
from tallymark.errors import AccessDenied, BadInput, SandboxError, TallymarkError, Unreachable
from tallymark.local.sandbox.server import free_port
from tallymark.stores.opening import open_store
from tallymark.stores.redis import script
from tallymark.stores.redis.store import RedisStore
from tests.support.background import Background, wait_for
from tests.support.commits import EVENTS, SCHEMA, SINCE, take, work
from tests.support.redis import OwnRedis, OwnValkey, client, dump

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)
BOTH = [ZERO, ONE]
GROUP = "group"


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnValkey]:
    server = getattr(request, "param", OwnValkey)(tmp_path / "own")
    try:
        server.start()
    except SandboxError as error:
        if isinstance(server, OwnRedis):
            pytest.skip(f"no Redis on this machine: {error}")
        raise
    with server:
        yield server


def ready(url: str) -> RedisStore:
    store = RedisStore(url)
    store.create_ledger()
    store.create_tables([EVENTS], {"events": SCHEMA})
    return store


# A crash of the server


@pytest.mark.parametrize("own", [OwnValkey, pytest.param(OwnRedis, marks=pytest.mark.faults)], indirect=True)
def test_a_killed_server_loses_rows_and_positions_together(own: OwnValkey) -> None:
    store = ready(own.url)
    held = take(store, GROUP, "one", BOTH)
    committed, enough = 0, threading.Event()

    def commit_on() -> None:
        nonlocal committed
        with suppress(Unreachable):
            while True:
                made = work(GROUP, "one", held, committed, committed + 7)
                store.apply(made.changes, made.entry)
                committed += 7
                if committed >= 700:
                    enough.set()

    with Background(commit_on):
        assert enough.wait(30)
        own.kill()
    own.start()
    positions = store.positions(GROUP)[GROUP]
    assert len({found.next_offset for found in positions}) == 1
    assert 0 < positions[0].next_offset <= committed + 7
    assert all(found.balanced for found in positions)
    rows = [(row[b"partition_id"], row[b"record_offset"]) for row in dump(own.url, "events:").values()]
    assert len(rows) == len(set(rows)) == sum(found.next_offset for found in positions)
    again = store.reclaim(GROUP, held)
    made = work(GROUP, "one", again, positions[0].next_offset, positions[0].next_offset + 1)
    store.apply(made.changes, made.entry)


def test_a_file_that_ends_in_the_middle_of_a_commit_is_read_up_to_the_one_before(own: OwnValkey) -> None:
    store = ready(own.url)
    held = take(store, GROUP, "one", BOTH)
    log = own.directory / "appendonlydir"
    for start in (0, 10):
        made = work(GROUP, "one", held, start, start + 10)
        store.apply(made.changes, made.entry)
    own.kill()
    [written] = log.glob("*.incr.aof")
    whole = written.read_bytes()
    written.write_bytes(whole[: whole.rindex(b"MULTI") + (len(whole) - whole.rindex(b"MULTI")) // 2])
    own.start()
    assert {found.next_offset for found in store.positions(GROUP)[GROUP]} == {10}
    assert len(dump(own.url, "events:")) == 20


# A cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with OwnValkey(tmp_path / "cluster", cluster_enabled="yes", cluster_port=str(free_port())) as server:
        node = client(server.url)
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_for(lambda: bool(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok"))
        yield server.url


def test_all_of_a_store_is_in_one_slot_of_a_cluster(cluster: str) -> None:
    url = cluster.replace("redis://", "redis+cluster://").removesuffix("/0") + "?tag=shop"
    store = ready(url)
    store.ping()
    held = take(store, "a:b", "one", BOTH)
    made = work("a:b", "one", held, 0, 5, dead=1)
    store.apply(made.changes, made.entry)
    store.set_state("a:b", GroupState("paused", None, None, SINCE))
    assert {found.next_offset for found in store.positions()["a:b"]} == {5}
    assert store.recent("a:b", SINCE).applied == 8
    store.prune("a:b", {"batches": SINCE})
    store.release("a:b", store.reclaim("a:b", held).values())
    names = list(client(cluster).scan_iter(count=1000))
    assert len({client(cluster).execute_command("CLUSTER", "KEYSLOT", name) for name in names}) == 1
    store.close()


def test_keys_of_two_slots_are_refused(cluster: str) -> None:
    """Every key is declared to the server, which refuses keys without the tag."""
    with pytest.raises(redis.exceptions.ResponseError, match="same slot"):
        script.run(client(cluster), ["a", "b"], script.ScriptInput().arguments())


def test_a_server_that_is_no_cluster_is_told_from_one(servers: dict[str, str]) -> None:
    url = servers["redis"].replace("redis://", "redis+cluster://").removesuffix("/0")
    with pytest.raises(BadInput, match=r"is not a cluster: write the URL as redis://"):
        RedisStore(url).ping()


# Memory, permissions, connections


def test_a_full_server_takes_nothing_and_all_of_it_later(own: OwnValkey) -> None:
    store, server = ready(own.url), client(own.url)
    held = take(store, GROUP, "one", BOTH)
    made = work(GROUP, "one", held, 0, 5, dead=1)
    before = dump(own.url)
    server.config_set("maxmemory", 1)
    with pytest.raises(Unreachable, match="out of memory, nothing was written"):
        store.apply(made.changes, made.entry)
    assert dump(own.url) == before
    assert len(store.positions(GROUP)[GROUP]) == 2
    server.config_set("maxmemory", 0)
    store.apply(made.changes, made.entry)
    assert len(dump(own.url, "events:")) == 8


@pytest.mark.parametrize("own", [OwnValkey, OwnRedis], indirect=True)
def test_a_full_server_never_takes_half_of_a_commit(own: OwnValkey) -> None:
    """A deletion is allowed when memory is full: after it, the rest of the script must succeed, too."""
    spec = TableSpec("orders", key=("id",), write="upsert", delete="tombstone")
    store, server = ready(own.url), client(own.url)
    old, new = pa.table({"id": [1]}), pa.table({"id": list(range(2, 500))})
    store.apply([Changes(spec, old, old.slice(0, 0))], None)
    server.config_set("maxmemory", 1)
    store.apply([Changes(spec, new, old)], None)
    assert len(dump(own.url, "orders:")) == new.num_rows


def test_a_server_that_throws_keys_away_is_refused(own: OwnValkey) -> None:
    client(own.url).config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(BadInput, match=r"maxmemory-policy allkeys-lru.*set it to noeviction"):
        RedisStore(own.url).create_ledger()
    client(own.url).config_set("maxmemory-policy", "volatile-lru")
    RedisStore(own.url).create_ledger()


def test_a_replica_takes_no_writes(own: OwnValkey) -> None:
    store = ready(own.url)
    held = take(store, GROUP, "one", BOTH)
    client(own.url).execute_command("REPLICAOF", "127.0.0.1", free_port())
    made = work(GROUP, "one", held, 0, 5)
    with pytest.raises(Unreachable, match="is not writable"):
        store.apply(made.changes, made.entry)
    assert dump(own.url, "events:") == {}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("+@all -zadd ~*", "may not call ZADD"),
        ("+@all -hdel ~*", "may not call HDEL"),
        ("+@all -hget ~*", "check the user"),
        ("+@all ~{tallymark}:tallymark:*", "check the user"),
        ("-@all +ping +select +client ~*", "check the user"),
    ],
)
def test_a_user_who_may_not_do_all_of_it_does_nothing(own: OwnValkey, rules: str, words: str) -> None:
    store = ready(own.url)
    held = take(store, GROUP, "one", BOTH)
    made = work(GROUP, "one", held, 0, 5, dead=1)
    before = dump(own.url)
    client(own.url).execute_command("ACL", "SETUSER", "clerk", "on", ">open-sesame", *rules.split())
    denied = RedisStore(own.url.replace("redis://", "redis://clerk:open-sesame@"))
    with pytest.raises(AccessDenied, match=words) as refused:
        denied.apply(made.changes, made.entry)
    assert dump(own.url) == before
    assert "open-sesame" not in f"{refused.value}{refused.value.__cause__}"


def test_a_wrong_password_is_denied_and_never_shown(own: OwnValkey) -> None:
    store = RedisStore(own.url.replace("redis://", "redis://clerk:open-sesame@") + "?tag=shop")
    with pytest.raises(AccessDenied, match="check the user, the password") as refused:
        store.ping()
    assert "open-sesame" not in f"{refused.value}{refused.value.__cause__}{store.name}"
    assert store.name == f"redis://clerk:***@127.0.0.1:{own.port}/0"


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "rediss"])
def test_nobody_there_is_unreachable(scheme: str) -> None:
    store = RedisStore(f"{scheme}://127.0.0.1:{free_port()}")
    for call in (store.ping, store.create_ledger, store.positions):
        with pytest.raises(Unreachable):
            call()
    store.close()


def test_a_script_that_the_server_forgot_is_sent_again(redis_url: str, group: str) -> None:
    store = ready(redis_url)
    held = take(store, group, "one", BOTH)
    client(redis_url).script_flush()
    made = work(group, "one", held, 0, 5)
    store.apply(made.changes, made.entry)
    assert len(dump(redis_url, "events:")) == 10


def test_a_lost_answer_is_not_asked_for_again(own: OwnValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client must not resend a script: the second response would be that of a late script."""
    store = ready(own.url)
    held = take(store, GROUP, "one", BOTH)
    made = work(GROUP, "one", held, 0, 5)
    sent = 0

    def lose_the_answer(*_: object, **__: object) -> object:
        nonlocal sent
        sent += 1
        raise redis.exceptions.TimeoutError("the answer was lost")

    def break_connections(step: Step) -> None:
        if step is Step.MOVED:
            monkeypatch.setattr("redis.connection.Connection.read_response", lose_the_answer)

    with pytest.raises(Unreachable, match="the answer was lost"):
        store.apply(made.changes, made.entry, break_connections)
    monkeypatch.undo()
    assert sent == 1
    assert {held.position.next_offset for held in store.reclaim(GROUP, held).values()} == {5}


# URLs


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://host?colour=red", "the option colour is not known"),
        ("redis://host?rows=xml", "rows=xml is not known"),
        ("redis://host?tag=a}b", "tag= takes one name"),
        ("redis://host?tag=a&tag=b", "tag= takes one name"),
        ("redis://host/orders", "/orders is not a database number"),
        ("redis+cluster://host/1", "a cluster has only database 0"),
    ],
)
def test_urls_that_mean_nothing_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        RedisStore(url.replace("//", "//me:open-sesame@"))


def test_a_database_that_the_server_does_not_have_is_refused(servers: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="DB index is out of range"):
        RedisStore(servers["redis"].removesuffix("/0") + "/4000").ping()


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "valkey"])
def test_redis_urls_open_redis_stores(scheme: str) -> None:
    assert isinstance(open_store(f"{scheme}://host:6379"), RedisStore)


def test_without_the_package_the_way_out_is_named() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from tallymark.stores.opening import open_store\n"
        "open_store('redis://me:open-sesame@host/0')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BadInput: redis://me:***@host/0 needs redis, which is not installed: pip install 'tallymark[redis]'" in (
        done.stderr
    )


def test_other_failures_are_ours_too(redis_url: str, group: str) -> None:
    store = ready(redis_url)
    client(redis_url).set(f"{{{redis_url.split('=')[1]}}}:tallymark:positions:{group}", "mine")
    with pytest.raises(TallymarkError, match="WRONGTYPE"):
        store.positions(group)
