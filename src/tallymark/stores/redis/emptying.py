"""Finds and deletes the rows of the tables of a group, for a reset that starts over."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tallymark.errors import BadInput
from tallymark.stores.redis.keys import RedisKeys
from tallymark.stores.redis.script import ScriptInput

MOST_KEYS = 100_000
"""The script that deletes this many keys blocks the server for about 2 s."""


def row_keys(client: Any, keys: RedisKeys, table: str) -> list[str]:
    """Return the keys of all rows of a table."""
    pattern = re.sub(r"([\\\[\]*?])", r"\\\1", keys.table(table)) + "*"
    # SCAN may return a key several times.
    return sorted({key.decode() for key in client.scan_iter(match=pattern, count=10_000)})


def check_count(rows: Mapping[str, Collection[str]]) -> None:
    """Refuse tables with more keys together than one script should delete."""
    if (count := sum(map(len, rows.values()))) > MOST_KEYS:
        raise BadInput(
            f"the tables {', '.join(rows)} have {count:,} keys, and one script deletes at most {MOST_KEYS:,}, because "
            "the server does nothing else meanwhile; nothing was changed: stop the group, delete keys of these tables "
            "with redis-cli, and repeat the reset"
        )


def empty_table(work: ScriptInput, rows: Iterable[str]) -> None:
    """Delete these rows in the script."""
    for key in rows:
        work.call("DEL", key)
