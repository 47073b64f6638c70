"""What the benchmark of growth measures: the whole batch, nothing but that batch, and what memory does when warm."""

from __future__ import annotations

import threading

import pytest

from bench.harness.watching import Sample, Stopwatch, over_time, slope
from tallymark.core.progress import Progress, Step

PLANNING, COMMIT = 0.5, 60.0


class Clock:
    """Stands still, except during a commit."""

    def __init__(self) -> None:
        self.now, self.asked = 100.0, threading.Event()

    def monotonic(self) -> float:
        self.asked.set()
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("bench.harness.watching.time", made)
    return made


class Pretended:
    """A loop that commits a batch while it prepares the next: one record, and then as many as it is told."""

    def __init__(self, records: int, clock: Clock) -> None:
        self.clock = clock
        self.watch = Stopwatch(self.produce)
        self.produced: list[int] = []
        self._records = records

    def produce(self, records: int) -> None:
        self.produced.append(records)
        if len(self.produced) == 1:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.watch.step(Step.PLANNED, Progress("first", 1, 0))
        committing = threading.Thread(target=self._commit)
        committing.start()
        self.watch.step(Step.PLANNED, Progress("second", self._records, 0, since=self.clock.now - PLANNING))
        committing.join()
        self.watch.step(Step.DONE, Progress("second", self._records, 0))

    def _commit(self) -> None:
        assert self.clock.asked.wait(10), "the second batch is not planned"
        self.clock.now += COMMIT
        self.watch.step(Step.DONE, Progress("first", 1, 0))


def test_a_batch_is_timed_with_its_planning_and_without_the_batch_before(clock: Clock) -> None:
    pretended = Pretended(10, clock)
    assert pretended.watch.batch(10) == pytest.approx(PLANNING)
    assert pretended.produced == [1, 10]


def test_a_batch_of_another_size_is_not_measured(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match=r"10 records .* has 7"):
        Pretended(7, clock).watch.batch(10)


def test_the_slope_is_that_of_a_thousand_batches_after_the_first_fifth() -> None:
    warming_up = [(100.0 * n, 50.0 * n) for n in range(1, 2)]
    later = [(100.0 * n, 500.0 + n) for n in range(2, 11)]
    assert slope(warming_up + later) == pytest.approx(10.0)


def test_memory_over_time_is_a_row_for_each_collection_and_a_sentence() -> None:
    samples = [Sample(100 * n, 200.0, 900.0, heap=80.0 if n % 10 == 0 else None) for n in range(1, 21)]
    *table, empty, sentence = over_time(samples)
    assert table[2:] == ["| 1,000 | 200 | 900 | 80 |", "| 2,000 | 200 | 900 | 80 |"]
    assert not empty
    assert "first fifth of 2,000 batches, a thousand more add +0.0 MiB to Python and +0.0 MiB to the JVM" in sentence


def test_too_few_batches_say_nothing_about_memory() -> None:
    assert list(over_time([])) == ["There were too few batches to see whether memory grows."]
