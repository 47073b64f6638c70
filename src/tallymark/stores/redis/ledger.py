"""The ledger in Redis, with the same fields as in SQL. The functions return work for the script.

    position:<group>:<topic>:<partition>                  a hash; ``positions:<group>`` is the set of their keys
    group:<group>                                         a hash: running or paused; ``groups`` is the set of all groups
    batches:<group>                                       a sorted set of JSON objects, by time in microseconds
    exceptions:<group>                                    a list of JSON objects: skips, losses, resets, backfills
    skips:<group>                                         a hash of the open skips, by their start
    rebalances:<group>                                    a sorted set of JSON objects, by time in microseconds
    runs:<group>                                          a hash of JSON objects, by run
    tables:<group>                                        a hash of stores, by table and how it is written
    deletions:<table>                                     a hash of times and versions, by the key of the deleted row
    letter:<group>:<topic>:<partition>:<offset>:<batch>   a hash; ``letters:<group>`` has their keys, by time
    schema                                                a hash: the version of the ledger

Positions are computed here and set by the script, which expects the epoch and the offset that they were computed from.
The script increments tallies and drift itself, because a fill may change them between read and write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tallymark.core.claims import (
    BACK,
    Claim,
    Decide,
    Entry,
    FirstClaim,
    PositionChanges,
    Restart,
    begun,
    check_held,
    restarted,
)
from tallymark.core.drift import Drift, Seen, bounded
from tallymark.core.journal import Letter
from tallymark.core.records import storable
from tallymark.core.spans import OUTCOMES, GroupState, Owner, Partition, Position, Tally
from tallymark.stores.redis import letters, notes
from tallymark.stores.redis.keys import RedisKeys, as_text, from_text, score
from tallymark.stores.redis.script import ScriptInput

VERSION = 6
KEEP_BATCHES = 100_000
"""History is kept in memory: this limit is about 30 MB for each group, whatever retention the loop asks for."""
OWNERSHIP = ("epoch", "owner", "owner_host", "owned_since")
RECORDS, FIRST, LAST = "drift_records:", "drift_first:", "drift_last:"
"""Beginnings of the fields of a position that count a field of records, and tell when it was first and last counted."""
MOVED = ("next_offset", "record_time", "leader_epoch", "updated_at")
PLACE = (*MOVED, "first_offset", *OUTCOMES)


def claim(
    keys: RedisKeys,
    group: str,
    owner: Owner,
    partitions: Collection[Partition],
    decide: Decide,
    held: Mapping[Partition, Claim],
    found: Mapping[Partition, Position],
    skips: Mapping[str, str],
    dead: Callable[[], Sequence[Letter]],
) -> ScriptInput:
    """Raise the epochs, record the owner, apply what ``decide`` returns, and read the resulting positions."""
    changes, work = decide([found[partition] for partition in sorted(found)]), ScriptInput()
    check_held(held, found)
    for partition in held:
        work.expect(keys.position(group, partition), "owner", owner.run)
    _register(work, keys, group, owner.host, owner.since)
    for partition in sorted({*partitions, *changes.first}):
        old, wanted = found.get(partition), partition in partitions
        if old is None and partition in changes.first:
            _insert(work, keys, group, owner if wanted else None, owner.since, partition, changes.first[partition])
        elif old is not None and wanted:
            new = replace(old, epoch=old.epoch + 1, owner=owner)
            names: Sequence[str] = OWNERSHIP
            if partition in changes.restarts:
                new = _restart(work, keys, group, old, new, changes.restarts[partition], owner.since, skips, dead)
                names = (*OWNERSHIP, *PLACE)
            _move(work, keys, group, old, new, names)
    work.reads = [keys.position(group, at) for at in sorted(partitions) if at in found or at in changes.first]
    return work


def _restart(
    work: ScriptInput,
    keys: RedisKeys,
    group: str,
    old: Position,
    new: Position,
    to: Restart,
    now: datetime,
    skips: Mapping[str, str],
    dead: Callable[[], Sequence[Letter]],
) -> Position:
    """Move a position to another offset, if it has not changed since it was read, and record the consequences."""
    # Until the script runs, the previous owner is not fenced and may move the position. A restart, unlike other claims,
    # must not overwrite that.
    for name, value in (("next_offset", old.next_offset), ("skipped", old.tally.skipped), ("dead", old.tally.dead)):
        work.expect(keys.position(group, old.partition), name, value)
    new, note = restarted(new, to, now)
    if not new.drift:
        _forget_drift(work, keys.position(group, old.partition), old.drift)
    if note is not None and note.kind in BACK:
        notes.void(work, keys, group, old.partition, to.offset, skips)
        letters.void(work, keys, old.partition, to.offset, dead(), now)
    notes.write(work, keys, group, [note] if note else [], now)
    return new


def move(
    keys: RedisKeys,
    group: str,
    changes: PositionChanges,
    found: Mapping[Partition, Position],
    skips: Mapping[str, str],
    dead: Callable[[], Sequence[Letter]],
    by: str,
    now: datetime,
) -> ScriptInput:
    """Create positions or move them, without an owner."""
    work = ScriptInput()
    _register(work, keys, group, by, now)
    for partition, start in sorted(changes.first.items()):
        _insert(work, keys, group, None, now, partition, start)
    notes.write(work, keys, group, begun(changes.first), now)
    for partition, to in sorted(changes.restarts.items()):
        old = found[partition]
        new = replace(old, epoch=old.epoch + 1, owner=None)
        new = _restart(work, keys, group, old, new, to, now, skips, dead)
        _move(work, keys, group, old, new, (*OWNERSHIP, *PLACE))
    return work


def reclaim(
    keys: RedisKeys, group: str, claims: Mapping[Partition, Claim], found: Mapping[Partition, Position]
) -> ScriptInput:
    """Raise the epochs of claims that are still held: a commit that arrives later is refused."""
    check_held(claims, found)
    work = ScriptInput(reads=[keys.position(group, partition) for partition in claims])
    for partition in claims:
        old = found[partition]
        _move(work, keys, group, old, replace(old, epoch=old.epoch + 1), ("epoch",))
    return work


def release(keys: RedisKeys, group: str, claims: Iterable[Claim], found: Mapping[Partition, Position]) -> ScriptInput:
    """Remove the owner from partitions that still have the claim's epoch."""
    work = ScriptInput()
    for held in claims:
        old = found.get(held.partition)
        if old is not None and old.epoch == held.epoch:
            _move(work, keys, group, old, replace(old, owner=None), OWNERSHIP)
    return work


