"""The store for Redis and Valkey: one script for each commit writes the user's rows and the ledger.

All keys of a store share the hash tag of its URL and thereby one slot: in a cluster a store is on one node. Pipelines
with different tags are distributed over the nodes.

What a server loses in a crash depends on its append-only file. A script is one entry in that file and in the
replication stream: rows and positions are lost together, and the records are read again.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

import pyarrow as pa

from tallymark.core.claims import (
    Claim,
    Decide,
    Entry,
    Skip,
    explain_loss,
    explain_refusal,
    explain_settled,
    explain_unfillable,
)
from tallymark.core.journal import Letter, Rebalance, Run
from tallymark.core.progress import Step
from tallymark.core.retention import Cutoffs
from tallymark.core.spans import GroupState, Owner, Partition, Position, Tally
from tallymark.core.tables import Changes, TableSpec, refusal, table_schema
from tallymark.errors import BadInput, CommitRefused, DataRefused, Unreachable
from tallymark.stores.arrow import is_json
from tallymark.stores.contract import RowsRefused, Store
from tallymark.stores.redis import ledger, letters, notes, rows
from tallymark.stores.redis.address import Address
from tallymark.stores.redis.journal import RedisJournal, RedisSnapshot
from tallymark.stores.redis.keys import RedisKeys
from tallymark.stores.redis.prune import removals
from tallymark.stores.redis.script import ScriptInput
from tallymark.stores.redis.server import RedisServer
from tallymark.stores.redis.transaction import RedisTransaction

T = TypeVar("T")
PAUSES = (0.0, *(0.002 * 2**n for n in range(10)))
"""Maximum seconds before each attempt to claim, after another process was faster."""


class RedisStore(Store):
    """Keeps rows and offsets on one server, so that one script can write both."""

    latest_version = ledger.VERSION
    most_records = 10_000
    """The script for this many rows of five columns blocks the server for about 0.1 s."""

    def __init__(self, url: str) -> None:
        address = Address.parse(url)
        address.driver()
        self.name, self._form = address.name, address.rows
        self._keys = RedisKeys(address.tag)
        self._server = RedisServer(address)
        self._run = self._server.run
        self._json: dict[str, set[str]] = {}

    def ping(self) -> None:
        self.ask(methodcaller("ping"))

    def ask(self, question: Callable[[Any], T]) -> T:
        """Call a function with the client and return its result."""
        return self._server.ask(question)

    def try_commands(self) -> None:
        """Raise if the user may not call the commands of a commit. The script checks that; nothing is pruned."""
        work = ScriptInput()
        work.call("ZREMRANGEBYSCORE", self._keys.batches(f"nobody-{uuid.uuid4().hex}"), "-inf", 0)
        self._run(work)

    def close(self) -> None:
        self._server.close()

    def create_ledger(self) -> None:
        self._server.check_eviction()
        found = self.ledger_version()
        if found is None or found < ledger.VERSION:
            self._run(self._upgrade(found))
            found = self.ledger_version()
        if found is not None and found > ledger.VERSION:
            raise BadInput(
                f"the ledger has version {found}, this tallymark supports {ledger.VERSION}: upgrade tallymark"
            )

    def _upgrade(self, found: int | None) -> ScriptInput:
        """Create or upgrade the ledger, unless another process has done it first."""
        schema, work = self._keys.schema(), ScriptInput()
        work.expect(schema, "version", found or "")
        work.put(schema, {"version": ledger.VERSION, "applied_at": datetime.now(UTC).isoformat()})
        for group in self._members(self._keys.groups()) if found == 1 else ():
            lines = self.ask(methodcaller("lrange", self._keys.exceptions(group), 0, -1))
            notes.reopen(work, self._keys, group, lines)
        return work

    def positions(self, group: str | None = None) -> dict[str, list[Position]]:
        groups = [group] if group is not None else self._members(self._keys.groups())
        found = {name: self._positions(name) for name in sorted(groups)}
        return {name: [held[partition] for partition in sorted(held)] for name, held in found.items() if held}

    def state(self, group: str) -> GroupState | None:
        return ledger.state(self._server.hashes([self._keys.group(group)])[0])

    def set_state(self, group: str, state: GroupState) -> None:
        work = ScriptInput()
        ledger.set_state(work, self._keys, group, state)
        self._run(work)

    def journal(self) -> RedisJournal:
        return RedisJournal(self._keys, self.ask, self._run, self._changed)

    @contextmanager
    def snapshot(self) -> Iterator[RedisSnapshot]:
        yield RedisSnapshot(self._keys, self.ask)

    def write_run(self, group: str, run: Run, *, new: bool = False) -> None:
        known, work = self._server.hashes([self._keys.runs(group)])[0], ScriptInput()
        if new or (run.name in known and notes.runs({run.name: known[run.name]})[0].ended is None):
            notes.write_run(work, self._keys, group, run, known)
            self._run(work)

    def recent(self, group: str, since: datetime) -> Tally:
        return self.ask(lambda client: ledger.recent(client, self._keys, group, since))

    def skips(self, group: str) -> list[Skip]:
        return notes.skips(self._open_skips(group))

    def filled(self, group: str, batch: str) -> bool:
        return self.ask(lambda client: notes.was_filled(client, self._keys, group, batch))

    def record_rebalances(self, group: str, rebalances: Sequence[Rebalance]) -> None:
        work = ScriptInput()
        notes.record_rebalances(work, self._keys, group, rebalances)
        self._run(work)

    def rebalances(self, group: str, most: int = 100) -> list[Rebalance]:
        return self.ask(lambda client: notes.rebalances(client, self._keys, group, most))

    def prune(self, group: str, cutoffs: Cutoffs, *, execute: bool = True) -> dict[str, int]:
        owners = {position.owner.run for position in self._positions(group).values() if position.owner}
        old = self.ask(lambda client: list(removals(client, self._keys, group, cutoffs, owners)))
        for work in (work for removal in old for work in removal.works if execute):
            self._run(work)
        return {removal.key: removal.count for removal in old}

    def claim(
        self,
        group: str,
        owner: Owner,
        partitions: Collection[Partition],
        decide: Decide,
        held: Mapping[Partition, Claim],
    ) -> dict[Partition, Claim]:
        def plan(found: Mapping[Partition, Position]) -> ScriptInput:
            # Read after the positions: the script detects changes in between.
            skips, dead = self._open_skips(group), partial(self._letters, group)
            return ledger.claim(self._keys, group, owner, partitions, decide, held, found, skips, dead)

        return self._changed(group, plan)

    def reclaim(self, group: str, claims: Mapping[Partition, Claim]) -> dict[Partition, Claim]:
        return self._changed(group, lambda found: ledger.reclaim(self._keys, group, claims, found))

    def release(self, group: str, claims: Iterable[Claim]) -> None:
        ours = list(claims)
        self._changed(group, lambda found: ledger.release(self._keys, group, ours, found))

    def check_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        for spec in specs:
            rows.check_table(spec, table_schema(spec, schemas[spec.name]), self._form)

    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        self.check_tables(specs, schemas)
        for spec in specs:
            self._json[spec.name] = {field.name for field in schemas[spec.name] if is_json(field)}

    @contextmanager
    def begin(
        self, entry: Callable[[], Entry | None], on_step: Callable[[Step], None] = lambda _: None
    ) -> Iterator[RedisTransaction]:
        db = RedisTransaction(self.name, lambda: self._server.client, self._keys, self._form, self._try_out)
        with db.opened():
            yield db
            written = entry()
        work = self._commit(written) if written is not None else ScriptInput()
        if not db.add_to(work) and written is None:
            return
        on_step(Step.WRITTEN)
        if written is not None:
            on_step(Step.MOVED)
        answer = self._server.answer(work, divisible=written is not None and _divisible(written))
        _check_rows(answer)
        self._check_moved(answer, written)

    def _try_out(self, work: ScriptInput) -> None:
        """Raise if the server would refuse the writes that a handler has collected so far."""
        _check_rows(self._server.answer(work))

    def apply(
        self,
        changes: Sequence[Changes],
        entry: Entry | None,
        on_step: Callable[[Step], None] = lambda _: None,
        refusals: int = sys.maxsize,
    ) -> None:
        work = self._commit(entry) if entry is not None else ScriptInput()
        batch = entry.batch if entry is not None else uuid.uuid4().hex
        divisible = entry is not None and _divisible(entry)
        answer = self._write(work, changes, batch, refusals, divisible, on_step)
        self._check_moved(answer, entry)

    def _check_moved(self, answer: list[Any], entry: Entry | None) -> None:
        if answer[0] == b"moved" and entry is not None:
            self._check_fence(entry)
            raise CommitRefused(f"group {entry.group}: {answer[1].decode()} had changed; nothing was written")

    def try_out(self, changes: Sequence[Changes], refusals: int = sys.maxsize) -> None:
        self._write(ScriptInput(only_try=True), changes, uuid.uuid4().hex, refusals, False, lambda _: None)

    def _write(
        self,
        work: ScriptInput,
        changes: Sequence[Changes],
        batch: str,
        refusals: int,
        divisible: bool,
        on_step: Callable[[Step], None],
    ) -> list[Any]:
        refused = [found for change in changes for found in rows.refused_rows(change, self._form)]
        if refused:
            raise RowsRefused(refused[:refusals])
        sources = self._add_rows(work, changes, batch)
        if changes:
            on_step(Step.WRITTEN)
        if work.expected:
            on_step(Step.MOVED)
        answer = self._server.answer(work, divisible=divisible)
        if answer[0] == b"wrong":
            wrong = [(sources[block], at, key, kind) for block, at, key, kind in answer[1][:refusals]]
            raise RowsRefused([refusal(spec, table, at, _wrong(key, kind)) for (spec, table), at, key, kind in wrong])
        return answer

    def _commit(self, entry: Entry) -> ScriptInput:
        """Compute the ledger's part from the current state. The decision itself is made by the script."""
        return ledger.commit(self._keys, entry, *self._check_fence(entry))

    def _check_fence(self, entry: Entry) -> tuple[dict[Partition, Position], dict[str, str]]:
        """Return the positions and open skips that a commit needs; raise if the commit can't succeed."""
        concerned = {span.partition for span in entry.spans}
        found = self._positions(entry.group, concerned)
        skips = self._open_skips(entry.group) if entry.fills else {}
        if gone := concerned - found.keys():
            raise explain_loss(min(gone), 0, None)
        replayed = [each.letter for each in entry.replays if each.error is None]
        states = {letter.id: letter.state for letter in self._letters(entry.group, replayed)} if replayed else {}
        error = (
            explain_refusal(found, entry.advances)
            or explain_unfillable(notes.skips(skips), entry.fills)
            or explain_settled(states, replayed)
        )
        if error:
            raise error
        return found, skips

    def _open_skips(self, group: str) -> dict[str, str]:
        return self._server.hashes([self._keys.skips(group)])[0]

    def _letters(self, group: str, ids: Collection[str] | None = None) -> list[Letter]:
        return self.ask(lambda client: letters.read(client, self._keys, group, ids))

    def _add_rows(self, work: ScriptInput, changes: Sequence[Changes], batch: str) -> list[tuple[TableSpec, pa.Table]]:
        sources = []
        for change in changes:
            spec = change.spec
            prefix, already_json = self._keys.table(spec.name), self._json.get(spec.name, set())
            for block, table in rows.blocks(change, self._form, prefix, batch, already_json):
                work.blocks.append(rows.remembering(block, spec, self._keys))
                sources.append((spec, table))
        return sources

    def _changed(
        self, group: str, plan: Callable[[Mapping[Partition, Position]], ScriptInput]
    ) -> dict[Partition, Claim]:
        """Read, plan and write; repeat while other processes change the group in between."""
        for pause in PAUSES:
            time.sleep(pause * random.random())
            found = self._run(plan(self._positions(group)))
            if found is not None:
                positions = [ledger.position(fields) for fields in found if fields]
                return {
                    position.partition: Claim(position.partition, position.epoch, position) for position in positions
                }
        raise Unreachable(f"{self.name}: other processes kept changing group {group}; try again")

    def _positions(self, group: str, partitions: Collection[Partition] | None = None) -> dict[Partition, Position]:
        if partitions is None:
            keys = self._members(self._keys.positions(group))
        else:
            keys = [self._keys.position(group, partition) for partition in partitions]
        positions = [ledger.position(fields) for fields in self._server.hashes(keys) if fields]
        return {position.partition: position for position in positions}

    def _members(self, key: str) -> list[str]:
        """Return the members of a set, sorted."""
        return sorted(member.decode() for member in self.ask(lambda client: client.smembers(key)))

    def ledger_version(self) -> int | None:
        version = self._server.hashes([self._keys.schema()])[0].get("version")
        return int(version) if version is not None else None


def _check_rows(answer: list[Any]) -> None:
    if answer[0] == b"wrong":
        _, _, key, kind = answer[1][0]
        raise DataRefused(f"{_wrong(key, kind)}; nothing was written")


def _wrong(key: bytes, kind: bytes) -> str:
    """Explain why a row can't be written: the type of what is there, or a column that can't be merged."""
    if kind.startswith(b"!"):
        function, _, column = kind[1:].decode().partition(" ")
        if function == "append":
            return f"key {key.decode()}: the stored value of {column} is no JSON array, as append needs it"
        return f"key {key.decode()}: the sum of {column} is out of range, or the stored value is no number"
    return f"key {key.decode()} holds a {kind.decode()}"


def _divisible(entry: Entry) -> bool:
    """Whether the batch can be split into smaller batches."""
    return len(entry.replays) > 1 or any(len(span) > 1 for span in entry.spans)
