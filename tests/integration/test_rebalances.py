"""Members of a group when partitions move: nothing is lost, nothing is repeated, and the members continue."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError

import tallymark as tm
from tallymark.core.claims import PositionChanges
from tallymark.core.journal import Rebalance
from tallymark.core.spans import Owner, Partition
from tallymark.errors import BadInput, Fenced, UnknownTopic, Unreachable
from tallymark.kafka.brokers import Brokers, connect
from tallymark.kafka.fetch import Fetcher
from tallymark.kafka.member import Member
from tallymark.kafka.membership import Assignment, Group, Standalone
from tallymark.service.batch import Batch
from tallymark.service.consumer import Consumer
from tallymark.stores.opening import open_store
from tests.support import databases, truth
from tests.support.background import holds_for, wait_for
from tests.support.kafka import Topics
from tests.support.storm import seen
from tests.support.storm_member import COUNTERS, QUICK, Spec, Working, start

Join = Callable[..., Working]
IN_TRANSACTION = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%counters%'"


@pytest.fixture
def join(database: Callable[[str], str]) -> Iterator[Join]:  # members end before their database
    """``join(spec)``: a member that runs until the end of the test."""
    made: list[Working] = []

    def one(spec: Spec, inside: Callable[[Batch], None] = lambda _: None, kind: type[Working] = Working) -> Working:
        made.append(kind(spec, inside))
        return made[-1]

    yield one
    for member in made:
        member.consumer.stop()
    for member in made:
        member.wait()
        # Show why a member ended early, if a test waited for it.
        print(f"{member.spec.name} ended with {member.error!r}")


@pytest.fixture
def spec(brokers: str, database: Callable[[str], str], group: str, topics: Topics) -> Spec:
    """Members of a new group over a new topic of four partitions, into a new database."""
    url = database("sqlite")
    databases.execute(url, COUNTERS)
    return Spec(brokers, url, group, make_topic(topics, f"{group}-0"))


def make_topic(topics: Topics, name: str, partitions: int = 4) -> str:
    """A topic that brokers know: just after its creation they may not."""
    topics.create(partitions, name=name)
    wait_for(lambda: topic_is_known(topics.brokers, name))
    return name


def topic_is_known(brokers: str, name: str) -> bool:
    try:
        return bool(Brokers(brokers).topics([name]))
    except (UnknownTopic, Unreachable):
        return False


def send(topics: Topics, spec: Spec, first: int, stop: int, topic: str | None = None, partitions: int = 4) -> None:
    topics.send(topic or f"{spec.group}-0", ({"number": n} for n in range(first, stop)), partitions=partitions)


def numbers(spec: Spec) -> Counter[int]:
    """The number of rows of each number."""
    try:
        return Counter({key[0]: n for key, n in seen(spec.store)[0].items()})
    except Exception:  # noqa: BLE001 - there is no table yet
        return Counter()


def once(first: int, stop: int) -> Counter[int]:
    return Counter(range(first, stop))


def owners(spec: Spec) -> dict[tuple[str, int], str]:
    try:
        found = truth.ledger(spec.store, "positions", "topic", "partition_id", "owner")
    except Exception:  # noqa: BLE001 - there is no ledger yet
        return {}
    return {(topic, number): owner for topic, number, owner in found if owner}


def shares(spec: Spec) -> list[int]:
    """The number of partitions of each owner."""
    return sorted(Counter(owners(spec).values()).values())


def first_offsets(spec: Spec, topic: str) -> list[int]:
    found = truth.ledger(spec.store, "positions", "topic", "partition_id", "first_offset")
    return [first for name, _, first in sorted(found) if name == topic]


def epochs(spec: Spec) -> dict[int, int]:
    """How often each partition was claimed, as the ledger has it."""
    return dict(truth.ledger(spec.store, "positions", "partition_id", "epoch"))


def rebalances(spec: Spec, *members: Working) -> list[Rebalance]:
    """The rebalances that these members, or all, have recorded."""
    store, runs = open_store(spec.store), {run_of(member) for member in members}
    try:
        return [one for one in store.rebalances(spec.group) if not runs or one.run in runs]
    finally:
        store.close()


def run_of(member: Working) -> str:
    owner = member.consumer.owner
    return owner.run if owner else ""


def claim_for_another(spec: Spec, partition: int) -> None:
    """A zombie that wakes up late claims partitions that it no longer owns."""
    store, zombie = open_store(spec.store), Owner("zombie", "host", datetime.now(UTC))
    store.claim(spec.group, zombie, {Partition(f"{spec.group}-0", partition)}, lambda _: PositionChanges({}), {})
    store.close()


@contextmanager
def nothing_vanishes(consumer: Consumer) -> Iterator[None]:
    """No offset counts as absent in topics without gaps. A member that does not end by itself is stopped."""
    timer = threading.Timer(10.0, consumer.stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        counts = truth.ledger(consumer.setup.store, "positions", "absent", "lost", "skipped")
        assert set(counts) == {(0, 0, 0)}


# Zombies


def test_a_member_that_stood_still_in_its_transaction_cannot_commit(
    join: Join, spec: Spec, topics: Topics, database: Callable[[str], str], tmp_path: Path
) -> None:
    """Stopped past its session timeout, and continued after the new owner has worked, it is a normal member again."""
    url = database("postgresql")
    databases.execute(url, COUNTERS)
    settings = {**QUICK, "session.timeout.ms": 1_000}
    slow = replace(spec, store=url, name="slow", handler_seconds=0.5, settings=settings, logs=tmp_path)
    process = start(slow)
    try:
        topics.send_to(f"{spec.group}-0", 0, [{"number": 0}])
        # The table exists then: a member that stalls while it creates the table would block the others.
        wait_for(lambda: numbers(slow) == once(0, 1))
        send(topics, slow, 1, 40)
        wait_for(lambda: bool(databases.query(url, IN_TRANSACTION)))
        os.kill(process.pid, signal.SIGSTOP)
        assert numbers(slow) == once(0, 1)
        join(replace(slow, name="other"))
        wait_for(lambda: numbers(slow) == once(0, 40))
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: "fenced: " in (tmp_path / "slow.log").read_text())
        wait_for(lambda: shares(slow) == [2, 2])
        send(topics, slow, 40, 80)
        wait_for(lambda: numbers(slow) == once(0, 80))
        os.kill(process.pid, signal.SIGTERM)
        process.join(10)
        assert process.exitcode == 0
    finally:
        process.kill()
    truth.check_accounts(url)


def test_a_claim_that_comes_late_is_taken_back(join: Join, spec: Spec, topics: Topics) -> None:
    member = join(spec)
    wait_for(lambda: shares(spec) == [4])
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec) == once(0, 40))
    claim_for_another(spec, 1)
    send(topics, spec, 40, 80)
    wait_for(lambda: numbers(spec) == once(0, 80))
    assert set(owners(spec).values()) == {run_of(member)}
    assert member.alive
    truth.check_accounts(spec.store)


def test_who_reads_alone_and_is_fenced_ends_and_loses_nothing(spec: Spec, topics: Topics) -> None:
    """Part of a batch was claimed by another, so the whole batch is refused: the rest must not count as absent."""
    send(topics, spec, 0, 40)
    consumer = replace(spec, membership=Standalone()).consumer()
    fences: list[Fenced] = []
    with nothing_vanishes(consumer), pytest.raises((Fenced, BadInput)):
        go_on(consumer, 10, fences, lambda _: None if fences else claim_for_another(spec, 1))
    assert fences


def test_who_is_fenced_again_and_again_ends_and_loses_nothing(
    spec: Spec, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.run.rebalance_log.MOST_FENCES", 1)
    quick = replace(spec, settings={**QUICK, "heartbeat.interval.ms": 50})
    topics.send_to(f"{spec.group}-0", 0, ({"number": n} for n in range(100)))
    topics.send_to(f"{spec.group}-0", 1, ({"number": n} for n in range(100, 200)))
    consumer, fences = quick.consumer(), list[Fenced]()

    def claim(batch: Batch) -> None:
        if 1 in {move.partition.number for move in batch.moves}:
            claim_for_another(spec, 1)
        # Every batch contains records of the other partition.
        topics.send_to(f"{spec.group}-0", 0, [{"number": 0}])

    with nothing_vanishes(consumer), pytest.raises((Fenced, BadInput)):
        go_on(consumer, 200, fences, claim)
    assert len(fences) > 1


def go_on(consumer: Consumer, most: int, fences: list[Fenced], before: Callable[[Batch], None]) -> None:
    """A handler may take the next batch whenever it was fenced."""
    for batch in consumer.batches(most):
        before(batch)
        try:
            with batch.transaction():
                pass
        except Fenced as error:
            fences.append(error)


def held(member: Working) -> set[int]:
    """The partitions that the member reads."""
    return {one.partition.number for one in member.consumer.positions()}


def reassign(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[Partition, int]], None]) -> None:
    """From now on the group has assigned other partitions than it had, or with another number."""
    given = Member.assignment

    def changed(self: Member) -> Assignment:
        now = given(self)
        ours = dict(now.ours)
        change(ours)
        return replace(now, ours=ours)

    monkeypatch.setattr(Member, "assignment", changed)


def test_partitions_that_left_with_a_fenced_claim_are_forgotten(
    join: Join, spec: Spec, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one reconciliation, some are revoked, some are new, and one that stays was claimed by another."""
    member = join(spec)
    wait_for(lambda: shares(spec) == [4] and held(member) == {0, 1, 2, 3})

    def change(ours: dict[Partition, int]) -> None:
        # The group revokes 0 and assigns it again with a new number; it revokes 3.
        ours[Partition(f"{spec.group}-0", 0)] = 99
        del ours[Partition(f"{spec.group}-0", 3)]

    claim_for_another(spec, 1)
    reassign(monkeypatch, change)
    wait_for(lambda: held(member) == {0, 1, 2} and set(owners(spec).values()) == {run_of(member)})
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec).total() == 30)
    assert member.alive


