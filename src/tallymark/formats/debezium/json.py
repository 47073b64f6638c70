"""Decodes change events in JSON, with or without Kafka Connect's schema, as docs/howto/debezium.md specifies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tallymark.errors import BadInput
from tallymark.formats import fields
from tallymark.formats import schema as ddl
from tallymark.formats.debezium.columns import UNITS, Described, Encoding
from tallymark.formats.decoder import Contents, Decoded
from tallymark.formats.fields import Convert, Pairs
from tallymark.formats.json import JSON_SPACE, parsed, too_long
from tallymark.formats.limits import has_long_number, is_deep
from tallymark.formats.unnamed import Rowset
from tallymark.formats.value import Debezium, Json

SOURCE = ddl.parse(
    "version STRING, connector STRING, name STRING, ts_ms BIGINT, snapshot STRING, db STRING, `schema` STRING, "
    "`table` STRING, txId STRING, lsn BIGINT, sequence STRING, gtid STRING, file STRING, pos BIGINT, `row` BIGINT"
)
"""The fields of ``source`` that are decoded: those of all connectors, and of those for PostgreSQL and MySQL."""
ROWS = ("before", "after")
NO_EVENT = (
    "not a change event: it has no op; if the connector flattens events (ExtractNewRecordState), use the plain format "
    "without Debezium()"
)


class DebeziumJson:
    """Decodes change events whose rows have the columns of one schema."""

    in_bulk, is_nullable, header, learns, version = False, False, None, False, 0

    def __init__(self, source: Debezium, *, finds: bool = False) -> None:
        self.finds = finds
        assert isinstance(source.inner, Json)
        self.per_second, self.is_base64 = UNITS[source.times], source.decimals == "base64"
        self._row = pa.struct(list(ddl.parse(source.inner.schema)))
        self.type: pa.DataType = _event(self._row)
        self._names = {field.name for field in self._row}
        self._default = Encoding(self.per_second, self.is_base64)
        # Events of a topic have few different schemas.
        self._known = lru_cache(64)(self._columns)
        self._others = {field.name: fields.converter(field.type) for field in self.type if field.name not in ROWS}

    def __call__(self, contents: Contents, headers: pa.Array | pa.ChunkedArray | None = None) -> Decoded:  # noqa: ARG002
        given = contents.to_pylist() if isinstance(contents, (pa.Array, pa.ChunkedArray)) else contents
        found: list[Any] = []
        errors: dict[int, str] = {}
        unnamed = Rowset()
        for at, value in enumerate(given):
            paths: set[str] = set()
            try:
                found.append(None if value is None else self._decoded(value, paths))
                unnamed.add(paths, at)
            except fields.MISFITS:
                found.append(None)
                errors[at] = self._explained(value)
        return Decoded(pa.array(found, self.type), errors, unnamed.found())

    def _decoded(self, value: bytes, unnamed: set[str]) -> Any:
        if is_deep(value) or has_long_number(value):
            raise fields.Unfit
        event, columns = self._parts(fields.parse(value.strip(JSON_SPACE)))
        row = fields.struct(columns)
        found = fields.struct({**self._others, "before": row, "after": row})(event)
        if found.get("op") is None:
            raise fields.Unfit
        if self.finds:
            unnamed.update(self._unnamed(event))
        return found

    def _unnamed(self, event: Pairs) -> Iterator[str]:
        """Yield the columns of rows that the schema does not name."""
        for side, row in event:
            if side in ROWS and row is not None:
                yield from (f"{side}.{name}" for name, item in row if item is not None and name not in self._names)

    def _parts(self, value: Any) -> tuple[Any, Mapping[str, Convert]]:
        """Return the event, and the functions that convert the columns of its rows."""
        if not isinstance(value, Pairs):
            raise fields.Unfit
        members = dict(value)
        if "payload" not in members:
            return value, self._known(())
        schema = members.get("schema")
        return members["payload"], self._known(_described(schema))

    def _columns(self, described: tuple[tuple[str, Described], ...]) -> Mapping[str, Convert]:
        columns, nothing = dict(described), Described()
        encodings = {field.name: self._default.described(columns.get(field.name, nothing)) for field in self._row}
        return {field.name: encodings[field.name].converter(field.type) for field in self._row}

    def _explained(self, value: bytes) -> str:
        """Return the error of a dead value. It names the field that does not fit."""
        given = parsed(value)
        if isinstance(given, str):
            return given
        event, columns = self._parts(given)
        if not isinstance(event, Pairs):
            return f"payload: {fields.shown(event)} is not a change event"
        members = dict(event)
        for side in ROWS:
            for name, item in members[side] if isinstance(members.get(side), Pairs) else ():
                if name in columns and item is not None and not _converts(columns[name], item):
                    kind = ddl.name(self._row.field(name).type)
                    return f"{side}.{name}: {fields.shown(item)} does not fit {kind}"
        if members.get("op") is None:
            return NO_EVENT
        others = pa.struct([field if field.name not in ROWS else _any(field.name) for field in self.type])
        return fields.misfit(event, others) if not _converts(fields.converter(others), event) else too_long(value)


def check_event(kind: pa.DataType, what: str) -> None:
    """Refuse a type of values that are not change events."""
    names = [field.name for field in kind] if pa.types.is_struct(kind) else []
    missing = [name for name in (*ROWS, "source", "op") if name not in names]
    if missing:
        raise BadInput(
            f"Debezium(): {what} has no {missing[0]}, so its values are not change events; if the connector "
            "flattens events (ExtractNewRecordState), use the plain format without Debezium()"
        )


def _event(row: pa.StructType) -> pa.StructType:
    parts = [("before", row), ("after", row), ("source", pa.struct(list(SOURCE))), ("op", pa.string())]
    return pa.struct([*parts, ("ts_ms", pa.int64())])


def _any(name: str) -> pa.Field:
    return pa.field(name, pa.map_(pa.string(), pa.field("value", pa.string())))


def _converts(convert: Convert, item: Any) -> bool:
    try:
        convert(item)
    except fields.MISFITS:
        return False
    return True


def _described(schema: Any) -> tuple[tuple[str, Described], ...]:
    """Return what the schema of an event says about each column of the row ``after``."""
    return tuple((name, Described.of(column)) for name, column in _named(_named(schema).get("after")).items())


def _named(schema: Any) -> dict[str, Pairs]:
    listed = dict(schema).get("fields") if isinstance(schema, Pairs) else None
    described = [one for one in listed if isinstance(one, Pairs)] if isinstance(listed, list) else []
    return {name: one for one in described if type(name := dict(one).get("field")) is str}
