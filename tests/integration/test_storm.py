"""Rebalance storms: whatever happens to its members, a group applies every record exactly once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka import Topics
from tests.support.storm import Storm, Weather, schedule
from tests.support.storm_member import QUICK, Spec

SHORT = Weather(seconds=4.0, members=3, partitions=4, records=3_000, session=1.2, pause=0.3)
LONG = Weather(seconds=60.0, members=6, partitions=12, records=100_000, session=3.0, pause=1.0)
SEED = int(os.environ.get("TALLYMARK_STORM_SEED") or random.randrange(1_000_000))


@pytest.fixture
def storm(
    database: Callable[[str], str], brokers: str, topics: Topics, group: str, tmp_path: Path
) -> Callable[[str, int, Weather], None]:
    def blow(kind: str, seed: int, weather: Weather) -> None:
        url = database(kind)
        settings = QUICK | {"session.timeout.ms": int(weather.session * 1000)}
        # Long enough in the transaction to be stopped and killed there.
        spec = Spec(brokers, url, group, f"^{group}-.*", settings=settings, handler_seconds=0.03)
        # Shown if it fails: the seed repeats the storm.
        print(f"TALLYMARK_STORM_SEED={seed}", *schedule(seed, weather), sep="\n")
        print(kind, Storm(seed, weather, spec, topics, tmp_path).run())

    return blow


def test_the_same_seed_gives_the_same_storm() -> None:
    acts = schedule(7, LONG)
    assert acts == schedule(7, LONG)
    assert acts != schedule(8, LONG)
    assert {act.kind for act in acts} == {"join", "leave", "kill", "stop", "continue", "topic", "grow"}


def test_a_short_storm(storm: Callable[[str, int, Weather], None]) -> None:
    storm("postgresql", 3, SHORT)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "redis", "sqlite"])
def test_a_long_storm(storm: Callable[[str, int, Weather], None], kind: str) -> None:
    storm(kind, SEED, LONG)