def test_what_was_taken_and_given_back_between_two_looks_is_claimed_anew(
    join: Join, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member may have had it in between."""
    member = join(spec)
    wait_for(lambda: shares(spec) == [4] and held(member) == {0, 1, 2, 3})
    before = epochs(spec)
    reassign(monkeypatch, lambda ours: ours.update({Partition(f"{spec.group}-0", 0): 99}))
    wait_for(lambda: epochs(spec) == {**before, 0: before[0] + 1})


# Slow handlers and moves


def test_a_handler_that_takes_three_times_the_poll_interval_is_not_thrown_out(
    join: Join, spec: Spec, topics: Topics
) -> None:
    fast = {**QUICK, "session.timeout.ms": 1_000, "max.poll.interval.ms": 1_000}
    slow: list[Batch] = []

    def inside(batch: Batch) -> None:
        if not slow:
            slow.append(batch)
            time.sleep(3.0)

    join(replace(spec, settings=fast), inside)
    wait_for(lambda: shares(spec) == [4])
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec) == once(0, 40))
    assert [one.kind for one in rebalances(spec)] == ["assigned"]
    assert len(Brokers(spec.brokers).members(spec.group)) == 1


@pytest.mark.parametrize("drain", [10.0, 0.3])
def test_a_batch_in_flight_commits_before_its_partitions_move_or_not_at_all(
    join: Join, spec: Spec, topics: Topics, drain: float
) -> None:
    patient = replace(spec, membership=Group(drain=drain), name="first")
    entered, go = threading.Event(), threading.Event()

    def inside(batch: Batch) -> None:
        entered.set()
        go.wait(10)

    # Blocked before the transaction writes: SQLite would lock out all other writers.
    first = Held(patient, inside)
    wait_for(lambda: shares(spec) == [4])
    send(topics, spec, 0, 40)
    assert entered.wait(10)
    second = join(replace(patient, name="second"))
    if drain > 1:
        # The group has decided which partitions move, and waits for the first member.
        wait_for(lambda: sorted(len(one.partitions) for one in Brokers(spec.brokers).members(spec.group)) == [0, 2])
        holds_for(1.0, lambda: shares(spec) == [4], "nothing moves while the batch is in flight")
    else:
        wait_for(lambda: shares(spec) == [2, 2])
    go.set()
    wait_for(lambda: shares(spec) == [2, 2])
    wait_for(lambda: numbers(spec) == once(0, 40))
    assert first.fenced == (drain < 1)
    assert second.alive
    first.stop()
    truth.check_accounts(spec.store)


class Held(Working):
    """Waits with a batch, before it begins to write."""

    def __init__(self, spec: Spec, inside: Callable[[Batch], None]) -> None:
        self.fenced = 0
        super().__init__(spec, inside)

    def take(self, inside: Callable[[Batch], None]) -> None:
        for batch in self.consumer.batches(self.spec.most):
            inside(batch)
            try:
                with batch.transaction() as db:
                    db.write("seen", [
                        {"number": one.value["number"], "topic": one.topic, "partition_id": one.partition}
                        | {"record_offset": one.offset, "run": "held"} for one in batch.records
                    ])  # fmt: skip
            except Fenced:
                self.fenced += 1


def test_who_leaves_is_followed_at_once(join: Join, spec: Spec, topics: Topics) -> None:
    patient = replace(spec, settings={**QUICK, "session.timeout.ms": 30_000})
    first, second = join(patient), join(replace(patient, name="second"))
    wait_for(lambda: shares(spec) == [2, 2])
    left = time.monotonic()
    first.stop()
    wait_for(lambda: set(owners(spec).values()) == {run_of(second)} and len(owners(spec)) == 4)
    assert time.monotonic() - left < 5.0
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec) == once(0, 40))


# Kinds of membership


def test_a_static_member_that_was_killed_goes_on_without_a_rebalance(
    join: Join, spec: Spec, topics: Topics, tmp_path: Path
) -> None:
    settings = {**QUICK, "session.timeout.ms": 10_000}
    named = replace(spec, settings=settings, membership=Group(instance="one"), name="named", logs=tmp_path)
    other = join(replace(spec, settings=settings, membership=Group(instance="two"), name="other"))
    wait_for(lambda: shares(spec) == [4])
    process = start(named)
    wait_for(lambda: shares(spec) == [2, 2])
    before, mine = rebalances(spec, other), owners(spec)
    process.kill()
    process.join()
    send(topics, spec, 0, 40)
    again = start(named)
    try:
        wait_for(lambda: numbers(spec) == once(0, 40))
        kept = {at for at, owner in mine.items() if owner == run_of(other)}
        assert {at for at, owner in owners(spec).items() if owner == run_of(other)} == kept
        assert rebalances(spec, other) == before
    finally:
        again.kill()
        again.join()


def test_of_two_members_with_one_instance_the_older_one_ends(join: Join, spec: Spec, topics: Topics) -> None:
    named = replace(spec, membership=Group(instance="one"))
    older = join(named)
    wait_for(lambda: shares(spec) == [4])
    younger = join(replace(named, name="younger"))
    older.wait()
    assert isinstance(older.error, Fenced)
    assert "fenced by another member with instance='one'" in str(older.error)
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec) == once(0, 40))
    assert younger.alive


def test_a_static_member_that_its_own_earlier_request_shut_out_joins_again(
    join: Join, spec: Spec, topics: Topics
) -> None:
    """As after a pause of the brokers: they answer a request that the client has abandoned and resent."""
    working = join(replace(spec, membership=Group(instance="one")))
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec) == once(0, 40))
    (member,) = Brokers(spec.brokers).members(spec.group)
    settings = {"bootstrap.servers": spec.brokers, "group.id": spec.group, "session.timeout.ms": 2_000, "log_level": 0}
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    earlier = Client({**settings, **strategy, "client.id": member.client, "group.instance.id": "one"})
    earlier.subscribe([f"{spec.group}-0"])
    wait_for(lambda: earlier.poll(0.1) is None and bool(earlier.assignment()))
    gone = {member.id, str(earlier.memberid())}
    # Static members do not leave when they are closed: this one expires.
    earlier.close()
    wait_for(lambda: working.error is not None or bool(member_ids(spec) - gone))
    send(topics, spec, 40, 80)
    wait_for(lambda: working.error is not None or numbers(spec) == once(0, 80))
    assert working.error is None


def member_ids(spec: Spec) -> set[str]:
    return {one.id for one in Brokers(spec.brokers).members(spec.group)}


@pytest.mark.parametrize(
    "membership", [Group("range"), Group("roundrobin"), Group(protocol="consumer")], ids=["range", "robin", "consumer"]
)
def test_two_members_share_and_who_stays_takes_all(join: Join, spec: Spec, topics: Topics, membership: Group) -> None:
    settings = QUICK if membership.protocol == "classic" else {"topic.metadata.refresh.interval.ms": 500}
    one = replace(spec, membership=membership, settings=settings)
    first = join(one)
    wait_for(lambda: shares(spec) == [4])
    send(topics, spec, 0, 40)
    second = join(replace(one, name="second"))
    wait_for(lambda: shares(spec) == [2, 2])
    send(topics, spec, 40, 80)
    wait_for(lambda: numbers(spec) == once(0, 80))
    first.stop()
    wait_for(lambda: set(owners(spec).values()) == {run_of(second)} and len(owners(spec)) == 4)
    send(topics, spec, 80, 120)
    wait_for(lambda: numbers(spec) == once(0, 120))
    assert first.error is second.error is None
    truth.check_accounts(spec.store)


def test_who_reads_alone_reads_only_what_it_chose_and_joins_nothing(join: Join, spec: Spec, topics: Topics) -> None:
    alone = replace(spec, membership=Standalone({f"{spec.group}-0": [0]}))
    join(alone)
    send(topics, spec, 0, 40)
    wait_for(lambda: numbers(spec) == Counter(range(0, 40, 4)))
    assert owners(spec).keys() == {(f"{spec.group}-0", 0)}
    assert not Brokers(spec.brokers).members(spec.group)


# Start positions


def test_what_appears_under_a_pattern_is_read_from_its_beginning(join: Join, spec: Spec, topics: Topics) -> None:
    send(topics, spec, 0, 40)
    late = replace(spec, topics=f"^{spec.group}-.*", start="uncommitted-latest")
    join(late)
    wait_for(lambda: shares(spec) == [4])
    new = make_topic(topics, f"{spec.group}-1", 2)
    send(topics, spec, 100, 140, new, partitions=2)
    topics.grow(f"{spec.group}-0", 5)
    wait_for(lambda: len(owners(spec)) == 7)
    # A new instance: an existing producer may not know the partition yet.
    Topics(topics.brokers).send_to(f"{spec.group}-0", 4, [{"number": 200}])
    wait_for(lambda: numbers(spec) == once(100, 140) + once(200, 201))


def test_a_topic_that_appears_just_before_a_member_joins_is_read_from_its_beginning(
    join: Join, spec: Spec, topics: Topics
) -> None:
    """A member that joins a running group knows the topic already, but the partition is new to the group."""
    slow = {**QUICK, "topic.metadata.refresh.interval.ms": 60_000}
    late = replace(spec, topics=f"^{spec.group}-.*", start="uncommitted-latest", settings=slow)
    join(late)
    wait_for(lambda: shares(spec) == [4])
    new = make_topic(topics, f"{spec.group}-1", 2)
    send(topics, spec, 100, 140, new, partitions=2)
    join(replace(late, name="second"))
    wait_for(lambda: len(owners(spec)) == 6)
    assert first_offsets(spec, new) == [0, 0]


def test_members_that_start_together_all_start_at_the_latest(
    join: Join, spec: Spec, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second member's partitions are not new just because the first member claimed its own earlier."""
    send(topics, spec, 0, 40)
    given = Member.assignment

    def half(self: Member) -> Assignment:
        now = given(self)
        return replace(now, ours={one: serial for one, serial in now.ours.items() if one.number < 2})

    monkeypatch.setattr(Member, "assignment", half)
    join(replace(spec, start="uncommitted-latest"))
    wait_for(lambda: shares(spec) == [2])
    assert first_offsets(spec, f"{spec.group}-0") == [10] * 4


@pytest.mark.parametrize("start_at", ["earliest", "latest"])
def test_who_joins_a_group_that_runs_does_not_move_its_positions(
    join: Join, spec: Spec, topics: Topics, start_at: str
) -> None:
    """Neither back to read records, nor past unread ones."""
    hurry = threading.Event()
    # Slow before the transaction: a nearly always open one on SQLite would keep the second member from claiming.
    join(replace(spec, most=10), lambda _: hurry.wait(0.5), Held)
    send(topics, spec, 0, 1500)
    wait_for(lambda: bool(numbers(spec)))
    join(replace(spec, start=start_at, name="second"))
    wait_for(lambda: shares(spec) == [2, 2])
    assert numbers(spec).total() < 1500
    hurry.set()
    wait_for(lambda: numbers(spec) == once(0, 1500))
    assert not databases.query(spec.store, "SELECT * FROM tallymark_exceptions")


def test_an_error_that_comes_among_records_takes_none_of_them_with_it(
    spec: Spec, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one of several topics is deleted: records that were fetched together with the error are fetched again."""
    send(topics, spec, 0, 40)
    first, second = Partition(f"{spec.group}-0", 0), Partition(f"{spec.group}-0", 1)
    with monkeypatch.context() as once_only:
        once_only.setattr("tallymark.kafka.fetch.connect", lambda *given: Interrupted(connect(*given), second))
        fetcher = Fetcher(tm.Kafka(spec.brokers, first.topic), Brokers(spec.brokers))
        fetcher.add({first: 0, second: 0})
    with pytest.raises(Unreachable, match="does not know topic"):
        fetch_until(fetcher, first, 10)
    assert [message.offset() for message in fetch_until(fetcher, first, 10)] == list(range(10))
    fetcher.close()


def fetch_until(fetcher: Fetcher, partition: Partition, stop: int) -> list[Any]:
    found: list[Any] = []
    while fetcher.cursor[partition] < stop:
        fetched = fetcher.fetch(100, 0.1)
        found += fetched[partition].messages if partition in fetched else []
    return found


class Interrupted:
    """A client that returns an error after the first records."""

    def __init__(self, client: Any, partition: Partition) -> None:
        self._client, self._partition, self._over = client, partition, False

    def consume(self, most: int, wait: float) -> list[Any]:
        messages: list[Any] = self._client.consume(most, wait)
        if self._over or not messages:
            return messages
        self._over = True
        return [*messages, self]

    def topic(self) -> str:
        return self._partition.topic

    def offset(self) -> int:
        return -1001

    def partition(self) -> int:
        return self._partition.number

    def error(self) -> KafkaError:
        return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