def commit(
    keys: RedisKeys, entry: Entry, found: Mapping[Partition, Position], skips: Mapping[str, str] | None = None
) -> ScriptInput:
    """Move the positions from start to stop, fill open skips, and write letters, notes and history."""
    work = ScriptInput()
    for step in entry.advances:
        key, old = keys.position(entry.group, step.partition), found[step.partition]
        new = replace(old, next_offset=step.stop, updated_at=entry.now)
        # A span without records has no record time: keep the time of the last record.
        leader_epoch = old.leader_epoch if step.leader_epoch is None else step.leader_epoch
        new = replace(new, record_time=step.record_time or old.record_time, leader_epoch=leader_epoch)
        work.expect(key, "next_offset", step.start)
        _move(work, keys, entry.group, replace(old, epoch=step.epoch), new, MOVED)
        work.add(key, {name: getattr(step.tally, name) for name in OUTCOMES})
    for partition in entry.drift:
        _add_drift(work, keys.position(entry.group, partition), entry, found[partition])
    for each in entry.fills:
        notes.fill(work, keys, entry.group, each, skips or {}, found.get(each.skip.partition))
    for tried in entry.replays:
        letters.replay(work, keys, entry, tried, found[tried.partition])
    for letter in entry.dead_letters:
        work.call("ZADD", keys.letters(entry.group), score(entry.now), letters.put(work, keys, entry, letter))
    notes.write(work, keys, entry.group, entry.journal, entry.now, entry.batch)
    for table in entry.tables:
        work.call("HSETNX", keys.tables(entry.group), json.dumps([table.name, table.write]), table.store or "")
    if any(len(span) for span in entry.spans):
        work.call("ZADD", keys.batches(entry.group), score(entry.now), _batch(entry))
        work.call("ZREMRANGEBYRANK", keys.batches(entry.group), 0, -KEEP_BATCHES - 1)
    if entry.pause is not None:
        set_state(work, keys, entry.group, GroupState("paused", entry.pause, "budget", entry.now))
    return work


def set_state(work: ScriptInput, keys: RedisKeys, group: str, state: GroupState) -> None:
    reason = None if state.reason is None else storable(state.reason)
    fields = {"group_name": group, "desired_state": state.desired, "reason": reason}
    work.put(keys.group(group), fields | {"changed_by": state.by, "changed_at": as_text(state.since)})
    work.call("SADD", keys.groups(), group)


def state(fields: Mapping[str, str]) -> GroupState | None:
    if not fields:
        return None
    since = from_text(fields["changed_at"])
    return GroupState(fields["desired_state"], fields.get("reason"), fields.get("changed_by"), since)


