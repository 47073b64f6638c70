"""If positions are moved during a run, it is fenced, and continues from the new position, or ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tallymark.core.progress import Progress, Step
from tallymark.errors import Fenced, TopicRecreated
from tallymark.kafka.membership import Standalone
from tallymark.run import ownership as share
from tests.support import truth
from tests.support.background import wait_for
from tests.support.command import in_process
from tests.support.crash import Run
from tests.support.kafka import Topics
from tests.support.running import Running, SharedLoop
from tests.support.standing import Service, journal, make_table, numbers, offsets, seen, standing

TIMES = Counter[tuple[int, int]]


class Hold:
    """A run that stays in its second batch until it is released."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._batches = 0

    def in_handler(self) -> None:
        self._batches += 1
        if self._batches == 2:
            self._hold()

    def on_step(self, step: Step, progress: Progress) -> None:
        if step is Step.STAGED and progress.batch.endswith("-2"):
            self._hold()

    def _hold(self) -> None:
        self.reached.set()
        assert self.go.wait(30)


def send_to(brokers: str, store: str, group: str, topic: str, to: int) -> None:
    """``reset --execute`` is refused without ``--take-over``."""
    options = ["--repeat"] if to < offsets(store, group)[0] else []
    place = "--store", store, "--brokers", brokers
    arguments = ("reset", group, "--topic", topic, "--to-offset", str(to), *options, *place)
    refused = in_process(*arguments, "--execute")
    assert refused.returncode == 2
    assert "which may be running; nothing was changed: stop it" in refused.stderr
    assert "--take-over" in in_process(*arguments).stdout
    done = in_process(*arguments, "--execute", "--take-over")
    assert done.returncode == 0, done.stderr


def twice(times: TIMES) -> set[int]:
    return {offset for (_, offset), found in times.items() if found == 2}


