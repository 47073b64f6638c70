"""Notes, open skips, runs and rebalances in the ledger in Redis.

An open skip is a field of a hash, whose value is the note that recorded it. To fill or void a skip, the script expects
that this value has not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from tallymark.core.claims import Fill, Note, Skip
from tallymark.core.journal import Rebalance, Run
from tallymark.core.records import storable
from tallymark.core.spans import OUTCOMES, Partition, Position, Span
from tallymark.stores.redis.keys import RedisKeys, as_text, from_text, score
from tallymark.stores.redis.script import ScriptInput

KEEP_REBALANCES = 1_000
KEEP_RUNS = 100


def write(
    work: ScriptInput, keys: RedisKeys, group: str, notes: Iterable[Note], now: datetime, batch: str | None = None
) -> None:
    """Record spans that are missing from the tables or will be written again. Skips are open from then on."""
    for each in notes:
        where = {"topic": each.span.partition.topic, "partition_id": each.span.partition.number}
        span = {"start_offset": each.span.start, "stop_offset": each.span.stop}
        why = {"kind": each.kind, "reason": storable(each.reason), "batch": batch, "recorded_at": as_text(now)}
        line = _line(where | span | why)
        work.call("RPUSH", keys.exceptions(group), line)
        if each.kind == "skip":
            work.call("HSET", keys.skips(group), keys.skip(each.span), line)


def skips(fields: Mapping[str, str]) -> list[Skip]:
    """Return the open skips in this hash, in order."""
    lines = [json.loads(line) for line in fields.values()]
    skips = [Skip(_span(line), line["reason"], from_text(line["recorded_at"])) for line in lines]
    return sorted(skips, key=lambda skip: skip.span)


def fill(
    work: ScriptInput, keys: RedisKeys, group: str, each: Fill, fields: Mapping[str, str], position: Position | None
) -> None:
    """Shrink an open skip if it has not changed since it was read, and update the tally of its position."""
    name, key = keys.skip(each.skip), keys.skips(group)
    work.expect(key, name, fields[name])
    work.expect(keys.position(group, each.skip.partition), "topic", each.skip.partition.topic)
    work.call("HDEL", key, name)
    if len(each.rest):
        line = json.loads(fields[name]) | {"start_offset": each.rest.start}
        work.call("HSET", key, keys.skip(each.rest), _line(line))
    if position is None or position.counts(each.done.start):
        work.add(keys.position(group, each.skip.partition), {name: getattr(each.change, name) for name in OUTCOMES})


def void(
    work: ScriptInput, keys: RedisKeys, group: str, partition: Partition, start: int, fields: Mapping[str, str]
) -> None:
    """Void skips from ``start`` on, which will be read again. The part before stays open, outside the tally."""
    for skip in skips(fields):
        if skip.span.partition != partition or skip.span.stop <= start:
            continue
        name = keys.skip(skip.span)
        work.expect(keys.skips(group), name, fields[name])
        if skip.span.start >= start:
            work.call("HDEL", keys.skips(group), name)
        else:
            work.call("HSET", keys.skips(group), name, _line(json.loads(fields[name]) | {"stop_offset": start}))


def reopen(work: ScriptInput, keys: RedisKeys, group: str, lines: Iterable[str | bytes]) -> None:
    """Restore the open skips of a ledger of version 1 from its notes: those after the last reset of their partition."""
    found: dict[Partition, dict[str, str]] = {}
    for line in map(json.loads, lines):
        span = _span(line)
        if line["kind"] == "reset":
            found[span.partition] = {}
        elif line["kind"] == "skip":
            found.setdefault(span.partition, {})[keys.skip(span)] = _line(line)
    for name, text in chain.from_iterable(fields.items() for fields in found.values()):
        work.call("HSET", keys.skips(group), name, text)


def was_filled(client: Any, keys: RedisKeys, group: str, batch: str) -> bool:
    lines = map(json.loads, client.lrange(keys.exceptions(group), 0, -1))
    return any(line["kind"] in ("backfill", "replay") and line["batch"] == batch for line in lines)


def write_run(work: ScriptInput, keys: RedisKeys, group: str, run: Run, known: Mapping[str, str]) -> None:
    """Write the run; if it is new, delete the oldest runs.

    Refused if the run has changed since it was read: a late heartbeat must not revive a run that has ended.
    """
    times = {"started": run.started, "seen": run.seen, "ended": run.ended}
    error = storable(run.error) if run.error else None
    work.expect(keys.runs(group), run.name, known.get(run.name, ""))
    line = {"host": run.host, "error": error} | {name: as_text(at) if at else None for name, at in times.items()}
    work.call("HSET", keys.runs(group), run.name, _line(line))
    if run.name not in known:
        for old in runs(known)[KEEP_RUNS - 1 :]:
            if old.alive(run.seen):
                continue
            work.call("HDEL", keys.runs(group), old.name)


def runs(fields: Mapping[str, str]) -> list[Run]:
    """Return the runs in this hash, newest first."""
    found = []
    for name, text in fields.items():
        line = json.loads(text)
        started, seen, ended = (from_text(line[at]) if line[at] else None for at in ("started", "seen", "ended"))
        assert started is not None
        assert seen is not None
        found.append(Run(name, line["host"], started, seen, ended, line["error"]))
    return sorted(found, key=lambda run: run.started, reverse=True)


def record_rebalances(work: ScriptInput, keys: RedisKeys, group: str, happened: Sequence[Rebalance]) -> None:
    for each in happened:
        line = {"at": as_text(each.at), "kind": each.kind, "run": each.run, "host": each.host, "seconds": each.seconds}
        gained, lost = ([[at.topic, at.number] for at in partitions] for partitions in (each.gained, each.lost))
        text = _line(line | {"gained": gained, "lost": lost})
        work.call("ZADD", keys.rebalances(group), score(each.at), text)
    if happened:
        work.call("ZREMRANGEBYRANK", keys.rebalances(group), 0, -KEEP_REBALANCES - 1)


def rebalances(client: Any, keys: RedisKeys, group: str, most: int) -> list[Rebalance]:
    lines = client.zrevrange(keys.rebalances(group), 0, most - 1) if most > 0 else ()
    return [_rebalance(json.loads(line)) for line in lines]


def _rebalance(line: Mapping[str, Any]) -> Rebalance:
    gained, lost = (tuple(Partition(topic, number) for topic, number in line[name]) for name in ("gained", "lost"))
    return Rebalance(from_text(line["at"]), line["run"], line["host"], line["seconds"], gained, lost, line["kind"])


def _span(line: Mapping[str, Any]) -> Span:
    return Span(Partition(line["topic"], line["partition_id"]), line["start_offset"], line["stop_offset"])


def _line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False)