def recent(client: Any, keys: RedisKeys, group: str, since: datetime) -> Tally:
    lines = client.zrangebyscore(keys.batches(group), score(since), "+inf")
    tallies = [Tally(*(line[name] for name in OUTCOMES)) for line in map(json.loads, lines)]
    # Without replays, which count dead records down.
    return Tally.sum(tally for tally in tallies if tally.dead >= 0)


def position(fields: Mapping[str, str]) -> Position:
    owner = None
    if "owner" in fields:
        owner = Owner(fields["owner"], fields["owner_host"], from_text(fields["owned_since"]))
    return Position(
        partition=Partition(fields["topic"], int(fields["partition_id"])),
        next_offset=int(fields["next_offset"]),
        first_offset=int(fields["first_offset"]),
        topic_id=fields["topic_id"],
        cluster_id=fields["cluster_id"],
        epoch=int(fields["epoch"]),
        owner=owner,
        tally=Tally(*(int(fields[name]) for name in OUTCOMES)),
        record_time=from_text(fields["record_time"]) if "record_time" in fields else None,
        updated_at=from_text(fields["updated_at"]),
        leader_epoch=int(fields["leader_epoch"]) if "leader_epoch" in fields else None,
        drift=_drift(fields),
    )


def _fields(group: str, position: Position) -> dict[str, str | int | None]:
    owner = position.owner
    return {
        "group_name": group,
        "topic": position.partition.topic,
        "partition_id": position.partition.number,
        "next_offset": position.next_offset,
        "first_offset": position.first_offset,
        **{name: getattr(position.tally, name) for name in OUTCOMES},
        "record_time": as_text(position.record_time) if position.record_time else None,
        "epoch": position.epoch,
        "owner": owner.run if owner else None,
        "owner_host": owner.host if owner else None,
        "owned_since": as_text(owner.since) if owner else None,
        "topic_id": position.topic_id,
        "cluster_id": position.cluster_id,
        "updated_at": as_text(position.updated_at),
        "leader_epoch": position.leader_epoch,
    }


def _drift(fields: Mapping[str, str]) -> Drift:
    names = [name.removeprefix(RECORDS) for name in fields if name.startswith(RECORDS)]
    return {
        name: Seen(int(fields[RECORDS + name]), *(from_text(fields[when + name]) for when in (FIRST, LAST)))
        for name in names
    }


def _add_drift(work: ScriptInput, key: str, entry: Entry, position: Position) -> None:
    """Count fields in the script itself, because a fill may count some between read and write."""
    known, now = dict[str, object](position.drift), entry.now.replace(microsecond=0)
    for path, found in sorted(entry.drift[position.partition].items()):
        name = bounded(path, known)
        known[name] = found
        work.add(key, {RECORDS + name: found.records})
        work.call("HSETNX", key, FIRST + name, as_text(now))
        work.call("HSET", key, LAST + name, as_text(now))


def _forget_drift(work: ScriptInput, key: str, drift: Drift) -> None:
    for name in drift:
        work.call("HDEL", key, RECORDS + name, FIRST + name, LAST + name)


def _move(work: ScriptInput, keys: RedisKeys, group: str, old: Position, new: Position, names: Sequence[str]) -> None:
    """Set these fields of a position if its epoch is still that of ``old``."""
    key, fields = keys.position(group, old.partition), _fields(group, new)
    work.expect(key, "epoch", old.epoch)
    work.put(key, {name: fields[name] for name in names})


def _insert(
    work: ScriptInput,
    keys: RedisKeys,
    group: str,
    owner: Owner | None,
    now: datetime,
    partition: Partition,
    start: FirstClaim,
) -> None:
    key, epoch = keys.position(group, partition), 0 if owner is None else 1
    ids, at = (start.topic_id, start.cluster_id), start.offset
    new = Position(partition, at, at, *ids, epoch, owner, Tally(), None, now, start.leader_epoch)
    work.expect(key, "epoch", "")
    work.put(key, _fields(group, new))
    work.call("SADD", keys.positions(group), key)


def _register(work: ScriptInput, keys: RedisKeys, group: str, by: str, now: datetime) -> None:
    work.call("SADD", keys.groups(), group)
    fields = {"desired_state": "running", "group_name": group, "changed_by": by}
    for name, value in (fields | {"changed_at": as_text(now)}).items():
        work.call("HSETNX", keys.group(group), name, value)


def _batch(entry: Entry) -> str:
    line: dict[str, Any] = {
        "batch": entry.batch,
        "started_at": as_text(entry.started),
        "committed_at": as_text(entry.now),
    }
    line |= {name: getattr(entry.tally, name) for name in OUTCOMES}
    line["table_rows"] = dict(entry.rows)
    line["spans"] = [[span.partition.topic, span.partition.number, span.start, span.stop] for span in entry.spans]
    return json.dumps(line, ensure_ascii=False)
