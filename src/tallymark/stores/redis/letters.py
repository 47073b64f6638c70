"""Dead letters in Redis: one hash for each, whose values are bytes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tallymark.core.claims import Entry, Replay
from tallymark.core.journal import DEAD, REPLAYED, UNAPPLIED, VOID, Letter, LetterQuery
from tallymark.core.records import DeadLetter, headers_from_json, storable
from tallymark.core.spans import Partition, Position
from tallymark.stores.redis.keys import RedisKeys, as_text, from_text
from tallymark.stores.redis.script import ScriptInput


def key(keys: RedisKeys, letter: Letter) -> str:
    return keys.letter_of(letter.group, letter.id)


def put(work: ScriptInput, keys: RedisKeys, entry: Entry, letter: DeadLetter) -> str:
    """Write a new dead letter and return its key."""
    name = keys.letter(entry.group, letter.partition, letter.offset, entry.batch)
    work.put(
        name,
        {
            "group_name": entry.group,
            "topic": letter.partition.topic,
            "partition_id": letter.partition.number,
            "record_offset": letter.offset,
            "record_time": as_text(letter.record_time) if letter.record_time else None,
            "record_key": letter.key,
            "record_value": letter.value,
            "headers": letter.headers_as_json(),
            "table_name": letter.table,
            "error": storable(letter.error),
            "state": DEAD,
            "batch": entry.batch,
            "recorded_at": as_text(entry.now),
        },
    )
    return name


def read(client: Any, keys: RedisKeys, group: str, ids: Iterable[str] | None = None) -> list[Letter]:
    """Return the dead letters of a group, oldest first, or only those with these ids."""
    prefix = keys.letter_of(group, "")
    if ids is None:
        ids = [name.decode().removeprefix(prefix) for name in client.zrange(keys.letters(group), 0, -1)]
    chosen, pipe = list(ids), client.pipeline(transaction=False)
    for number in chosen:
        pipe.hgetall(keys.letter_of(group, number))
    stored = zip(chosen, pipe.execute() if chosen else [], strict=True)
    return [_letter(number, group, fields) for number, fields in stored if fields]


def states(client: Any, keys: RedisKeys, group: str) -> list[str]:
    """Return the state of each dead letter of a group."""
    pipe = client.pipeline(transaction=False)
    for name in client.zrange(keys.letters(group), 0, -1):
        pipe.hget(name, "state")
    return [state.decode() for state in pipe.execute() if state]


def matches(query: LetterQuery, letter: Letter) -> bool:
    record = letter.record
    return (
        query.topic in (None, record.partition.topic)
        and query.partition in (None, record.partition.number)
        and query.table in (None, record.table)
        and (query.states is None or letter.state in query.states)
        and (query.error is None or query.error.casefold() in record.error.casefold())
        and (query.since is None or letter.recorded_at >= query.since)
        and (query.until is None or letter.recorded_at < query.until)
    )


def settle(work: ScriptInput, name: str, state: str, by: str, now: datetime) -> None:
    work.expect(name, "state", DEAD)
    work.put(name, {"state": state, "changed_at": as_text(now), "changed_by": by})


def replay(work: ScriptInput, keys: RedisKeys, entry: Entry, each: Replay, position: Position) -> None:
    """Settle a letter that was applied and update the tally of its position; otherwise store the new error."""
    name = keys.letter_of(entry.group, each.letter)
    if each.error is not None:
        work.expect(name, "state", DEAD)
        work.put(name, {"error": storable(each.error), "changed_at": as_text(entry.now), "changed_by": entry.batch})
        return
    settle(work, name, REPLAYED, entry.batch, entry.now)
    # A reset since the position was read would have changed first_offset.
    work.expect(keys.position(entry.group, each.partition), "first_offset", position.first_offset)
    if position.counts(each.offset):
        work.add(keys.position(entry.group, each.partition), {"applied": 1, "dead": -1})


def void(
    work: ScriptInput, keys: RedisKeys, partition: Partition, start: int, letters: Iterable[Letter], now: datetime
) -> None:
    """Void the letters of records that will be read again: replaying them would apply the records twice."""
    for letter in letters:
        here = letter.record.partition == partition and letter.record.offset >= start
        if here and letter.state in UNAPPLIED:
            work.expect(key(keys, letter), "state", letter.state)
            work.put(key(keys, letter), {"state": VOID, "changed_at": as_text(now), "changed_by": "reset"})


def _letter(number: str, group: str, fields: dict[bytes, bytes]) -> Letter:
    def words(name: str) -> str | None:
        found = fields.get(name.encode())
        return None if found is None else found.decode()

    def moment(name: str) -> datetime | None:
        found = words(name)
        return None if found is None else from_text(found)

    record = DeadLetter(
        Partition(words("topic") or "", int(words("partition_id") or 0)),
        int(words("record_offset") or 0),
        moment("record_time"),
        fields.get(b"record_key"),
        fields.get(b"record_value"),
        headers_from_json(words("headers")),
        words("table_name"),
        words("error") or "",
    )
    recorded = moment("recorded_at")
    assert recorded is not None
    state, batch = words("state") or DEAD, words("batch") or ""
    return Letter(number, group, record, state, batch, recorded, moment("changed_at"), words("changed_by"))
