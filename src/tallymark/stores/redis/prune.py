"""Remove history from the ledger in Redis that nothing depends on."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tallymark.core.journal import SETTLED
from tallymark.core.retention import Cutoffs
from tallymark.stores.redis import notes
from tallymark.stores.redis.keys import RedisKeys, from_text, score
from tallymark.stores.redis.script import ScriptInput

MOST = 1_000
"""The maximum number of members that one script removes: a script blocks the server."""


@dataclass(frozen=True)
class Removal:
    """How many members a key loses, and the scripts that remove them."""

    key: str
    count: int
    works: Iterable[ScriptInput]


def removals(client: Any, keys: RedisKeys, group: str, cutoffs: Cutoffs, owners: Collection[str]) -> Iterator[Removal]:
    """Yield what is older than the cutoffs."""
    for name, before in cutoffs.items():
        if name == "batches":
            yield _by_time(client, keys.batches(group), before, keep_last=True)
        elif name == "deletions":
            for table in sorted({json.loads(written)[0] for written in client.hkeys(keys.tables(group))}):
                yield _old_deletions(client, keys.deletions(table), before)
        elif name == "rebalances":
            yield _by_time(client, keys.rebalances(group), before)
        elif name == "runs":
            old = _old_runs(client, keys, group, before, owners)
            yield Removal(keys.runs(group), len(old), [_call("HDEL", keys.runs(group), old)] if old else [])
        else:
            letters = _settled_letters(client, keys, group, before)
            pieces = [letters[at : at + MOST] for at in range(0, len(letters), MOST)]
            works = [_call("ZREM", keys.letters(group), piece, also=piece) for piece in pieces]
            yield Removal(keys.letters(group), len(letters), works)


def _by_time(client: Any, key: str, before: datetime, *, keep_last: bool = False) -> Removal:
    end = score(before)
    if keep_last:
        # Status looks at the last commit.
        end = min([end, *(int(last) for _, last in client.zrevrange(key, 0, 0, withscores=True))])
    work = ScriptInput()
    work.call("ZREMRANGEBYSCORE", key, "-inf", f"({end}")
    return Removal(key, client.zcount(key, "-inf", f"({end}"), [work])


def _call(command: str, key: str, members: Sequence[str], also: Sequence[str] = ()) -> ScriptInput:
    """Remove members of a key, and the keys ``also``."""
    work = ScriptInput()
    work.call(command, key, *members)
    for name in also:
        work.call("DEL", name)
    return work


def _old_deletions(client: Any, key: str, before: datetime) -> Removal:
    """Remove deletions that are remembered since then, unless they are renewed in between."""
    limit = score(before)
    lines = [(name.decode(), value.decode()) for name, value in client.hscan_iter(key, count=MOST)]
    old = [(name, value) for name, value in lines if int(value.partition(":")[0]) < limit]
    works = []
    for piece in (old[at : at + MOST] for at in range(0, len(old), MOST)):
        work = _call("HDEL", key, [name for name, _ in piece])
        for name, value in piece:
            work.expect(key, name, value)
        works.append(work)
    return Removal(key, len(old), works)


def _old_runs(client: Any, keys: RedisKeys, group: str, before: datetime, owners: Collection[str]) -> list[str]:
    # An owner whose run is not recorded counts as alive.
    fields = {name.decode(): line.decode() for name, line in client.hgetall(keys.runs(group)).items()}
    older = notes.runs(fields)[1:]
    return [run.name for run in older if (run.ended or run.seen) < before and run.name not in owners]


def _settled_letters(client: Any, keys: RedisKeys, group: str, before: datetime) -> list[str]:
    names = [name.decode() for name in client.zrange(keys.letters(group), 0, -1)]
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.hmget(name, "state", "changed_at", "recorded_at")
    found = zip(names, pipe.execute() if names else [], strict=True)
    return [
        name
        for name, (state, changed, recorded) in found
        if state and state.decode() in SETTLED and from_text((changed or recorded).decode()) < before
    ]
