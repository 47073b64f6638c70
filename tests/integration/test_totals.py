"""Merged totals equal those that an independent program computes from Kafka, whatever happens to the drivers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka import Topics
from tests.support.totals_schedule import Schedule, Weather
from tests.support.totals_storm import Storm

SHORT = Weather(seconds=1.5, members=2, partitions=4, records=250, acts=8)
LONG = Weather(seconds=6.0, members=3, partitions=6, records=1_500, acts=25, session=1.5)
SEED = os.environ.get("TALLYMARK_TOTALS_SEED")
SEEDS = [int(SEED)] if SEED else [1, 2, 3]
Blow = Callable[[str, int, Weather], None]


@pytest.fixture
def storm(database: Callable[[str], str], topics: Topics, group: str, tmp_path: Path) -> Blow:
    def blow(kind: str, seed: int, weather: Weather) -> None:
        made = Storm(seed, weather, database(kind), group, topics, tmp_path)
        # Shown if it fails: the first line repeats the storm.
        long = "make faults" if weather is LONG else "make test"
        print(f"TALLYMARK_TOTALS_SEED={seed} {long} ARGS='-k \"test_totals and {kind}\"'")
        print(made.schedule.engine, *(act for act in made.schedule.acts if act.kind != "send"), sep="\n")
        began = time.monotonic()
        print(kind, made.run(), f"{time.monotonic() - began:.1f} s")

    return blow


def test_the_same_seed_gives_the_same_storm() -> None:
    one, same, other = Schedule(7, LONG), Schedule(7, LONG), Schedule(8, LONG)
    assert (one.acts, one.parts, one.final("replay")) == (same.acts, same.parts, same.final("replay"))
    assert one.parts != other.parts
    assert {act.kind for act in one.acts} == {"send", "start", "skip", "cut", "kill", "leave"}


@pytest.mark.parametrize(("kind", "seed"), [("postgresql", 17), ("mariadb", 3), ("sqlite", 23), ("redis", 4)], ids=str)
def test_totals_are_right_after_a_short_storm(kind: str, seed: int, storm: Blow) -> None:
    storm(kind, int(SEED or seed), SHORT)


@pytest.mark.faults
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite", "redis"])
def test_totals_are_right_after_a_long_storm(kind: str, seed: int, storm: Blow) -> None:
    storm(kind, seed, LONG)
