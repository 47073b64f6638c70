"""What a seed decides about a storm over merged tables: the records, the drivers with their faults, and the acts."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tallymark.core.progress import Step
from tallymark.core.skip_ahead import SkipAhead
from tests.support.totals import BAD_KIND, FULL
from tests.support.totals_driver import Engine, Fault, Kind

PART = 20
"""The largest number of records sent at a time."""
SERVICE = (Step.READ, Step.WRITTEN, Step.MOVED, Step.COMMITTED)
PIPELINE = (Step.READ, Step.STAGED, Step.WRITTEN, Step.MOVED, Step.COMMITTED)


@dataclass(frozen=True)
class Weather:
    """The size of a storm."""

    seconds: float
    members: int
    partitions: int
    records: int
    acts: int
    session: float = 1.2


@dataclass(frozen=True)
class Act:
    """One event: a process that starts, leaves or is killed, a jump of positions, a cut, or records that are sent."""

    at: float
    kind: str
    detail: Any = None

    def __str__(self) -> str:
        return f"{self.at:6.2f} {self.kind} {self.detail}"


class Schedule:
    """Everything that a seed decides: the records and the acts."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.weather, self._chance = weather, random.Random(seed)
        self.engine: Engine = self._chance.choice(["service", "pipeline"])
        self._versions = self._chance.sample(range(1, 10 * weather.records), weather.records)
        values = [self._value(number) for number in range(weather.records)]
        self.bad = [value["id"] for value in values if isinstance(value, dict) and value.get("kind") == BAD_KIND]
        self.parts = self._parts(values)
        self._names = count(1)
        self.first = [self._process("run", faulty=0.0) for _ in range(weather.members)]
        self.acts = sorted([*self._sends(), *self._events()], key=lambda act: act.at)

    @property
    def backlog(self) -> int:
        """The number of parts that are sent before the first member starts."""
        return len(self.parts) // 2

    def _value(self, number: int) -> Any:
        chance = self._chance
        dice = chance.random()
        if dice < 0.02:
            return chance.choice(["undecodable", None, b"", b"[1, 2]", b'{"id": 1', {"id": number, "kind": 1}])
        shop = FULL if dice < 0.03 or number == 0 else chance.choice("aaabbcdé")
        value = {
            "id": number,
            "kind": BAD_KIND if 0.03 < dice < 0.04 or number == 1 else chance.randint(1, 5),
            "shop": shop,
            "day": chance.randint(1, 3),
            "flag": chance.choice([0, 1, 2, None]),
            "points": chance.randint(1, 9) if shop == FULL else chance.choice([chance.randint(-(2**40), 2**40), None]),
            "amount": chance.choice([f"{chance.randint(-(10**9), 10**9) / 100:.2f}", None]),
            "word": chance.choice(["", "a", "B", "b", "ä", "𝄞", "￿", None]),
            "state": chance.choice([f"s{number}", None]),
            "at": self._versions[number] if chance.random() < 0.9 else None,
            "since": f"2026-01-{chance.randint(1, 28):02}T12:00:00.{chance.randint(0, 999_999):06}+00:00",
        }
        missing = {name for name in ("flag", "amount", "word", "state", "at") if chance.random() < 0.1}
        return {name: cell for name, cell in value.items() if name not in missing}

    def _parts(self, values: Sequence[Any]) -> list[tuple[int, bool, Sequence[Any]]]:
        """Consecutive records: their partition, and whether they are in a transaction of Kafka that is aborted."""
        parts, at = [], 0
        while at < len(values):
            size = self._chance.randint(1, PART)
            aborted = self._chance.random() < 0.05
            parts.append((self._chance.randrange(self.weather.partitions), aborted, values[at : at + size]))
            at += size
        return parts

    def _sends(self) -> list[Act]:
        later = range(self.backlog, len(self.parts))
        return [Act(self.weather.seconds * at / len(later), "send", part) for at, part in enumerate(later)]

    def _process(self, kind: Kind, faulty: float = 0.7) -> dict[str, Any]:
        chance, fault = self._chance, None
        if chance.random() < faulty:
            number = chance.choice(
                [signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP] if kind == "run" else [signal.SIGKILL]
            )
            fault = Fault(
                chance.choice(SERVICE if self.engine == "service" else PIPELINE), chance.randint(1, 4), number
            )
        ahead = SkipAhead(chance.randint(40, 80), chance.randint(5, 30), "1s") if chance.random() < 0.4 else None
        settings = {"most": chance.randint(5, 40), "as_dicts": chance.random() < 0.3}
        return {"name": f"{kind}{next(self._names)}", "kind": kind, "fault": fault, **settings} | (
            {"catch_up": ahead} if kind == "run" else {}
        )

    def _events(self) -> list[Act]:
        """Each kind at least once; what there is more of, by chance."""
        chance, weather = self._chance, self.weather
        always = ["skip", "skip", "join", "backfill", "replay", "cut", "cut", "kill", "leave"]
        often = ["join", "join", "join", "kill", "leave", "skip", "cut", "cut", "backfill", "replay"]
        kinds = always + [chance.choice(often) for _ in range(max(0, weather.acts - len(always)))]
        chance.shuffle(kinds)
        kinds.remove("skip")
        # A first jump while there is still something to jump over.
        return [self._event(0.0, "skip"), *(self._event(chance.uniform(0, weather.seconds), kind) for kind in kinds)]

    def _event(self, at: float, kind: str) -> Act:
        if kind in ("join", "backfill", "replay"):
            return Act(at, "start", self._process("run" if kind == "join" else kind))  # type: ignore[arg-type]
        if kind == "skip":
            partitions = self._chance.sample(range(self.weather.partitions), 2)
            return Act(at, "skip", {partition: self._chance.randint(5, 60) for partition in partitions})
        return Act(at, kind, self._chance.choice(["request", "reply"]) if kind == "cut" else self._chance.random())

    def final(self, kind: Kind) -> list[dict[str, Any]]:
        """Two processes at once, of which at least one is killed, and then one that finishes."""
        first = self._process(kind, faulty=1.0)
        return [first, self._process(kind), self._process(kind, faulty=0.0)]
