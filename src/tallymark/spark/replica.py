"""Computes the rows of a replica from change events; formats/debezium/changes.py does the same for services."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.core.replica import SOURCE_VERSION
from tallymark.formats.debezium.changes import (
    COMMIT,
    DIGITS,
    FILE_DIGITS,
    FILE_NUMBER,
    INCREMENTAL,
    NOT_SNAPSHOT,
    POSITION,
    WITH_ROWS,
)
from tallymark.spark.plans import quoted

NOTHING = "CAST(NULL AS STRING)"
TableFunction = Callable[[DataFrame], DataFrame]


def of_changes(key: Sequence[str], function: TableFunction | None = None) -> TableFunction:
    """Return the function of a replica's table. ``function`` gets the rows and returns those to write."""

    def rows(records: DataFrame) -> DataFrame:
        found = changes(key, records)
        return function(found) if function else found

    return rows


def changes(key: Sequence[str], records: DataFrame) -> DataFrame:
    """Return a row for each event that puts or deletes a row of the source: its columns and SOURCE_VERSION."""
    value = records.schema["value"].dataType
    assert isinstance(value, T.StructType)
    after, key_type = value["after"].dataType, records.schema["key"].dataType
    assert isinstance(after, T.StructType)
    in_key = set(key_type.fieldNames()) & set(key) if isinstance(key_type, T.StructType) else set()
    is_delete = F.col("value.op") == "d"

    def one(field: str) -> Column:
        gone = F.col(f"value.before.{quoted(field)}")
        if field in in_key:
            # Without the old row, a deletion has its key in the key of the record.
            gone = F.coalesce(gone, F.col(f"key.{quoted(field)}").cast(after[field].dataType))
        return F.when(is_delete, gone).otherwise(F.col(f"value.after.{quoted(field)}")).alias(field)

    events = records.where(F.col("value.op").isin(*WITH_ROWS))
    version = F.expr(_version(value)).alias(SOURCE_VERSION)
    return events.select(*map(one, after.fieldNames()), version)


def _version(value: T.StructType) -> str:
    """Return SQL for the position of an event in the log of its source."""
    source = value["source"].dataType
    assert isinstance(source, T.StructType)
    known = set(source.fieldNames())

    def field(name: str) -> str:
        return f"CAST(value.source.{quoted(name)} AS STRING)" if name in known else NOTHING

    def padded(text: str, digits: int = DIGITS) -> str:
        return f"lpad({text}, {digits}, '0')"

    def found(text: str, pattern: str) -> str:
        return f"regexp_extract({text}, '{pattern.format('')}', 1)"

    sequence, snapshot = field("sequence"), f"coalesce({field('snapshot')}, '{NOT_SNAPSHOT}')"
    lsn = f"coalesce({field('lsn')}, nullif({found(sequence, POSITION)}, ''))"
    is_streamed = f"{snapshot} IN ('{NOT_SNAPSHOT}', '{INCREMENTAL}')"
    commit = f"coalesce(nullif({found(sequence, COMMIT)}, ''), if({is_streamed}, {lsn}, '0'))"
    in_wal = f"concat_ws('-', {padded(commit)}, if({is_streamed}, '1', '0'), {padded(lsn)})"
    number, row = f"coalesce({found(field('file'), FILE_NUMBER)}, '')", f"coalesce({field('row')}, '0')"
    in_binlog = f"concat_ws('-', {padded(number, FILE_DIGITS)}, {padded(field('pos'))}, {padded(row, FILE_DIGITS)})"
    time = "CAST(value.ts_ms AS STRING)" if "ts_ms" in value.fieldNames() else NOTHING
    time = padded(f"coalesce({field('ts_ms')}, {time})")
    cases = f"WHEN {lsn} IS NOT NULL THEN {in_wal} WHEN {field('pos')} IS NOT NULL THEN {in_binlog}"
    return f"CASE {cases} ELSE concat(if({snapshot} = '{NOT_SNAPSHOT}', '1', '0'), '-', {time}) END"
