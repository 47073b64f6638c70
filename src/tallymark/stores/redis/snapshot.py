"""A snapshot of the ledger in Redis: one script, which is atomic, reads everything that an audit compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tallymark.core.journal import UNAPPLIED
from tallymark.core.spans import Partition, Position
from tallymark.errors import BadInput
from tallymark.stores.contract import HISTORY, NOTES, Moment, Snapshot, SnapshotMark
from tallymark.stores.redis.journal import _batch, _note
from tallymark.stores.redis.ledger import position
from tallymark.stores.redis.rows import RedisKeys
from tallymark.stores.redis.times import from_text

READ = """
local positions, letters = {}, {}
for at, key in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    positions[at] = redis.call('HGETALL', key)
end
for at, key in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    letters[at] = redis.call('HMGET', key, 'topic', 'partition_id', 'record_offset', 'state', 'recorded_at')
end
return {positions, letters, redis.call('HGETALL', KEYS[3]), redis.call('LRANGE', KEYS[4], 0, -1),
    redis.call('ZREVRANGE', KEYS[5], 0, ARGV[1] - 1)}
"""


@dataclass(frozen=True)
class RedisSnapshot(Snapshot):
    """``ask`` calls a function with the client and returns its result."""

    keys: RedisKeys
    ask: Callable[[Callable[[Any], Any]], Any]

    def moment(self, group: str) -> Moment:
        named = self.keys.positions, self.keys.letters, self.keys.skips, self.keys.exceptions, self.keys.batches
        keys = [name(group) for name in named]
        positions, letters, skips, journal, batches = self.ask(
            lambda client: client.execute_command("EVAL", READ, len(keys), *keys, HISTORY)
        )
        notes = [_note(json.loads(line)) for line in journal]
        return Moment(
            sorted((_position(flat) for flat in positions if flat), key=lambda one: one.partition),
            sorted(_note(json.loads(line)).note.span for line in skips[1::2]),
            [(line.note, line.recorded_at) for line in notes if line.note.kind in NOTES],
            [mark for mark in map(_mark, letters) if mark is not None and mark.state in UNAPPLIED],
            [_batch(json.loads(line)) for line in batches],
        )

    def origins(self, table: str) -> Iterator[pa.Table] | None:
        raise BadInput(f"table {table}: --deep requires an SQL database; Redis has no consistent snapshot of all rows")


def _position(flat: list[bytes]) -> Position:
    return position({name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)})


def _mark(fields: list[bytes | None]) -> SnapshotMark | None:
    """Return None if the letter was deleted by hand and only its key is left in the index."""
    if any(value is None for value in fields):
        return None
    topic, number, offset, state, recorded = (value.decode() for value in fields if value is not None)
    return SnapshotMark(Partition(topic, int(number)), int(offset), state, from_text(recorded))
