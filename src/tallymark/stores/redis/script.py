"""The Lua script that does all writes, and its arguments.

A Redis script is atomic for other clients, and a late script sees what earlier scripts have written. But it is not
rolled back when a command fails. Therefore everything that can fail is checked before the first write:

1. expectations: fields of the ledger that must be as the caller has read them
2. the type of every key to write, numbers to increment, and the user's permission to call every command

Then 3. the rows and 4. the commands of the ledger are written, which can't fail any more.

The server itself refuses a script at its first write at the latest: when memory is full, when it is a replica, when it
can't write to its disk. All keys are declared, so that a cluster and the user's key patterns are checked before the
script starts.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("commit.lua").read_text()
SHA = hashlib.sha1(SOURCE.encode()).hexdigest()
MOST_ARGUMENTS = 1024 * 1024
"""The limit of servers before Redis 7 for one command."""
Cell = str | bytes


@dataclass(frozen=True)
class Block:
    """Rows of one table that are written in the same way. ``columns`` are the cells in the script's form.

    ``version`` is the number of the version column, counted from 1; 0 means no version.
    """

    write: str
    kind: str
    keys: Sequence[str]
    names: Sequence[str]
    columns: Sequence[Sequence[Cell | None]]
    version: int = 0
    compare: str = ""
    where: str = ""
    start: str = ""
    merge: Sequence[tuple[str, str, str, str]] = ()
    """For each column, how it is merged: function, kind, and the lowest and highest number or count that it holds."""
    deletions: str = ""
    """The key of the hash that remembers deletions, if the table does."""
    time: int = 0
    """The time to remember for deletions, in microseconds."""

    @property
    def header(self) -> list[Any]:
        about = [self.write, self.kind, self.version, self.compare, self.where, self.start]
        merge = [len(self.merge), *chain.from_iterable(self.merge)]
        return [*about, len(self.names), *self.names, *merge, self.time, len(self.deletions), len(self.keys)]

    @property
    def all_keys(self) -> list[str]:
        return [*([self.deletions] if self.deletions else []), *self.keys]


@dataclass
class ScriptInput:
    """The input of one script run: expectations, rows, commands of the ledger, and hashes to read at the end."""

    expected: list[tuple[str, str, str]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    only_try: bool = False

    def expect(self, key: str, name: str, value: object) -> None:
        """Write only if the field has this value; '' means that the field must not exist."""
        self.expected.append((key, name, str(value)))

    def call(self, command: str, key: str, *arguments: object) -> None:
        self.commands.append((command, key, *arguments))

    def put(self, key: str, fields: Mapping[str, Cell | int | None]) -> None:
        """Set the fields of a hash; fields that are None are removed."""
        present = {name: value for name, value in fields.items() if value is not None}
        self.call("HSET", key, *chain.from_iterable(present.items()))
        if len(present) < len(fields):
            self.call("HDEL", key, *(fields.keys() - present.keys()))

    def add(self, key: str, counts: Mapping[str, int]) -> None:
        """Increment numbers in a hash."""
        for name, count in counts.items():
            if count:
                self.call("HINCRBY", key, name, count)

    def keys(self) -> list[str]:
        rows = chain.from_iterable(block.all_keys for block in self.blocks)
        return [*(key for key, _, _ in self.expected), *rows, *(command[1] for command in self.commands), *self.reads]

    def arguments(self) -> list[Any]:
        # NULL is encoded as a random text that no cell equals.
        null = uuid.uuid4().hex
        found: list[Any] = [null, int(self.only_try), len(self.expected)]
        found += chain.from_iterable((name, value) for _, name, value in self.expected)
        found.append(len(self.blocks))
        for block in self.blocks:
            found += block.header
            cells: Iterable[Cell | None] = chain.from_iterable(zip(*block.columns, strict=True))
            found += [null if cell is None else cell for cell in cells]
        found.append(len(self.commands))
        for command, _, *rest in self.commands:
            found += [1 + len(rest), command, *rest]
        return [*found, len(self.reads)]


def run(client: Any, keys: Sequence[str], arguments: Sequence[Any]) -> list[Any]:
    """Run the script by its SHA; send the source if the server does not have it."""
    from redis.exceptions import NoScriptError

    try:
        answer: list[Any] = client.execute_command("EVALSHA", SHA, len(keys), *keys, *arguments)
    except NoScriptError:
        answer = client.execute_command("EVAL", SOURCE, len(keys), *keys, *arguments)
    return answer
