"""The handler's transaction on Redis: writes are collected, and sent at the end of the block as part of the script."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from tallymark.core.merging import MergeFunction
from tallymark.core.tables import Changes, TableSpec, Write, WrittenTable, visible
from tallymark.errors import BadInput, DataRefused
from tallymark.stores.arrow import is_json
from tallymark.stores.handler_rows import Given, Rows, cast, changes, check_keys, deleted_rows, with_wide_sums
from tallymark.stores.redis.address import Form
from tallymark.stores.redis.errors import translated
from tallymark.stores.redis.keys import LEDGER, RedisKeys
from tallymark.stores.redis.rows import blocks, check_table, refused_rows, remembering
from tallymark.stores.redis.script import Block, ScriptInput
from tallymark.stores.transaction import Transaction

Value = str | bytes | int | float
MOST_AT_ONCE = 1_000
"""The number of values in one command; Lua passes at most 8,000 arguments."""
MOST_DIGITS = 15
HOLDS = {
    "SET": "string", "INCRBY": "string", "HSET": "hash", "HDEL": "hash", "HINCRBY": "hash",
    "RPUSH": "list", "SADD": "set", "SREM": "set", "ZADD": "zset", "ZREM": "zset",
}  # fmt: skip
"""The type of the key that a command writes. DEL accepts every type."""


class RedisTransaction(Transaction):
    """Keys are relative to the store's tag: ``orders:42`` is ``{shop}:orders:42``.

    Rows are written first, then the commands in their order; a key can't be in both. Reads are answered immediately and
    see committed data, not the writes that this block has collected. A key of another type is refused when the block
    ends.
    """

    def __init__(
        self, store: str, client: Callable[[], Any], keys: RedisKeys, form: Form, try_out: Callable[[ScriptInput], None]
    ) -> None:
        self.written, self.tables = {}, set()
        self._store, self._client, self._keys, self._form = store, client, keys, form
        self._try_out = try_out
        self._blocks: list[Block] = []
        self._commands: list[tuple[Any, ...]] = []

    # Collected writes

    def write(
        self,
        table: str,
        rows: Rows,
        *,
        key: str | Sequence[str] = (),
        write: Write | Literal["replica"] = "append",
        version: str | None = None,
        create: bool = True,
        evolve: bool = False,
        merge: Mapping[str, MergeFunction] | None = None,
        inexact: bool = False,
    ) -> None:
        self._check_open()
        spec = self._spec(table, key, write, version, create=create, evolve=evolve, merge=merge, inexact=inexact)
        deleted = deleted_rows(spec, rows)
        given = Given.of(table, rows, spec.bounds)
        if not given.rows.num_rows:
            return
        check_keys(spec, given)
        schema = with_wide_sums(spec, given, pa.schema([_known(field, spec) for field in given.rows.schema]))
        change = changes(spec, cast(table, given.rows, schema), deleted)
        check_table(spec, schema, self._form)
        for refusal in refused_rows(change, self._form):
            raise DataRefused(f"table {table}: {refusal.error}")
        if not spec.key:
            change = Changes(spec, visible(change.puts), change.deletes)
        json_columns = {field.name for field in schema if is_json(field)}
        batch = uuid.uuid4().hex
        for block, _ in blocks(change, self._form, self._keys.table(table), batch, json_columns):
            self._check_unmixed(block, table)
            self._blocks.append(remembering(block, spec, self._keys))
        self.written[table] = self.written.get(table, 0) + len(change)
        self.tables.add(WrittenTable(table, spec.write))

    def _check_unmixed(self, new: Block, table: str) -> None:
        """Refuse to merge with rows of the same transaction: the script computes all sums before it writes."""
        for known in self._blocks:
            mixed = known.write != new.write and "merge" in (known.write, new.write)
            if mixed and not set(known.keys).isdisjoint(new.keys):
                raise BadInput(
                    f"table {table}: a transaction on Redis can't merge with a row that it writes in another way; use "
                    "two transactions, or write='merge' for all rows"
                )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._check_open()
        blocks, commands, written = len(self._blocks), len(self._commands), dict(self.written)
        try:
            yield
        except BaseException:
            del self._blocks[blocks:], self._commands[commands:]
            self.written = written
            raise

    def set(self, key: str, value: Value) -> None:
        self._collect("SET", key, [_value(value)])

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._collect("DEL", key, [])

    def hset(self, key: str, field: str | Mapping[str, Value], value: Value | None = None) -> None:
        """Set a field, or several fields from a mapping."""
        fields = field if isinstance(field, Mapping) else {field: value}
        pairs = ((_field(name), _value(cell)) for name, cell in fields.items())
        self._collect("HSET", key, chain.from_iterable(pairs))

    def hdel(self, key: str, *fields: str) -> None:
        self._collect("HDEL", key, map(_field, fields))

    def rpush(self, key: str, *values: Value) -> None:
        self._collect("RPUSH", key, map(_value, values))

    def sadd(self, key: str, *members: Value) -> None:
        self._collect("SADD", key, map(_value, members))

    def srem(self, key: str, *members: Value) -> None:
        self._collect("SREM", key, map(_value, members))

    def zadd(self, key: str, scores: Mapping[str, float]) -> None:
        """Add members with their scores."""
        if any(math.isnan(score) for score in scores.values()):
            raise DataRefused(f"zadd {key}: a score is not a number")
        self._collect("ZADD", key, chain.from_iterable((_value(score), _value(name)) for name, score in scores.items()))

    def zrem(self, key: str, *members: Value) -> None:
        self._collect("ZREM", key, map(_value, members))

    def incrby(self, key: str, n: int = 1) -> None:
        self._collect("INCRBY", key, [_count(key, n)])

    def hincrby(self, key: str, field: str, n: int = 1) -> None:
        self._collect("HINCRBY", key, [_field(field), _count(key, n)])

    # Immediate reads

    def get(self, key: str) -> Any:
        return self._read("get", key)

    def exists(self, key: str) -> bool:
        return bool(self._read("exists", key))

    def hget(self, key: str, field: str) -> Any:
        return self._read("hget", key, field)

    def hgetall(self, key: str) -> Any:
        return self._read("hgetall", key)

    def lrange(self, key: str, start: int = 0, stop: int = -1) -> Any:
        return self._read("lrange", key, start, stop)

    def smembers(self, key: str) -> Any:
        return self._read("smembers", key)

    def zscore(self, key: str, member: Value) -> Any:
        return self._read("zscore", key, member)

    # End of the block

    def check(self) -> None:
        work = ScriptInput(only_try=True)
        if self.add_to(work):
            self._try_out(work)

    @contextmanager
    def opened(self) -> Iterator[RedisTransaction]:
        try:
            yield self
        finally:
            self._over = True

    def add_to(self, work: ScriptInput) -> bool:
        """Add the collected writes to ``work``; return whether there are any."""
        rows = set(chain.from_iterable(block.keys for block in self._blocks))
        for _, key, *_ in self._commands:
            if key in rows:
                raise DataRefused(f"key {key} is written as a row and by a command in one block: use one of them")
        work.blocks += self._blocks
        work.commands += resolved(self._commands)
        return bool(self._blocks or self._commands)

    def _collect(self, command: str, key: str, arguments: Iterable[Any]) -> None:
        self._check_open()
        name, values = self._name(key), list(arguments)
        if command == "DEL":
            self._commands.append((command, name))
        for start in range(0, len(values), MOST_AT_ONCE):
            self._commands.append((command, name, *values[start : start + MOST_AT_ONCE]))

    def _read(self, command: str, key: str, *arguments: Any) -> Any:
        self._check_open()
        name = self._name(key)
        with translated(self._store):
            return getattr(self._client(), command)(name, *arguments)

    def _name(self, key: str) -> str:
        if not isinstance(key, str) or not key:
            raise DataRefused(f"{key!r} is not a key: write a string, such as orders:42")
        if key == LEDGER or key.startswith(f"{LEDGER}:"):
            raise BadInput(f"key {key} is reserved for the ledger: choose another name")
        return f"{{{self._keys.tag}}}:{_encodable(key)}"


def resolved(commands: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rewrite the commands so that none can fail because of an earlier command: a script is not rolled back.

    The script checks the stored values before its first write. Therefore a key must have one type throughout the block,
    and several increments of a number are combined.
    """
    kinds: dict[str, str] = {}
    sums: dict[str, dict[str, int]] = {}
    texts: dict[str, set[str]] = {}
    rewritten: list[tuple[Any, ...]] = []
    for command, key, *rest in commands:
        kind = HOLDS.get(command)
        if kind and kinds.setdefault(key, kind) != kind:
            raise DataRefused(f"key {key} is a {kinds[key]} and a {kind} in one block: use two keys")
        adding, not_numbers = sums.setdefault(key, {}), texts.setdefault(key, set())
        if command not in ("INCRBY", "HINCRBY"):
            for field, value in _set_by(command, rest, [*adding, *not_numbers]):
                adding.pop(field, None)
                (not_numbers.discard if isinstance(value, int) else not_numbers.add)(field)
            rewritten.append((command, key, *rest))
            continue
        field = rest[0] if command == "HINCRBY" else ""
        if field in not_numbers:
            raise DataRefused(f"key {key} was set to a string in this block: {command} needs a number")
        if field in adding:
            *same, n = rewritten[adding[field]]
            rewritten[adding[field]] = (*same, _count(key, n + rest[-1]))
        else:
            adding[field] = len(rewritten)
            rewritten.append((command, key, *rest))
    return rewritten


