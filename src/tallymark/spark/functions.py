"""Calls and checks the tables' functions, traces rows to records, and detects functions that only pick columns.

Spark resolves a sort by columns that a projection below it has dropped: it adds them to the projection, sorts, and
drops them again above. The plan in between is the user's result with the record's columns, and this module uses it. It
exists for every row-wise function (select, filter, withColumn, explode). If a function merges rows of several records
(an aggregate, a join), there is no single record, and Spark raises an error.

Functions that only pick columns are recognised by their logical plan. A function that computes, filters or joins
anything is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from tallymark.core.tables import DELETED, HIDDEN, OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.source import is_pattern
from tallymark.spark.decode import column, first_line, quoted
from tallymark.stores.arrow import JSON_MARK

COLUMNS = {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET, "timestamp": TIMESTAMP, DELETED: DELETED}


def with_provenance(result: DataFrame, records: DataFrame) -> DataFrame:
    """The result with topic, partition, offset and timestamp of its record, if each row has a single record.

    Includes DELETED if the records have that column.
    """
    kept = {name: alias for name, alias in COLUMNS.items() if name in records.columns}
    try:
        order = result.sortWithinPartitions(*(records[name] for name in kept))
        columns = [*(result[quoted(name)] for name in result.columns), *(records[n].alias(a) for n, a in kept.items())]
        return DataFrame(_below_sort(order), result.sparkSession).select(*columns)
    except PySparkException:
        return result


def collect(spec: TableSpec, rows: DataFrame, topics: Sequence[str]) -> pa.Table:
    """Collect all rows, with as few hidden columns as possible, because each costs as much as a user's column."""
    one_topic = topics[0] if len(topics) == 1 and not is_pattern(topics[0]) and TOPIC in rows.columns else None
    dropped = [*([TOPIC] if one_topic else []), *([TIMESTAMP] if spec.write == "append" else [])]
    table = rows.drop(*dropped).toArrow()
    return table.append_column(TOPIC, pa.repeat(one_topic, table.num_rows)) if one_topic else table


def _below_sort(ordered: DataFrame) -> Any:
    plan = ordered._jdf.queryExecution().analyzed()
    while plan.nodeName() != "Sort":
        plan = plan.child()
    jvm: Any = ordered.sparkSession._jvm
    # PySpark has no API that creates a DataFrame from a plan.
    return jvm.org.apache.spark.sql.classic.Dataset.ofRows(ordered.sparkSession._jsparkSession, plan.child())


TableFunction = Callable[[DataFrame], DataFrame]
NESTED = (T.StructType, T.ArrayType, T.MapType, T.VariantType)


