"""Runs, backfills and replays of both engines obey the same rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import confluent_kafka
import pytest

from tallymark.core.budget import Budget
from tallymark.core.claims import PositionChanges
from tallymark.core.progress import Progress, Step
from tallymark.core.spans import GroupState
from tallymark.core.tables import Changes
from tallymark.errors import BatchTooLarge, Fenced, GroupPaused, TallymarkError, Unreachable
from tallymark.kafka.brokers import Brokers
from tallymark.stores.sql.store import SqlStore
from tests.support import truth
from tests.support.crash import new_owner
from tests.support.kafka import Topics
from tests.support.proxy import Cut, Proxy
from tests.support.ways import ALL, RECORDS, Assigned, Way

Make = Callable[..., Way]
everywhere = pytest.mark.parametrize(
    ("engine", "kind"),
    [(engine, kind) for engine in ("pipeline", "service") for kind in ("run", "backfill", "replay")],
)
mending = pytest.mark.parametrize(
    ("engine", "kind"), [(engine, kind) for engine in ("pipeline", "service") for kind in ("backfill", "replay")]
)


@pytest.fixture
def make(topics: Topics, group: str, database: Callable[[str], str]) -> Make:
    def way(engine: str, kind: str, store: str = "sqlite", **settings: Any) -> Way:
        return Way(topics, database(store), group, engine, kind, **settings)  # type: ignore[arg-type]

    return way


@everywhere
def test_a_batch_has_at_most_as_many_records_as_the_store_takes(
    engine: str, kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlStore, "most_records", 7)
    way = make(engine, kind)
    way.go()
    sizes = [progress.offsets for step, progress in way.steps if step is Step.DONE]
    assert max(sizes) <= 7
    assert way.events() == ALL
    way.check()


@everywhere
def test_every_batch_reports_its_steps_and_its_rows(engine: str, kind: str, make: Make) -> None:
    way = make(engine, kind)
    way.go()
    by_batch: dict[str, list[Step]] = {}
    for step, progress in way.steps:
        by_batch.setdefault(progress.batch, []).append(step)
    read = [Step.READ] if engine == "service" else [Step.PLANNED, Step.READ, Step.STAGED]
    assert set(map(tuple, by_batch.values())) == {(*read, Step.WRITTEN, Step.MOVED, Step.COMMITTED, Step.DONE)}
    rows = sum(progress.rows["events"] for step, progress in way.steps if step is Step.DONE)
    assert rows == 2 * RECORDS


@everywhere
def test_an_attempt_that_fails_is_reported_and_the_next_one_applies_everything(
    engine: str, kind: str, make: Make
) -> None:
    way, failures = make(engine, kind), [TallymarkError("not now")]

    def fail(step: Step, _: Progress) -> None:
        if step is Step.WRITTEN and failures:
            raise failures.pop()

    with pytest.raises(TallymarkError, match="not now"):
        way.go(fail)
    assert [str(progress.error) for step, progress in way.steps if step is Step.DROPPED] == ["not now"]
    assert not way.events()
    way.go()
    assert way.events() == ALL


@everywhere
def test_a_store_that_is_away_at_the_start_is_waited_for(engine: str, kind: str, make: Make, topics: Topics) -> None:
    way = make(engine, kind, "postgresql")
    with Proxy(way.url) as proxy:
        way.store, cuts = proxy.url, [Cut(b"", "request")] * 2
        proxy.arm(*cuts)
        way.go()
        assert proxy.done == cuts
    assert way.events() == ALL


@everywhere
def test_brokers_that_are_away_at_the_start_are_waited_for(
    engine: str, kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request of every kind fails."""
    way, failed = make(engine, kind), set[str]()

    def failing_once(asked: str) -> Callable[..., Any]:
        ask = getattr(Brokers, asked)

        def answer(brokers: Brokers, *arguments: Any, **named: Any) -> Any:
            if asked not in failed:
                failed.add(asked)
                raise Unreachable(f"no broker answers, {asked}")
            return ask(brokers, *arguments, **named)

        return answer

    for asked in ("find", "topics", "logs", "cluster_id", "records"):
        monkeypatch.setattr(Brokers, asked, failing_once(asked))
    way.go()
    assert way.events() == ALL
    assert failed >= {"run": {"find", "topics", "logs"}, "backfill": {"topics", "logs"}, "replay": {"records"}}[kind]


