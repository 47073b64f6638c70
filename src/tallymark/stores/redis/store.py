"""The store for Redis and Valkey: one script for each commit writes the user's rows and the ledger.

All keys of a store share the hash tag of its URL and thereby one slot: in a cluster a store is on one node. Pipelines
with different tags are distributed over the nodes.

What a server loses in a crash depends on its append-only file. A script is one entry in that file and in the
replication stream: rows and positions are lost together, and the records are read again.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa

from tallymark.core.claims import (
    Claim,
    Decide,
    Entry,
    Rebalance,
    Skip,
    explain_loss,
    explain_refusal,
    explain_settled,
    explain_unfillable,
)
from tallymark.core.journal import Letter, Run
from tallymark.core.progress import Step
from tallymark.core.retention import Cutoffs
from tallymark.core.spans import GroupState, Owner, Partition, Position, Tally
from tallymark.core.tables import Changes, TableSpec, table_schema
from tallymark.errors import (
    AccessDenied,
    BadInput,
    BatchTooLarge,
    CommitRefused,
    DataRefused,
    TallymarkError,
    Unreachable,
)
from tallymark.stores.contract import RowsRefused, Store
from tallymark.stores.redis import ledger, letters, notes, rows, script
from tallymark.stores.redis.address import Address
from tallymark.stores.redis.errors import translated
from tallymark.stores.redis.journal import RedisJournal, RedisSnapshot
from tallymark.stores.redis.keys import LEDGER, RedisKeys
from tallymark.stores.redis.prune import removals
from tallymark.stores.redis.script import Work
from tallymark.stores.redis.transaction import RedisTransaction
from tallymark.stores.sql.columns import is_json

log = logging.getLogger(__name__)

T = TypeVar("T")
PAUSES = (0.0, *(0.002 * 2**n for n in range(10)))
"""Maximum seconds before each attempt to claim, after another process was faster."""


class RedisStore(Store):
    """Keeps rows and offsets on one server, so that one script can write both."""

    latest_version = ledger.VERSION
    most_records = 10_000
    """The script for this many rows of five columns blocks the server for about 0.1 s."""

    def __init__(self, url: str) -> None:
        self._address = Address.parse(url)
        self._address.driver()
        self.name = self._address.name
        self._keys = RedisKeys(self._address.tag)
        self._json: dict[str, set[str]] = {}

    @cached_property
    def _client(self) -> Any:
        return self._address.client()

    def ping(self) -> None:
        with translated(self.name):
            self._client.ping()

    def ask(self, question: Callable[[Any], T]) -> T:
        """Call a function with the client and return its result."""
        with translated(self.name):
            return question(self._client)

    def try_commands(self) -> None:
        """Raise if the user may not call the commands of a commit. The script checks that; nothing is pruned."""
        work = Work()
        work.call("ZREMRANGEBYSCORE", self._keys.batches(f"nobody-{uuid.uuid4().hex}"), "-inf", 0)
        self._run(work)

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()
            del self._client

    def create_ledger(self) -> None:
        self._check_eviction()
        found = self.ledger_version()
        if found is None or found < ledger.VERSION:
            self._run(self._upgrade(found))
            found = self.ledger_version()
        if found is not None and found > ledger.VERSION:
            raise BadInput(f"the ledger has version {found}, this tallymark knows {ledger.VERSION}: upgrade tallymark")

    def _upgrade(self, found: int | None) -> Work:
        """Create or upgrade the ledger, unless another process has done it first."""
        key, work = self._keys.schema(), Work()
        work.expect(key, "version", found or "")
        work.put(key, {"version": ledger.VERSION, "applied_at": datetime.now(timezone.utc).isoformat()})
        with translated(self.name):
            for group in _texts(self._client.smembers(self._keys.groups())) if found == 1 else ():
                notes.reopen(work, self._keys, group, self._client.lrange(self._keys.exceptions(group), 0, -1))
        return work

    def positions(self, group: str | None = None) -> dict[str, list[Position]]:
        with translated(self.name):
            groups = [group] if group is not None else _texts(self._client.smembers(self._keys.groups()))
        found = {name: self._positions(name) for name in sorted(groups)}
        return {name: [held[partition] for partition in sorted(held)] for name, held in found.items() if held}

    def state(self, group: str) -> GroupState | None:
        return ledger.state(self._hashes([self._keys.group(group)])[0])

    def set_state(self, group: str, state: GroupState) -> None:
        work = Work()
        ledger.set_state(work, self._keys, group, state)
        self._run(work)

    def journal(self) -> RedisJournal:
        return RedisJournal(self._keys, self.ask, self._run, self._changed)

    @contextmanager
    def snapshot(self) -> Iterator[RedisSnapshot]:
        yield RedisSnapshot(self._keys, self.ask)

    def write_run(self, group: str, run: Run, *, new: bool = False) -> None:
        known, work = self._hashes([self._keys.runs(group)])[0], Work()
        if new or (run.name in known and notes.runs({run.name: known[run.name]})[0].ended is None):
            notes.write_run(work, self._keys, group, run, known)
            self._run(work)

    def recent(self, group: str, since: datetime) -> Tally:
        with translated(self.name):
            return ledger.recent(self._client, self._keys, group, since)

    def skips(self, group: str) -> list[Skip]:
        return notes.skips(self._open_skips(group))

    def filled(self, group: str, batch: str) -> bool:
        with translated(self.name):
            return notes.was_filled(self._client, self._keys, group, batch)

    def record_rebalances(self, group: str, rebalances: Sequence[Rebalance]) -> None:
        work = Work()
        notes.record_rebalances(work, self._keys, group, rebalances)
        self._run(work)

    def rebalances(self, group: str, most: int = 100) -> list[Rebalance]:
        with translated(self.name):
            return notes.rebalances(self._client, self._keys, group, most)

    def prune(self, group: str, cutoffs: Cutoffs, *, execute: bool = True) -> dict[str, int]:
        owners = {one.owner.run for one in self._positions(group).values() if one.owner}
        found = self.ask(lambda client: list(removals(client, self._keys, group, cutoffs, owners)))
        for work in (work for one in found for work in one.works if execute):
            self._run(work)
        return {one.key: one.count for one in found}

    def claim(
        self,
        group: str,
        owner: Owner,
        partitions: Collection[Partition],
        decide: Decide,
        held: Mapping[Partition, Claim],
    ) -> dict[Partition, Claim]:
        def plan(found: Mapping[Partition, Position]) -> Work:
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
            rows.check_table(spec, table_schema(spec, schemas[spec.name]))

    def create_tables(self, specs: Sequence[TableSpec], schemas: Mapping[str, pa.Schema]) -> None:
        self.check_tables(specs, schemas)
        for spec in specs:
            self._json[spec.name] = {field.name for field in schemas[spec.name] if is_json(field)}

    @contextmanager
    def begin(
        self, entry: Callable[[], Entry | None], on_step: Callable[[Step], None] = lambda _: None
    ) -> Iterator[RedisTransaction]:
        db = RedisTransaction(self.name, lambda: self._client, self._keys, self._address.rows, self._try_out)
        with db.opened():
            yield db
            made = entry()
        work = self._commit(made) if made is not None else Work()
        if not db.add_to(work) and made is None:
            return
        on_step(Step.WRITTEN)
        if made is not None:
            on_step(Step.MOVED)
        answer = self._answer(work, divisible=made is not None and _divisible(made))
        _check_rows(answer)
        self._check_moved(answer, made)

    def _try_out(self, work: Work) -> None:
        """Raise if the server would refuse the writes that a handler has collected so far."""
        _check_rows(self._answer(work))

    def apply(
        self,
        changes: Sequence[Changes],
        entry: Entry | None,
        on_step: Callable[[Step], None] = lambda _: None,
        refusals: int = sys.maxsize,
    ) -> None:
        work = self._commit(entry) if entry is not None else Work()
        batch = entry.batch if entry is not None else uuid.uuid4().hex
        divisible = entry is not None and _divisible(entry)
        answer = self._write(work, changes, batch, refusals, divisible, on_step)
        self._check_moved(answer, entry)

    def _check_moved(self, answer: list[Any], entry: Entry | None) -> None:
        if answer[0] == b"moved" and entry is not None:
            self._check_fence(entry)
            raise CommitRefused(f"group {entry.group}: {answer[1].decode()} had changed; nothing was written")

    def try_out(self, changes: Sequence[Changes], refusals: int = sys.maxsize) -> None:
        self._write(Work(only_try=True), changes, uuid.uuid4().hex, refusals, False, lambda _: None)

    def _write(
        self,
        work: Work,
        changes: Sequence[Changes],
        batch: str,
        refusals: int,
        divisible: bool,
        on_step: Callable[[Step], None],
    ) -> list[Any]:
        refused = [found for change in changes for found in rows.refused_rows(change, self._address.rows)]
        if refused:
            raise RowsRefused(refused[:refusals])
        sources = self._add_rows(work, changes, batch)
        if changes:
            on_step(Step.WRITTEN)
        if work.expected:
            on_step(Step.MOVED)
        answer = self._answer(work, divisible=divisible)
        if answer[0] == b"wrong":
            wrong = [(sources[block], at, key, kind) for block, at, key, kind in answer[1][:refusals]]
            raise RowsRefused(
                [
                    rows.refusal(spec, table, at, f"key {key.decode()} holds a {kind.decode()}")
                    for (spec, table), at, key, kind in wrong
                ]
            )
        return answer

    def _commit(self, entry: Entry) -> Work:
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
        return self._hashes([self._keys.skips(group)])[0]

    def _letters(self, group: str, ids: Collection[str] | None = None) -> list[Letter]:
        return self.ask(lambda client: letters.read(client, self._keys, group, ids))

    def _add_rows(self, work: Work, changes: Sequence[Changes], batch: str) -> list[tuple[TableSpec, pa.Table]]:
        sources = []
        for change in changes:
            spec = change.spec
            prefix, already_json = self._keys.table(spec.name), self._json.get(spec.name, set())
            for block, table in rows.blocks(change, self._address.rows, prefix, batch, already_json):
                work.blocks.append(block)
                sources.append((spec, table))
        return sources

    def _changed(self, group: str, plan: Callable[[Mapping[Partition, Position]], Work]) -> dict[Partition, Claim]:
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
            with translated(self.name):
                keys = _texts(self._client.smembers(self._keys.positions(group)))
        else:
            keys = [self._keys.position(group, partition) for partition in partitions]
        found = [ledger.position(fields) for fields in self._hashes(keys) if fields]
        return {position.partition: position for position in found}

    def _hashes(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """Read these hashes atomically."""
        return (self._run(Work(reads=list(keys))) or []) if keys else []

    def _run(self, work: Work) -> list[dict[str, str]] | None:
        """Run the script. Returns the hashes that it read; None if an expectation failed."""
        answer = self._answer(work)
        return [_fields(flat) for flat in answer[1]] if answer[0] == b"done" else None

    def _answer(self, work: Work, *, divisible: bool = False) -> list[Any]:
        keys, arguments = work.keys(), work.arguments()
        if len(keys) + len(arguments) + 3 > script.MOST_ARGUMENTS:
            raise (BatchTooLarge if divisible else BadInput)(
                f"{self.name}: the batch needs {len(keys) + len(arguments)} arguments, but a Redis command takes "
                f"{script.MOST_ARGUMENTS}: lower limits.records"
            )
        try:
            with translated(self.name):
                answer = script.run(self._client, keys, arguments)
        except Unreachable as error:
            if type(error.__cause__).__name__ == "ReadOnlyError" and not self._address.cluster:
                # After a failover the address may lead to the new primary: drop the connections to the old server.
                self._client.connection_pool.disconnect()
            raise
        if answer[0] == b"broken" and not answer[1].decode().startswith(self._keys.table(LEDGER)):
            raise DataRefused(f"key {answer[1].decode()} holds a {answer[2].decode()}; nothing was written")
        if answer[0] == b"broken":
            raise TallymarkError(
                f"{self.name}: ledger key {answer[1].decode()} holds a {answer[2].decode()}, written by another "
                "program; delete it or choose another tag"
            )
        if answer[0] == b"denied":
            raise AccessDenied(
                f"{self.name}: the user may not call {answer[1].decode()}; nothing was written: grant it"
            )
        return answer

    def ledger_version(self) -> int | None:
        version = self._hashes([self._keys.schema()])[0].get("version")
        return int(version) if version is not None else None

    def _check_eviction(self) -> None:
        """Refuse a server that evicts keys when memory is full: it would evict positions too."""
        try:
            with translated(self.name):
                policy = self._client.info("memory").get("maxmemory_policy", "noeviction")
        except AccessDenied:
            log.info("maxmemory-policy unknown, the user may not call INFO store=%s", self.name)
            return
        if policy.startswith("allkeys"):
            raise BadInput(
                f"{self.name} evicts any key when memory is full (maxmemory-policy {policy}), including positions; set "
                "it to noeviction, or to volatile-ttl if other programs need eviction"
            )


def _check_rows(answer: list[Any]) -> None:
    if answer[0] == b"wrong":
        _, _, key, kind = answer[1][0]
        raise DataRefused(f"key {key.decode()} holds a {kind.decode()}; nothing was written")


def _divisible(entry: Entry) -> bool:
    """Whether the batch can be split into smaller batches."""
    return len(entry.replays) > 1 or any(len(span) > 1 for span in entry.spans)


def _texts(members: Iterable[bytes]) -> list[str]:
    return sorted(member.decode() for member in members)


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