def test_a_service_abandons_its_batch_and_goes_on_from_where_it_was_sent(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    store, topic, hold = database("postgresql"), topics.create(1), Hold()
    make_table(store)
    topics.send_to(topic, 0, numbers(60))
    with Service(brokers, store, group, topic, on_batch=hold.in_handler) as service:
        wait_for(lambda: offsets(store, group) == {0: 60})
        topics.send_to(topic, 0, numbers(40))
        assert hold.reached.wait(30)
        send_to(brokers, store, group, topic, 20)
        assert offsets(store, group) == {0: 20}
        hold.go.set()
        wait_for(lambda: offsets(store, group) == {0: 100})
        assert service.error is None
    found = seen(store)
    assert set(found) == {(0, offset) for offset in range(100)}
    # Records of the abandoned batch are there once: only committed records are repeated.
    assert twice(found) == set(range(20, 60))
    assert standing(store, group)[0].tally.applied == 80
    assert [len(line.note.span) for line in journal(store, group, "reset")] == [40]


def test_who_has_nothing_to_commit_hears_of_it_too(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "LOOK_SECONDS", 0.2)
    store, topic = database("sqlite"), topics.create(1)
    make_table(store)
    topics.send_to(topic, 0, numbers(30))
    with Service(brokers, store, group, topic):
        wait_for(lambda: offsets(store, group) == {0: 30})
        send_to(brokers, store, group, topic, 20)
        wait_for(lambda: offsets(store, group) == {0: 30})
    assert twice(seen(store)) == set(range(20, 30))


def test_a_loop_drops_what_it_has_read_and_goes_on_from_where_it_was_sent(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    run, hold = Run(brokers, database("postgresql"), group, topics.create(1)), Hold()
    topics.send_to(run.topic, 0, [{"id": number} for number in range(60)])
    loop = SharedLoop(run, hold.on_step)
    try:
        assert hold.reached.wait(30)
        wait_for(lambda: offsets(run.store, group) == {0: 20})
        send_to(brokers, run.store, group, run.topic, 10)
        hold.go.set()
        wait_for(lambda: offsets(run.store, group) == {0: 60})
    finally:
        hold.go.set()
        loop.close()
    assert loop.error is None
    found: TIMES = Counter((int(part), int(offset)) for part, offset, *_ in truth.events(run.store).elements())
    assert set(found) == {(0, offset) for offset in range(60)}
    assert twice(found) == set(range(10, 20))
    assert standing(run.store, group)[0].tally.applied == 50


def move_while_paused(brokers: str, store: str, group: str, topic: str, more: Callable[[], None], to: int) -> None:
    """Pause the group, send more records, move it, and resume it when its run has claimed again."""
    owner = standing(store, group)[0].owner
    assert owner is not None
    assert in_process("pause", group, "--reason", "a test", "--store", store).returncode == 0
    more()
    send_to(brokers, store, group, topic, to)
    assert standing(store, group)[0].owner is None
    wait_for(lambda: standing(store, group)[0].owner == owner)
    assert in_process("resume", group, "--store", store).returncode == 0


def test_a_loop_that_was_moved_while_it_was_paused_goes_on_from_there(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "LOOK_SECONDS", 0.2)
    run, staged = Run(brokers, database("sqlite"), group, topics.create(1), records=200), threading.Event()

    def watch(step: Step, progress: Progress) -> None:
        if step is Step.STAGED and offsets(run.store, group) == {0: 60}:
            staged.set()

    def more() -> None:
        """One batch is ready to commit, and waits for the end of the pause."""
        topics.send_to(run.topic, 0, [{"id": number} for number in range(60, 100)])
        assert staged.wait(30)

    topics.send_to(run.topic, 0, [{"id": number} for number in range(60)])
    loop = SharedLoop(run, watch)
    try:
        wait_for(lambda: offsets(run.store, group) == {0: 60})
        move_while_paused(brokers, run.store, group, run.topic, more, 20)
        wait_for(lambda: loop.error is not None or offsets(run.store, group) == {0: 100})
    finally:
        loop.close()
    assert loop.error is None
    found: TIMES = Counter((int(part), int(offset)) for part, offset, *_ in truth.events(run.store).elements())
    assert set(found) == {(0, offset) for offset in range(100)}
    assert twice(found) == set(range(20, 60))


def test_a_service_that_was_moved_while_it_was_paused_goes_on_from_there(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "LOOK_SECONDS", 0.2)
    store, topic = database("sqlite"), topics.create(1)
    make_table(store)
    topics.send_to(topic, 0, numbers(60))
    with Service(brokers, store, group, topic) as service:
        wait_for(lambda: offsets(store, group) == {0: 60})
        move_while_paused(brokers, store, group, topic, lambda: topics.send_to(topic, 0, numbers(40)), 20)
        wait_for(lambda: service.error is not None or offsets(store, group) == {0: 100})
        assert service.error is None
    found = seen(store)
    assert set(found) == {(0, offset) for offset in range(100)}
    # It may have read some other records before it noticed the pause.
    assert twice(found) >= set(range(20, 60))


def test_a_run_that_reads_alone_ends(topics: Topics, brokers: str, group: str, database: Callable[[str], str]) -> None:
    run, hold = Run(brokers, database("sqlite"), group, topics.create(1)), Hold()
    topics.send_to(run.topic, 0, [{"id": number} for number in range(60)])
    with Running(run, hold.on_step) as alone:
        assert hold.reached.wait(30)
        wait_for(lambda: offsets(run.store, group) == {0: 20})
        send_to(brokers, run.store, group, run.topic, 50)
        hold.go.set()
        alone.wait()
        assert isinstance(alone.error, Fenced)
    assert offsets(run.store, group) == {0: 50}
    assert sum(truth.events(run.store).values()) == 20
    assert [len(line.note.span) for line in journal(run.store, group, "skip")] == [30]


def test_a_topic_that_is_recreated_under_a_run_is_refused_with_the_position_of_that_moment(
    topics: Topics, brokers: str, group: str, database: Callable[[str], str]
) -> None:
    """The last commit counts, not the claimed position, for a service and for a loop."""
    store, topic, gone = database("sqlite"), topics.create(1), threading.Event()
    make_table(store)
    topics.send_to(topic, 0, numbers(60))

    def recreate() -> None:
        if offsets(store, group) == {0: 60} and not gone.is_set():
            topics.recreate(topic, 1)
            gone.set()

    with Service(brokers, store, group, topic, recreate, membership=Standalone()) as service:
        wait_for(lambda: offsets(store, group) == {0: 60})
        topics.send_to(topic, 0, numbers(10))
        service.wait()
        assert isinstance(service.error, TopicRecreated)
    assert offsets(store, group)[0] >= 60
    assert f"position {offsets(store, group)[0]} of {topic}[0] is not valid in the new topic" in str(service.error)

    run = Run(brokers, database("postgresql"), group, topics.create(1))
    topics.send_to(run.topic, 0, [{"id": number} for number in range(60)])

    def recreate_it(step: Step, progress: Progress) -> None:
        if step is Step.COMMITTED and progress.batch.endswith("-2"):
            topics.recreate(run.topic, 1)

    with Running(run, recreate_it) as alone:
        alone.wait()
        assert isinstance(alone.error, TopicRecreated)
    assert offsets(run.store, group)[0] >= 40
    assert f"position {offsets(run.store, group)[0]} of {run.topic}[0] is not valid in the new topic" in str(
        alone.error
    )