@everywhere
def test_brokers_that_stay_away_end_it_with_their_error(
    engine: str, kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = make(engine, kind)

    def never(*_: Any) -> Any:
        raise Unreachable("no broker answers")

    monkeypatch.setattr(Brokers, "records" if kind == "replay" else "logs", never)
    with pytest.raises(Unreachable, match="no broker answers"):
        way.go(patience=0.2)
    assert not way.events()


@everywhere
def test_a_stop_while_the_brokers_are_away_is_no_error(
    engine: str, kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = make(engine, kind)

    def never(*_: Any) -> Any:
        way.stop()
        raise Unreachable("no broker answers")

    monkeypatch.setattr(Brokers, "records" if kind == "replay" else "logs", never)
    way.go()
    assert not way.events()


@everywhere
def test_what_is_paused_is_not_written(engine: str, kind: str, make: Make) -> None:
    way = make(engine, kind)
    paused = GroupState("paused", "stock taking", "op", datetime.now(UTC))
    way.look(lambda store: store.set_state(way.group, paused))
    with pytest.raises(GroupPaused, match=r"has been paused since .* by op: stock taking; resume it with"):
        way.go()
    assert not way.events()
    way.look(lambda store: store.set_state(way.group, GroupState("running", "", "op", datetime.now(UTC))))
    way.go()
    assert way.events() == ALL


@everywhere
def test_a_pause_is_obeyed_before_the_next_batch(
    engine: str, kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallymark.service.delivery.HandlerLoop.pause_interval", 0.0)
    monkeypatch.setattr(SqlStore, "most_records", 8)
    way = make(engine, kind)

    def pause(step: Step, _: Progress) -> None:
        if step is Step.COMMITTED:
            state = GroupState("paused", "stock taking", "op", datetime.now(UTC))
            way.look(lambda store: store.set_state(way.group, state))

    with pytest.raises(GroupPaused, match="stock taking"):
        way.go(pause)
    assert [step for step, _ in way.steps].count(Step.COMMITTED) == 1
    way.check()


@pytest.mark.parametrize("engine", ["pipeline", "service"])
@pytest.mark.parametrize("kind", ["run", "backfill"])
def test_a_budget_that_is_exhausted_ends_what_has_an_end(engine: str, kind: str, make: Make) -> None:
    values = [{"id": number} if number else "no JSON" for number in range(RECORDS)]
    way = make(engine, kind, values=values)
    with pytest.raises(GroupPaused, match=r"by budget: .* dead records .*max_dead_total=0"):
        way.go(budget=Budget(max_dead_total=0))


@pytest.mark.parametrize("kind", ["run", "backfill", "replay"])
def test_a_handler_gets_no_batch_without_records(kind: str, make: Make) -> None:
    way = make("service", kind, values=["no JSON"] * RECORDS)
    way.go()
    assert way.handled == []
    assert Counter(truth.ledger(way.url, "dead_letters", "state")) == Counter({("dead",): 2 * RECORDS})
    way.check()


def test_a_backfill_of_a_service_has_one_client(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlStore, "most_records", 3)
    made: list[object] = []

    class Counted(confluent_kafka.Consumer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made.append(self)
            super().__init__(*arguments, **named)

    way = make("service", "backfill")
    monkeypatch.setattr("tallymark.kafka.fetch.Consumer", Counted)
    way.go()
    assert way.events() == ALL
    assert len(way.handled) == 14
    assert len(made) == 1


def test_a_handler_does_not_begin_when_its_claim_is_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallymark.service.claimed.FENCE_SECONDS", 0.0)
    way = make("service", "run")
    batches = way.batches(lambda *_: None)
    batch = next(batches)
    way.look(lambda store: store.claim(way.group, new_owner(), way.parts, lambda _: PositionChanges({}), {}))
    with pytest.raises(Fenced, match="this run is fenced"), batch.transaction():
        pytest.fail("the handler was called")
    batches.close()


def test_a_rebalance_is_followed_between_the_parts_of_a_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes ten rows at once; after the first part the group revokes a partition."""
    way, apply, committed = make("pipeline", "run"), SqlStore.apply, list[set[str]]()
    member = Assigned(way.parts)

    def narrow(store: SqlStore, changes: list[Changes], *arguments: Any) -> None:
        if sum(map(len, changes)) > 10:
            raise BatchTooLarge("more than ten rows")
        apply(store, changes, *arguments)

    def revoke(step: Step, progress: Progress) -> None:
        if step is Step.DONE:
            committed.append({str(partition) for partition in progress.tallies})
            if len(committed) == 1:
                member.revoke(way.parts[1])
            if len(committed) == 2:
                assert member.acknowledged == {way.parts[1]}
        if way.events()[0, RECORDS - 1, RECORDS - 1]:
            raise TallymarkError("all of the first partition is there")

    monkeypatch.setattr(SqlStore, "apply", narrow)
    with pytest.raises(TallymarkError, match="all of the first partition"):
        way.go(revoke, member)
    assert committed[0] == {str(partition) for partition in way.parts}
    assert all(parts == {str(way.parts[0])} for parts in committed[1:])
    assert way.events() == Counter({one: 1 for one in ALL if one[0] == 0 or one[1] < 5})
    way.check()