def apply(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
    """The function's rows, with hidden columns if each row comes from a single record."""
    if spec.deletes is None:
        return with_provenance(call(spec, function, records), records)
    try:
        flagged = records.withColumn(DELETED, F.expr(spec.deletes).cast("boolean"))
    except PySparkException as error:
        raise BadInput(f"table {spec.name}: delete={spec.delete!r} can't be parsed: {first_line(error)}") from None
    rows = with_provenance(call(spec, function, flagged.drop(DELETED)), flagged)
    if DELETED not in rows.columns:
        raise BadInput(
            f"table {spec.name}: delete= needs a function that makes each row from a single record, and this function "
            "merges records; leave out delete=, or do not merge"
        )
    return rows


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """The types of a DataFrame, with times in UTC: newer Spark versions need the argument, older versions lack it."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(rows.schema, **zone)


def schema_of(rows: DataFrame) -> pa.Schema:
    """The columns of a table; columns that hold JSON are marked."""
    result = rows.drop(*HIDDEN)
    columns = arrow_schema(as_columns(result))
    return pa.schema(
        field.with_metadata({JSON_MARK: b"1"}) if isinstance(result.schema[field.name].dataType, NESTED) else field
        for field in columns
    )


def call(spec: TableSpec, function: TableFunction, records: DataFrame) -> DataFrame:
    try:
        result = function(records)
    except TallymarkError:
        raise
    except Exception as error:
        words = first_line(error)
        raise BadInput(f"table {spec.name}: its function raised {type(error).__name__}: {words}") from error
    if not isinstance(result, DataFrame):
        raise BadInput(f"table {spec.name}: its function must return a DataFrame, not {type(result).__name__}")
    _check_names(spec, result.columns)
    return result


def _check_names(spec: TableSpec, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
    if twice:
        raise BadInput(f"table {spec.name}: its function returns {' and '.join(twice)} more than once; rename one")
    hidden = [name for name in names if name in HIDDEN]
    if hidden or not names:
        raise BadInput(f"table {spec.name}: its function must return columns, and none named {', '.join(HIDDEN)}")


def as_columns(result: DataFrame) -> DataFrame:
    """Convert nested types, which databases do not have, to JSON text."""
    nested = {field.name for field in result.schema if isinstance(field.dataType, NESTED)}
    if not nested:
        return result
    return result.select(*(F.to_json(column(n)).alias(n) if n in nested else column(n) for n in result.columns))


@dataclass(frozen=True)
class Pick:
    """A column of the records or a field within it; with ``is_null``, whether that is NULL."""

    column: str
    fields: tuple[str, ...] = ()
    is_null: bool = False

    def of(self, records: pa.Table) -> pa.ChunkedArray:
        values = records[self.column]
        values = pc.struct_field(values, list(self.fields)) if self.fields else values
        return pc.is_null(values) if self.is_null else values


def picked(rows: DataFrame, records: DataFrame) -> Mapping[str, Pick] | None:
    """The source of each column of the rows, if all are unchanged columns or fields of the records; else None."""
    if any(isinstance(field.dataType, NESTED) for field in rows.schema):
        # Nested columns are converted to JSON text.
        return None
    plan: Any = without_names(rows)
    outputs = _outputs(plan, records._jdf.queryExecution().analyzed()) or {}
    picks = [outputs.get(attribute) for attribute in _ids(plan)]
    if not all(picks):
        return None
    return dict(zip(rows.columns, (source for source in picks if source), strict=True))


def pick(records: pa.Table, picks: Mapping[str, Pick]) -> pa.Table:
    """The rows that these picks select from decoded records."""
    return pa.table({name: source.of(records) for name, source in picks.items()})


def _outputs(plan: Any, records: Any) -> dict[int, Pick] | None:
    """The output of a plan by Spark's column ids; None if the plan does more than pick columns."""
    if plan.children().isEmpty():
        # Comparing column ids is not enough: a checkpoint of other rows has the same ids.
        if not plan.fastEquals(records):
            return None
        return {attribute.exprId().id(): Pick(attribute.name()) for attribute in _listed(plan.output())}
    below = _outputs(plan.child(), records) if plan.nodeName() == "Project" else None
    if below is None:
        return None
    picks = {expression.exprId().id(): _pick(expression, below) for expression in _listed(plan.projectList())}
    return {attribute: source for attribute, source in picks.items() if source}


def _pick(expression: Any, below: Mapping[int, Pick]) -> Pick | None:
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference":
        return below.get(expression.exprId().id())
    if kind not in ("Alias", "GetStructField", "IsNull", "Cast"):
        return None
    child = _pick(expression.child(), below)
    if child is None or (child.is_null and kind in ("GetStructField", "IsNull")):
        return None
    if kind == "GetStructField":
        # Use the name in the schema: the function may spell it in another case.
        name = expression.child().dataType().fields()[expression.ordinal()].name()
        return replace(child, fields=(*child.fields, name))
    if kind == "Cast" and not expression.dataType().equals(expression.child().dataType()):
        return None
    return replace(child, is_null=True) if kind == "IsNull" else child


def over_several_records(rows: DataFrame) -> list[str]:
    """The columns that a window function computes, directly or indirectly."""
    plan = without_names(rows)
    windowed = _windowed(plan)
    return [name for name, attribute in zip(rows.columns, _ids(plan), strict=True) if attribute in windowed]


def _windowed(plan: Any) -> set[int]:
    windowed = set[int]().union(*map(_windowed, _listed(plan.children())))
    if plan.nodeName() == "Window":
        return windowed | {expression.exprId().id() for expression in _listed(plan.windowExpressions())}
    if plan.nodeName() != "Project" or not windowed:
        return windowed
    return {
        expression.exprId().id()
        for expression in _listed(plan.projectList())
        if any(used.exprId().id() in windowed for used in _listed(expression.references().toSeq()))
    }


def without_names(rows: DataFrame) -> Any:
    """The analyzed plan without subquery aliases and views."""
    jvm: Any = rows.sparkSession._jvm
    analysis = jvm.org.apache.spark.sql.catalyst.analysis
    return analysis.EliminateView.apply(analysis.EliminateSubqueryAliases.apply(rows._jdf.queryExecution().analyzed()))


def _ids(plan: Any) -> list[int]:
    return [attribute.exprId().id() for attribute in _listed(plan.output())]


def _listed(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]
