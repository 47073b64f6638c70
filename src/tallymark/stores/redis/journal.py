"""The Redis ledger as operators and audits see it: the journal, and a snapshot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from tallymark.core.claims import Note, explain_settled
from tallymark.core.journal import (
    UNAPPLIED,
    BatchLine,
    Consent,
    Decision,
    Journal,
    Letter,
    LetterQuery,
    NoteLine,
    Run,
    unexpected,
)
from tallymark.core.spans import OUTCOMES, GroupState, Partition, Position, Span, Tally
from tallymark.core.tables import WrittenTable
from tallymark.errors import BadInput, CommitRefused
from tallymark.stores.contract import HISTORY, NOTES, Moment, Snapshot, SnapshotMark
from tallymark.stores.redis import ledger, letters, notes
from tallymark.stores.redis.emptying import check_count, empty_table, row_keys
from tallymark.stores.redis.keys import RedisKeys, from_text, score
from tallymark.stores.redis.script import ScriptInput

T = TypeVar("T")


@dataclass(frozen=True)
class RedisJournal(Journal):
    """``ask`` queries the client, ``run`` runs the script once, ``change`` plans and runs it until it is accepted."""

    keys: RedisKeys
    ask: Callable[[Callable[[Any], Any]], Any]
    run: Callable[[ScriptInput], list[dict[str, str]] | None]
    change: Callable[[str, Callable[[Mapping[Partition, Position]], ScriptInput]], object]

    def groups(self) -> dict[str, GroupState]:
        names = sorted(name.decode() for name in self.ask(lambda client: client.smembers(self.keys.groups())))
        hashes = self.run(ScriptInput(reads=[self.keys.group(name) for name in names])) or [] if names else []
        states = {name: ledger.state(fields) for name, fields in zip(names, hashes, strict=True)}
        return {name: state for name, state in states.items() if state is not None}

    def runs(self, group: str) -> list[Run]:
        return notes.runs(self._hash(self.keys.runs(group)))

    def history(self, group: str, since: datetime | None = None, most: int = 1000) -> list[BatchLine]:
        first = score(since) if since else "-inf"
        key = self.keys.batches(group)
        lines = self.ask(lambda client: client.zrevrangebyscore(key, "+inf", first, start=0, num=most))
        return [_batch(json.loads(line)) for line in lines]

    def tables(self, group: str | None = None) -> dict[str, list[WrittenTable]]:
        groups = [group] if group is not None else list(self.groups())
        found = {name: self._hash(self.keys.tables(name)) for name in groups}
        return {
            name: sorted(_table(written, store) for written, store in fields.items())
            for name, fields in found.items()
            if fields
        }

    def row_counts(self, tables: Collection[str]) -> dict[str, int]:
        counts = {table: len(self._rows(table)) for table in sorted(tables)}
        return {table: count for table, count in counts.items() if count}

    def notes(self, group: str, kinds: Collection[str]) -> list[NoteLine]:
        lines = self.ask(lambda client: client.lrange(self.keys.exceptions(group), 0, -1))
        notes = [_note(json.loads(line)) for line in lines]
        notes = [line for line in notes if line.note.kind in kinds and line.note.kind != "skip"]
        if "skip" in kinds:
            notes += [_note(json.loads(line)) for line in self._hash(self.keys.skips(group)).values()]
        return sorted(notes, key=lambda line: line.recorded_at)

    def letters(self, query: LetterQuery) -> list[Letter]:
        groups = [query.group] if query.group is not None else list(self.groups())
        stored = (letter for group in groups for letter in self._letters(group, query.ids))
        matching = (letter for letter in stored if letters.matches(query, letter))
        return sorted(matching, key=lambda letter: letter.recorded_at)[: query.most]

    def letter_counts(self, group: str) -> dict[str, int]:
        states: list[str] = self.ask(lambda client: letters.states(client, self.keys, group))
        return dict(sorted(Counter(states).items()))

    def settle(self, chosen: Sequence[Letter], state: str, by: str, now: datetime) -> None:
        work = ScriptInput()
        for letter in chosen:
            letters.settle(work, letters.key(self.keys, letter), state, by, now)
        if chosen and self.run(work) is None:
            ids, groups = [letter.id for letter in chosen], {letter.group for letter in chosen}
            states = {letter.id: letter.state for group in groups for letter in self._letters(group, ids)}
            raise explain_settled(states, ids) or CommitRefused(
                "dead letters had changed; nothing was changed: try again"
            )

    def move(self, group: str, partitions: Collection[Partition], decide: Decision, by: str, now: datetime) -> None:
        def plan(found: Mapping[Partition, Position]) -> ScriptInput:
            skips, dead = self._hash(self.keys.skips(group)), partial(self._letters, group)
            concerned = {partition: found[partition] for partition in partitions if partition in found}
            changes = decide(concerned, self.runs(group))
            work = ledger.move(self.keys, group, changes, found, skips, dead, by, now)
            if changes.empties:
                self._empty(work, group, changes.empties, partitions, found)
            return work

        self.change(group, plan)

    def _empty(
        self,
        work: ScriptInput,
        group: str,
        tables: Collection[str],
        moved: Collection[Partition],
        found: Mapping[Partition, Position],
    ) -> None:
        """Delete the rows of these tables in the script, unless a commit moves or recounts a position before it."""
        for partition, position in found.items():
            counts = {"next_offset": position.next_offset, "epoch": position.epoch}
            counts |= {"skipped": position.tally.skipped, "dead": position.tally.dead}
            for name, value in counts.items():
                work.expect(self.keys.position(group, partition), name, value)
        rows = {table: self._rows(table) for table in sorted(set(tables))}
        check_count(rows)
        for table, keys in rows.items():
            empty_table(work, [*keys, self.keys.deletions(table)])
        # After the rows: a position that is created later has no row among those that were found.
        known = {key.decode() for key in self.ask(lambda client: client.smembers(self.keys.positions(group)))}
        mine = {self.keys.position(group, partition): partition for partition in moved}
        for key in sorted(known - mine.keys()):
            fields = self._hash(key)
            raise unexpected(Partition(fields["topic"], int(fields["partition_id"])))

    def _rows(self, table: str) -> list[str]:
        return self.ask(lambda client: row_keys(client, self.keys, table))  # type: ignore[no-any-return]

    def delete(self, group: str, consent: Consent) -> None:
        def plan(found: Mapping[Partition, Position]) -> ScriptInput:
            consent(found, self.runs(group))
            work = ScriptInput()
            for partition, position in found.items():
                key, tally = self.keys.position(group, partition), position.tally
                now = {"epoch": position.epoch, "next_offset": position.next_offset}
                for name, value in (now | {"dead": tally.dead, "skipped": tally.skipped}).items():
                    work.expect(key, name, value)
                work.call("DEL", key)
            for letter in self._letters(group):
                work.call("DEL", letters.key(self.keys, letter))
            for key in self.keys.of_group(group):
                work.call("DEL", key)
            work.call("SREM", self.keys.groups(), group)
            return work

        self.change(group, plan)

    def _letters(self, group: str, ids: Collection[str] | None = None) -> list[Letter]:
        return self.ask(lambda client: letters.read(client, self.keys, group, ids))  # type: ignore[no-any-return]

    def _hash(self, key: str) -> dict[str, str]:
        return (self.run(ScriptInput(reads=[key])) or [{}])[0]


SNAPSHOT = """
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
    """One script, which is atomic, reads everything that an audit compares. ``ask`` queries the client."""

    keys: RedisKeys
    ask: Callable[[Callable[[Any], Any]], Any]

    def moment(self, group: str) -> Moment:
        named = self.keys.positions, self.keys.letters, self.keys.skips, self.keys.exceptions, self.keys.batches
        keys = [name(group) for name in named]
        positions, letters, skips, journal, batches = self.ask(
            lambda client: client.execute_command("EVAL", SNAPSHOT, len(keys), *keys, HISTORY)
        )
        lines = [_note(json.loads(line)) for line in journal]
        return Moment(
            sorted((_position(flat) for flat in positions if flat), key=lambda position: position.partition),
            sorted(_note(json.loads(line)).note.span for line in skips[1::2]),
            [(line.note, line.recorded_at) for line in lines if line.note.kind in NOTES],
            [mark for mark in map(_mark, letters) if mark is not None and mark.state in UNAPPLIED],
            [_batch(json.loads(line)) for line in batches],
        )

    def origins(self, table: str) -> Iterator[pa.Table] | None:
        raise BadInput(f"table {table}: --deep requires an SQL database; Redis has no consistent snapshot of all rows")


def _position(flat: list[bytes]) -> Position:
    return ledger.position({name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)})


def _mark(fields: list[bytes | None]) -> SnapshotMark | None:
    """Return None if the letter was deleted by hand and only its key is left in the index."""
    if any(value is None for value in fields):
        return None
    topic, number, offset, state, recorded = (value.decode() for value in fields if value is not None)
    return SnapshotMark(Partition(topic, int(number)), int(offset), state, from_text(recorded))


def _batch(line: Mapping[str, Any]) -> BatchLine:
    spans = [Span(Partition(topic, number), start, stop) for topic, number, start, stop in line["spans"]]
    tally = Tally(*(line[name] for name in OUTCOMES))
    times = from_text(line["started_at"]), from_text(line["committed_at"])
    return BatchLine(line["batch"], *times, tally, line["table_rows"], spans)


def _table(written: str, store: str) -> WrittenTable:
    name, write = json.loads(written)
    return WrittenTable(name, write, store or None)


def _note(line: Mapping[str, Any]) -> NoteLine:
    span = Span(Partition(line["topic"], line["partition_id"]), line["start_offset"], line["stop_offset"])
    return NoteLine(Note(line["kind"], span, line["reason"]), line["batch"], from_text(line["recorded_at"]))
