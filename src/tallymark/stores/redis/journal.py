"""What stands beside the positions in Redis: notes, open skips and rebalances.

An open skip is kept as a field of a hash, as the note that recorded it: that it is still the same is what the script
expects of whoever fills it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from tallymark.books import Run
from tallymark.fence import Fill, Note, Rebalance, Skip
from tallymark.read import storable
from tallymark.spans import OUTCOMES, Partition, Position, Span
from tallymark.stores.redis.keys import Keys
from tallymark.stores.redis.script import Work
from tallymark.stores.redis.times import as_text, from_text, score

KEEP_REBALANCES = 1_000
KEEP_RUNS = 100


def note(work: Work, keys: Keys, group: str, notes: Iterable[Note], now: datetime, batch: str | None = None) -> None:
    """Write down spans that are not in the tables, or will be there again. Skips are open from then on."""
    for each in notes:
        where = {"topic": each.span.partition.topic, "partition_id": each.span.partition.number}
        span = {"start_offset": each.span.start, "stop_offset": each.span.stop}
        why = {"kind": each.kind, "reason": storable(each.reason), "batch": batch, "recorded_at": as_text(now)}
        line = _line(where | span | why)
        work.call("RPUSH", keys.exceptions(group), line)
        if each.kind == "skip":
            work.call("HSET", keys.skips(group), keys.skip(each.span), line)


def skips(fields: Mapping[str, str]) -> list[Skip]:
    """The open skips that this hash holds, in order."""
    lines = [json.loads(line) for line in fields.values()]
    found = [Skip(_span(line), line["reason"], from_text(line["recorded_at"])) for line in lines]
    return sorted(found, key=lambda skip: skip.span)


def fill(work: Work, keys: Keys, group: str, each: Fill, fields: Mapping[str, str], position: Position | None) -> None:
    """Shrink an open skip if it is still as it was read, and move the tally of its position."""
    name, key = keys.skip(each.skip), keys.skips(group)
    work.expect(key, name, fields[name])
    work.expect(keys.position(group, each.skip.partition), "topic", each.skip.partition.topic)
    work.call("HDEL", key, name)
    if len(each.rest):
        line = json.loads(fields[name]) | {"start_offset": each.rest.start}
        work.call("HSET", key, keys.skip(each.rest), _line(line))
    if position is None or position.counts(each.done.start):
        work.add(keys.position(group, each.skip.partition), {name: getattr(each.change, name) for name in OUTCOMES})


def void(work: Work, keys: Keys, group: str, partition: Partition, start: int, fields: Mapping[str, str]) -> None:
    """What begins at ``start`` will be read again: nobody fills it. What is before stays open, out of the tally."""
    for skip in skips(fields):
        if skip.span.partition != partition or skip.span.stop <= start:
            continue
        name = keys.skip(skip.span)
        work.expect(keys.skips(group), name, fields[name])
        if skip.span.start >= start:
            work.call("HDEL", keys.skips(group), name)
        else:
            work.call("HSET", keys.skips(group), name, _line(json.loads(fields[name]) | {"stop_offset": start}))


def reopen(work: Work, keys: Keys, group: str, lines: Iterable[str | bytes]) -> None:
    """The open skips of a journal that has none marked: those since their partition was last sent back."""
    found: dict[Partition, dict[str, str]] = {}
    for line in map(json.loads, lines):
        span = _span(line)
        if line["kind"] == "reset":
            found[span.partition] = {}
        elif line["kind"] == "skip":
            found.setdefault(span.partition, {})[keys.skip(span)] = _line(line)
    for name, text in chain.from_iterable(fields.items() for fields in found.values()):
        work.call("HSET", keys.skips(group), name, text)


def was_filled(client: Any, keys: Keys, group: str, batch: str) -> bool:
    lines = map(json.loads, client.lrange(keys.exceptions(group), 0, -1))
    return any(line["kind"] in ("backfill", "replay") and line["batch"] == batch for line in lines)


def write_run(work: Work, keys: Keys, group: str, run: Run, known: Mapping[str, str]) -> None:
    """Say what is known of a run now; a new one pushes the oldest out.

    It is refused if somebody else has written it meanwhile: a beat that comes late brings back no run that has ended.
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
    """The newest first."""
    found = []
    for name, text in fields.items():
        line = json.loads(text)
        started, seen, ended = (from_text(line[at]) if line[at] else None for at in ("started", "seen", "ended"))
        assert started is not None
        assert seen is not None
        found.append(Run(name, line["host"], started, seen, ended, line["error"]))
    return sorted(found, key=lambda run: run.started, reverse=True)


def record_rebalances(work: Work, keys: Keys, group: str, happened: Sequence[Rebalance]) -> None:
    for each in happened:
        line = {"at": as_text(each.at), "kind": each.kind, "run": each.run, "host": each.host, "seconds": each.seconds}
        gained, lost = ([[one.topic, one.number] for one in some] for some in (each.gained, each.lost))
        text = _line(line | {"gained": gained, "lost": lost})
        work.call("ZADD", keys.rebalances(group), score(each.at), text)
    if happened:
        work.call("ZREMRANGEBYRANK", keys.rebalances(group), 0, -KEEP_REBALANCES - 1)


def rebalances(client: Any, keys: Keys, group: str, most: int) -> list[Rebalance]:
    lines = client.zrevrange(keys.rebalances(group), 0, most - 1) if most > 0 else ()
    return [_rebalance(json.loads(line)) for line in lines]


def _rebalance(line: Mapping[str, Any]) -> Rebalance:
    gained, lost = (tuple(Partition(topic, number) for topic, number in line[name]) for name in ("gained", "lost"))
    return Rebalance(from_text(line["at"]), line["run"], line["host"], line["seconds"], gained, lost, line["kind"])


def _span(line: Mapping[str, Any]) -> Span:
    return Span(Partition(line["topic"], line["partition_id"]), line["start_offset"], line["stop_offset"])


def _line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False)