def _set_by(command: str, rest: Sequence[Any], fields: Sequence[str]) -> Iterable[tuple[str, Any]]:
    """Return the fields that a command sets, with their values. A string is the field ''; a deleted field is 0."""
    if command == "SET":
        return [("", rest[0])]
    if command == "HSET":
        return zip(rest[::2], rest[1::2], strict=True)
    return [(field, 0) for field in (rest if command == "HDEL" else fields if command == "DEL" else ())]


def _known(field: pa.Field, spec: TableSpec) -> pa.Field:
    """Return the field with a type, if all its values are NULL: any will do, because NULL is a missing field."""
    if not pa.types.is_null(field.type):
        return field
    return field.with_type(pa.int64() if spec.functions.get(field.name) in ("sum", "count") else pa.string())


def _value(value: Any) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | bytes | int | float):
        raise DataRefused(f"Redis stores strings, bytes and numbers, not {type(value).__name__}: convert it")
    if isinstance(value, int):
        # Numbers with more digits can't be incremented and are stored as text.
        return value if abs(value) < 10**MOST_DIGITS else str(value)
    if isinstance(value, str):
        return _encodable(value)
    return repr(value) if isinstance(value, float) else value


def _field(field: Any) -> str:
    if not isinstance(field, str):
        raise DataRefused(f"{field!r} is not a field of a hash: write a string")
    return _encodable(field)


def _encodable(text: str) -> str:
    """Refuse unpaired surrogates, which JSON allows and UTF-8 does not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataRefused(f"{text[:60]!r} can't be encoded as UTF-8: {error.reason}") from None
    return text


def _count(key: str, n: int) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or abs(n) >= 10**MOST_DIGITS:
        raise DataRefused(f"key {key}: {n} can't be added: use an integer of up to {MOST_DIGITS} digits")
    return n
