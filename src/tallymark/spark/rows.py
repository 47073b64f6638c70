"""Applies the functions of all tables to records, and finds records on which a function fails by bisecting spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tallymark.core import raw
from tallymark.core.merging import BY_ORDER
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import OFFSET, TIMESTAMP, Refusal, Staged, TableSpec, check_unmerged
from tallymark.errors import BadInput, BatchTooLarge, TooManyDead
from tallymark.kafka.source import Kafka
from tallymark.spark.aggregates import unmergeable
from tallymark.spark.decode import RECORD
from tallymark.spark.errors import FunctionFailed, explained
from tallymark.spark.executors import check_reached, stage
from tallymark.spark.functions import (
    TableFunction,
    apply,
    as_columns,
    check_arrays,
    complete,
    few,
    schema_of,
    to_collect,
)
from tallymark.spark.plans import Pick, is_row_wise, over_several_records, pick, picked
from tallymark.spark.scan import leave_out, within
from tallymark.stores.sql.staging import Stages

Try = Callable[[Span], str | None]
"""Processes a single span; returns the error text, or None."""


def bisect(spans: Iterable[Span], attempt: Try, at_most: int) -> dict[tuple[Partition, int], str]:
    """The records that fail individually, with their errors; the search ends after more than ``at_most``."""
    errors: dict[tuple[Partition, int], str] = {}

    def halve(span: Span, *, fails: bool = False) -> bool:
        """Whether a record in the span fails. A single record is always tried, never inferred to fail."""
        if not len(span) or len(errors) > at_most:
            return False
        if len(span) == 1 or not fails:
            error = attempt(span)
            if error is None:
                return False
            if len(span) == 1:
                errors[span.partition, span.start] = error
                return True
        middle = (span.start + span.stop) // 2
        first = halve(Span(span.partition, span.start, middle))
        # If the first half succeeds, the second half must fail.
        return halve(Span(span.partition, middle, span.stop), fails=not first) or first

    for span in spans:
        halve(span)
    return errors


MOST_REFUSED = 100
"""Maximum number of records in a batch that a function may fail on: finding each takes about twenty jobs."""
LOCAL_RELATION, LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold", 48 << 20
FEW = 1000
"""Number of records up to which rows are computed without a job."""
Table = tuple[TableSpec, TableFunction]


class Shaper:
    """Applies the functions of a pipeline's tables.

    ``records`` is the schema of their input, and ``topic`` the only topic, if there is one. The functions run in the
    session ``users``, everything else in ``spark``.
    """

    def __init__(
        self,
        spark: SparkSession,
        users: SparkSession,
        source: Kafka,
        tables: Sequence[Table],
        records: StructType,
        topic: str | None,
    ) -> None:
        self.tables = tables
        self._spark, self._users = spark, users
        self._source = source
        self._records = records
        self._topic = topic

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of every table."""
        return {name: self._schema(name, rows) for name, (rows, _) in self._tried.items()}

    def merging(self) -> list[str]:
        """The tables whose functions merge records, so that a row has no single record."""
        return [name for name, (rows, _) in self._tried.items() if OFFSET not in rows.columns]

    @cached_property
    def is_row_wise(self) -> bool:
        """Whether all functions compute the rows of each record by itself, so that a batch can be read in parts."""
        return all(is_row_wise(rows, self._nothing) for rows, _ in self._tried.values())

    @cached_property
    def _nothing(self) -> DataFrame:
        return self._spark.createDataFrame([], self._records)

    @cached_property
    def _tried(self) -> dict[str, tuple[DataFrame, Mapping[str, Pick] | None]]:
        """The functions' results for an empty input, with their picks if they only pick columns."""
        results = {}
        for spec, function in self.tables:
            rows = self.rows(spec, function, self._nothing)
            if OFFSET not in rows.columns:
                check_unmerged(spec)
            check_arrays(spec, rows)
            if spec.write == "merge" and (why := unmergeable(rows, self._nothing, spec.functions)):
                raise BadInput(f"table {spec.name}: totals would depend on where batches begin: {why}")
            for name in over_several_records(rows):
                check_unmerged(spec, f"a window function computes {name} of the records of one batch")
            picks = picked(rows, self._nothing)
            results[spec.name] = rows, picks if picks == self._picks_of_one(spec, function) else None
        return results

    def _picks_of_one(self, spec: TableSpec, function: TableFunction) -> Mapping[str, Pick] | None:
        """The picks for a single record of NULLs: a function may behave differently on an empty input."""
        single = self._spark.createDataFrame([tuple(None for _ in self._records)], self._records)
        with suppress(Exception):
            return picked(self.rows(spec, function, single), single)
        return None

    def _picks(self, spec: TableSpec) -> dict[str, Pick] | None:
        picks = self._tried[spec.name][1]
        if picks is None:
            return None
        return {name: source for name, source in picks.items() if name != TIMESTAMP or spec.write != "append"}

    def _schema(self, name: str, rows: DataFrame) -> pa.Schema:
        with explained(self._source.brokers, name):
            return schema_of(rows)

    def rows(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
        """The rows of a table, not computed yet, with all hidden columns."""
        return apply(spec, function, records, self._users)

    def frame(self, spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
        """The rows of a table, not computed yet, with the columns that ``collect`` needs."""
        with explained(self._source.brokers, spec.name):
            return to_collect(spec, self.rows(spec, function, records), self._topic)

    def collect(self, spec: TableSpec, frame: DataFrame, *, are_few: bool = False) -> pa.Table:
        with explained(self._source.brokers, spec.name):
            found = few(frame) if are_few else None
            return complete(frame.toArrow() if found is None else found, self._topic)

    def shape(
        self, records: DataFrame, spans: Sequence[Span], tables: Sequence[Table] | None = None, *, are_few: bool = False
    ) -> tuple[dict[str, pa.Table], list[Refusal]]:
        """The rows of these or all tables, and the records that a function failed on, which are in no table."""
        tables = self.tables if tables is None else tables
        refusals: list[Refusal] = []
        while True:
            good = leave_out(records, [refusal.record for refusal in refusals])
            try:
                rows = {
                    spec.name: self.collect(spec, self.frame(spec, function, good), are_few=are_few)
                    for spec, function in tables
                }
                return rows, refusals
            except FunctionFailed as failure:
                refused = self._bisect(failure, good, spans)
                if not refused:
                    raise
                refusals += refused

    def shape_arrow(self, records: pa.Table, spans: Sequence[Span]) -> tuple[dict[str, pa.Table], list[Refusal]]:
        """Like ``shape``, for decoded records in the driver; only functions that compute something run in Spark."""
        rows: dict[str, pa.Table] = {}
        refusals: list[Refusal] = []
        if self.computing:
            with explained(self._source.brokers):
                # PySpark can't create a DataFrame from columns without chunks.
                data: Any = records.select(RECORD).combine_chunks() if records.num_rows else []
                are_few = records.num_rows <= FEW
                # Spark converts a local relation to rows in the driver alone.
                self._spark.conf.set(LOCAL_RELATION, LOCAL_BYTES if are_few else 0)
                frame = self._spark.createDataFrame(data, self._records)
            rows, refusals = self.shape(frame, spans, self.computing, are_few=are_few)
            records = raw.without(records, [refusal.record for refusal in refusals])
        for spec, _ in self.tables:
            if (picks := self._picks(spec)) is not None:
                rows[spec.name] = pick(records, picks)
        return rows, refusals

    def stage(self, stages: Stages, records: DataFrame, batch: str) -> dict[str, Staged]:
        """Have the executors write the rows of every table to staging tables."""
        staged: dict[str, Staged] = {}
        try:
            for spec, function in self.tables:
                with explained(self._source.brokers, spec.name):
                    rows = as_columns(self.rows(spec, function, records))
                    staged[spec.name] = stage(stages, spec, rows, self.schemas[spec.name], batch)
        except (FunctionFailed, BatchTooLarge) as error:
            stages.drop(table.name for table in staged.values())
            check_reached(error)
            raise BatchTooLarge(str(error)) from error
        return staged

    @cached_property
    def unstageable(self) -> str | None:
        """The reason for which executors can't stage all tables, if there is one."""
        for spec, _ in self.tables:
            if spec.deletes is not None:
                return f"table {spec.name} deletes rows, which executors can't stage"
            for name, function in spec.functions.items() if spec.write == "merge" else ():
                if function in (*BY_ORDER, "append"):
                    return f"table {spec.name} merges {name} by {function}, for which executors don't know the order"
            if spec.write in ("upsert", "ignore") and spec.name in self.merging():
                return f"table {spec.name} merges records, and executors can't check the keys of merged rows"
        return None

    @cached_property
    def computing(self) -> Sequence[Table]:
        """The tables whose functions do more than pick columns."""
        return [table for table in self.tables if self._picks(table[0]) is None]

    def no_rows(self) -> dict[str, pa.Table]:
        return {name: schema.empty_table() for name, schema in self.schemas.items()}

    def _bisect(self, failure: FunctionFailed, records: DataFrame, spans: Sequence[Span]) -> list[Refusal]:
        spec, function = next(table for table in self.tables if table[0].name == failure.table)
        if OFFSET not in self.rows(spec, function, records).columns:
            return []

        def attempt(span: Span) -> str | None:
            try:
                self.collect(spec, self.frame(spec, function, records.where(within(span)).coalesce(1)))
            except FunctionFailed as error:
                return error.words
            return None

        errors = bisect(spans, attempt, MOST_REFUSED)
        if len(errors) > MOST_REFUSED:
            raise TooManyDead(
                f"table {spec.name}: its function failed on more than {MOST_REFUSED} records of a batch, "
                f"for example: {failure.words}; this batch moved no position: correct the function"
            )
        return [Refusal(*record, spec.name, words) for record, words in errors.items()]
