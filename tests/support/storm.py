"""A rebalance storm: members join, leave, die and stall while topics grow and numbered records arrive.

The schedule depends on the seed alone, so a storm can be repeated. Afterwards everything is counted independently.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from sqlalchemy.exc import SQLAlchemyError

from tests.support import databases, redis, truth
from tests.support.background import wait_for
from tests.support.kafka import Topics
from tests.support.storm_member import COUNTERS, Spec, start

DRAIN_SECONDS = 90.0
"""The longest time without progress: longer means a stuck group, not a loaded machine."""
PART = 50
"""The number of records sent at a time."""


@dataclass(frozen=True)
class Weather:
    """The intensity of a storm."""

    seconds: float
    members: int
    partitions: int
    records: int
    session: float = 2.0
    pause: float = 0.5
    """The average pause between two acts."""


@dataclass(frozen=True)
class Act:
    """One event for a member or the topics."""

    at: float
    kind: str
    who: str = ""

    def __str__(self) -> str:
        return f"{self.at:6.2f} {self.kind} {self.who}"


def schedule(seed: int, weather: Weather) -> list[Act]:
    """Which members join, leave, are killed, stopped and continued, and when the topics change."""
    chance, names = random.Random(seed), (f"m{n}" for n in count(1))
    running = [next(names) for _ in range(weather.members)]
    acts = [Act(0.0, "join", name) for name in running]
    stopped: dict[str, float] = {}
    at = 0.0
    while (at := at + chance.expovariate(1 / weather.pause)) < weather.seconds:
        for name, until in sorted(stopped.items(), key=lambda item: item[1]):
            if until <= at:
                acts.append(Act(until, "continue", name))
                del stopped[name]
                running.append(name)
        kind = chance.choice(_possible(running, stopped, weather))
        who = running[chance.randrange(len(running))] if kind in ("leave", "kill", "stop") else ""
        if kind == "join":
            who = next(names)
            running.append(who)
        elif who:
            running.remove(who)
        if kind == "stop":
            stopped[who] = at + weather.session * chance.uniform(1.2, 2.5)
        acts.append(Act(at, kind, who))
    return sorted(acts, key=lambda act: act.at)


def _possible(running: Sequence[str], stopped: Mapping[str, float], weather: Weather) -> list[str]:
    crowd = len(running) + len(stopped)
    kinds = ["topic", "grow"]
    if crowd < weather.members + 2:
        kinds += ["join"] * (1 + 2 * max(0, weather.members - crowd))
    if len(running) > 1:
        kinds += ["leave", "kill", "kill", "stop", "stop"]
    return kinds


@dataclass
class Storm:
    """One storm over one store. ``run`` returns what happened, or raises if the counts are wrong."""

    seed: int
    weather: Weather
    spec: Spec
    topics: Topics
    logs: Path
    made: dict[str, int] = field(default_factory=dict)
    """The topics, each with its number of partitions."""
    members: dict[str, Any] = field(default_factory=dict)
    _sent: bool = False

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        self._add_topic(self.weather.partitions)
        if not self.spec.store.startswith("redis"):
            databases.execute(self.spec.store, COUNTERS)
        acts = schedule(self.seed, self.weather)
        self._gather([act for act in acts if act.at == 0.0])
        sender = threading.Thread(target=self._send, daemon=True)
        sender.start()
        try:
            self._play([act for act in acts if act.at > 0.0])
            sender.join(DRAIN_SECONDS)
            assert self._sent, "not all records were sent"
            self._drain()
            self._check_ends(acts)
        finally:
            self._kill_all()
        told = self._count()
        return Counter(act.kind for act in acts) | told | {"seconds": round(time.monotonic() - began, 1)}

    def _gather(self, joins: Sequence[Act]) -> None:
        """The first members work before the storm begins."""
        for act in joins:
            self._do(act)
        wait_for(lambda: len(self._owners()) >= len(joins), DRAIN_SECONDS, "the first members begin")

    def _play(self, acts: Sequence[Act]) -> None:
        began = time.monotonic()
        for act in acts:
            time.sleep(max(0.0, began + act.at - time.monotonic()))
            self._do(act)
        time.sleep(max(0.0, began + self.weather.seconds - time.monotonic()))

    def _do(self, act: Act) -> None:
        signals = {
            "leave": signal.SIGTERM,
            "kill": signal.SIGKILL,
            "stop": signal.SIGSTOP,
            "continue": signal.SIGCONT,
        }
        if act.kind == "join":
            self.members[act.who] = start(replace(self.spec, name=act.who, logs=self.logs))
        elif act.kind == "topic":
            self._add_topic(1 + self.seed % 2)
        elif act.kind == "grow":
            name = min(self.made, key=lambda one: (self.made[one], one))
            self.topics.grow(name, self.made[name] + 1)
            self.made[name] += 1
        elif (member := self.members[act.who]).is_alive():
            os.kill(member.pid, signals[act.kind])

    def _add_topic(self, partitions: int) -> None:
        name = self.topics.create(partitions, name=f"{self.spec.group}-{len(self.made)}")
        self.made = {**self.made, name: partitions}

    def _send(self) -> None:
        """Send uniquely numbered records at an even rate: some can't be decoded, some are in aborted transactions."""
        chance, numbers = random.Random(self.seed), count()
        topics, parts = Topics(self.topics.brokers), self.weather.records // PART
        began = time.monotonic()
        for part in range(parts):
            time.sleep(max(0.0, began + part * self.weather.seconds / parts - time.monotonic()))
            topic, partitions = chance.choice(list(self.made.items()))
            partition, values = chance.randrange(partitions), list(self._values(chance, numbers))
            if part % 20 == 7:
                topics.send_in_transaction(topic, {partition: values}, commit=part % 40 == 7)
            else:
                self._send_to(topics, topic, partition, values)
        self._sent = True

    def _send_to(self, topics: Topics, topic: str, partition: int, values: Sequence[Any]) -> None:
        try:
            topics.send_to(topic, partition, values)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            # The producer does not know the new partition yet, and has accepted nothing.
            topics.send_to(topic, 0, values)

    def _values(self, chance: random.Random, numbers: Iterator[int]) -> Iterator[Any]:
        for _ in range(PART):
            number = next(numbers)
            yield f"undecodable {number}" if chance.random() < 0.01 else {"number": number}

    def _has_moved(self, reached: Mapping[tuple[str, int], int]) -> bool:
        return self._reached() != reached

    def _drain(self) -> None:
        """Continue the zombies, let new members process the rest, and stop all."""
        for member in self.members.values():
            if member.is_alive():
                os.kill(member.pid, signal.SIGCONT)
        fresh = [f"fresh{n}" for n in range(2)]
        self.members |= {name: start(replace(self.spec, name=name, logs=self.logs)) for name in fresh}
        ends = self._ends()
        while (reached := self._reached()) != ends:
            behind = {at: (reached.get(at), end) for at, end in ends.items() if reached.get(at) != end}
            wait_for(partial(self._has_moved, reached), DRAIN_SECONDS, f"these come nearer to their ends: {behind}")
        for member in self.members.values():
            if member.is_alive():
                os.kill(member.pid, signal.SIGTERM)
        for member in self.members.values():
            member.join(DRAIN_SECONDS)

    def _check_ends(self, acts: Sequence[Act]) -> None:
        """No member ended by an error, and none is left."""
        killed = {act.who for act in acts if act.kind == "kill"}
        ends = {name: member.exitcode for name, member in self.members.items()}
        # A member that gets the signal before its handler is installed is ended by the signal.
        allowed = {name: {0, -signal.SIGTERM} | ({-signal.SIGKILL} if name in killed else set()) for name in ends}
        wrong = {name: code for name, code in ends.items() if code not in allowed[name]}
        assert not wrong, f"members ended by themselves: {wrong}\n{self._last_words(wrong)}"

    def _last_words(self, names: Mapping[str, Any]) -> str:
        logs = [self.logs / f"{name}.log" for name in names]
        return "\n".join("\n".join(log.read_text().splitlines()[-25:]) for log in logs if log.exists())

    def _kill_all(self) -> None:
        for member in self.members.values():
            if member.is_alive():
                member.kill()
                member.join()

    # The content of the store, read without tallymark

    def _ends(self) -> dict[tuple[str, int], int]:
        client = Consumer({"bootstrap.servers": self.topics.brokers, "group.id": "ends"})
        places = [(topic, number) for topic, partitions in self.made.items() for number in range(partitions)]
        try:
            return {at: client.get_watermark_offsets(TopicPartition(*at), 10.0)[1] for at in places}
        finally:
            client.close()

    def _owners(self) -> set[str]:
        return {owner for (owner,) in self._positions("owner") if owner}

    def _reached(self) -> dict[tuple[str, int], int]:
        return {(topic, number): at for topic, number, at in self._positions("topic", "partition_id", "next_offset")}

    def _positions(self, *columns: str) -> list[tuple[Any, ...]]:
        try:
            return truth.ledger(self.spec.store, "positions", *columns)
        except SQLAlchemyError:  # there is no ledger yet
            return []

    def _count(self) -> dict[str, Any]:
        """Every committed record once, as a row or as a dead letter, and every offset accounted for."""
        good, dead = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
        for topic in self.made:
            for (partition, offset), value in self.topics.committed(topic).items():
                if value and value.startswith(b"{"):
                    good[json.loads(value)["number"], topic, partition, offset] += 1
                else:
                    dead[topic, partition, offset] += 1
        rows, counter = seen(self.spec.store)
        letters = Counter(truth.ledger(self.spec.store, "dead_letters", "topic", "partition_id", "record_offset"))
        assert (good - rows, rows - good) == (Counter(), Counter()), "missing, and too many"
        assert letters == dead
        assert counter == good.total()
        self._check_tallies(good, dead)
        words = "".join(log.read_text() for log in sorted(self.logs.glob("*.log")))
        told = {"fenced": words.count(" fenced: "), "again": words.count(" again: ")}
        told |= {kind: words.count(f"share rebalance={kind}") for kind in ("assigned", "revoked", "lost")}
        return told | {"records": good.total(), "dead": dead.total(), "members": len(self.members)}

    def _check_tallies(self, good: Counter[tuple[Any, ...]], dead: Counter[tuple[Any, ...]]) -> None:
        by_partition = Counter((topic, partition) for _, topic, partition, _ in good)
        dead_in = Counter((topic, partition) for topic, partition, _ in dead)
        columns = ("topic", "partition_id", "first_offset", "next_offset", *truth.COUNTS)
        found = truth.ledger(self.spec.store, "positions", *columns)
        for topic, number, first, stop, *tally in found:
            at = (topic, number)
            absent = stop - by_partition[at] - dead_in[at]
            assert (first, tally) == (0, [by_partition[at], dead_in[at], 0, 0, absent]), at
        assert {(topic, number): stop for topic, number, _, stop, *_ in found} == self._ends()
        truth.check_accounts(self.spec.store)


def seen(url: str) -> tuple[Counter[tuple[Any, ...]], int]:
    """Every row (number, topic, partition, offset) that members wrote, and their counters."""
    if url.startswith("redis"):
        rows = [line.decode().split() for line in redis.dump(url, "seen").get("", [])]
        found = Counter((int(number), topic, int(part), int(at)) for number, topic, part, at in rows)
        return found, int(redis.dump(url, "counter").get("", 0))
    columns = "number, topic, partition_id, record_offset"
    ((counted,),) = databases.query(url, "SELECT coalesce(sum(n), 0) FROM counters")
    return Counter(databases.query(url, f"SELECT {columns} FROM seen")), int(str(counted))
