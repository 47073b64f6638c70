"""Spark's sessions and logical plans. Of Spark's private interface, queries use only what this module uses.

A row's record is found with a sort: Spark resolves a sort by columns that a projection below it has dropped. It adds
them to the projection, sorts, and drops them again above. The plan in between is the user's result with the record's
columns. It exists for every row-wise function (select, filter, withColumn, explode). If a function merges rows of
several records (an aggregate), there is no single record, and Spark raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.core.tables import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC
from tallymark.spark.java import java_class

COLUMNS = {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET, "timestamp": TIMESTAMP, DELETED: DELETED}
NESTED = (T.StructType, T.ArrayType, T.MapType, T.VariantType)
DATASET = "org.apache.spark.sql.classic.Dataset"
NAMES_ELIMINATED = [
    f"org.apache.spark.sql.catalyst.analysis.{rule}" for rule in ("EliminateSubqueryAliases", "EliminateView")
]
ROW_WISE = ("Project", "Filter", "Generate")
"""Nodes that compute the rows of each record by itself, and read all records."""


def column(name: str) -> Column:
    """The column with exactly this name, whatever characters it contains."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Quote a name, because Spark takes a dot as access to a field within a column."""
    return f"`{name.replace('`', '``')}`"


def clone(spark: SparkSession) -> SparkSession:
    """A session with the same settings, views and functions, whose settings can be changed without changing these."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def bound(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows in another session. Expressions keep the time zone that they were written in."""
    return of_plan(frame._jdf.queryExecution().analyzed(), session)


def of_plan(plan: Any, session: SparkSession) -> DataFrame:
    # PySpark has no API that creates a DataFrame from a plan.
    return DataFrame(java_class(session, DATASET).ofRows(session._jsparkSession, plan), session)


class Selection:
    """Selects the same columns from many frames. PySpark by itself calls Java several times for each column."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        self._seq: Any = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        java: Any = frame
        self._seq = self._seq or java._jcols(*self._columns)
        return DataFrame(java._jdf.select(self._seq), frame.sparkSession)


def invoked(target: Any, method: str, kind: T.DataType, *values: Column) -> Column:
    """The result of a method of a Java object for each row, called with these columns. Spark calls it once a row."""
    jvm: Any = SparkContext._jvm
    classes, seq = jvm.org.apache.spark.sql, jvm.org.apache.spark.api.python.PythonUtils.toSeq
    literal = classes.catalyst.expressions.Literal(target, classes.types.ObjectType(target.getClass()))
    columns = classes.classic.ExpressionUtils
    result = classes.types.DataType.fromJson(kind.json()).asNullable()
    arguments = seq([columns.expression(value._jc) for value in values])
    # NULL is passed on, the result may be NULL, and the result is not deterministic: Spark must not repeat the call.
    flags = (False, True, False)
    return Column(
        columns.column(classes.catalyst.expressions.objects.Invoke(literal, method, result, arguments, seq([]), *flags))
    )


def is_row_wise(rows: DataFrame, records: DataFrame) -> bool:
    """Whether each row is computed from one of these records by itself, and all records are read."""
    return _is_row_wise(without_names(rows), records)


def is_single_pass(rows: DataFrame, records: DataFrame) -> bool:
    """Whether a query for the rows reads each of these records once: they are row-wise, or one aggregate of such rows.

    Tasks that aggregate read all records before any row is there, as those that compute rows do.
    """
    plan = without_names(rows)
    while plan.nodeName() == "Project" and holds(plan, "Aggregate") and plan.subqueries().isEmpty():
        plan = plan.child()
    if plan.nodeName() == "Aggregate" and plan.subqueries().isEmpty():
        plan = plan.child()
    return _is_row_wise(plan, records)


def _is_row_wise(plan: Any, records: DataFrame) -> bool:
    leaf = records._jdf.queryExecution().analyzed()
    while not plan.fastEquals(leaf):
        if plan.nodeName() not in ROW_WISE or not plan.subqueries().isEmpty():
            return False
        plan = plan.child()
    return True


def with_provenance(result: DataFrame, records: DataFrame) -> DataFrame:
    """The result with topic, partition, offset and timestamp of its record, if each row has a single record.

    Includes DELETED if the records have that column. The result belongs to the session of the records.
    """
    kept = {name: alias for name, alias in COLUMNS.items() if name in records.columns}
    try:
        places: dict[str, Any] = {alias: records[name] for name, alias in kept.items()}
        order = result.sortWithinPartitions(*places.values())
        # Column.alias of PySpark needs nine calls to the JVM.
        columns = [Column(place._jc.alias(alias)) for alias, place in places.items()]
        return of_plan(_below_sort(order), records.sparkSession).select(result["*"], *columns)
    except PySparkException:
        return bound(result, records.sparkSession)


def _below_sort(ordered: DataFrame) -> Any:
    plan = ordered._jdf.queryExecution().analyzed()
    while plan.nodeName() != "Sort":
        plan = plan.child()
    return plan.child()


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
    picks = [outputs.get(attribute) for attribute in ids(plan)]
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
        return {attribute.exprId().id(): Pick(attribute.name()) for attribute in listed(plan.output())}
    below = _outputs(plan.child(), records) if plan.nodeName() == "Project" else None
    if below is None:
        return None
    picks = {expression.exprId().id(): _pick(expression, below) for expression in listed(plan.projectList())}
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
    return [name for name, attribute in zip(rows.columns, ids(plan), strict=True) if attribute in windowed]


def _windowed(plan: Any) -> set[int]:
    windowed = set[int]().union(*map(_windowed, listed(plan.children())))
    if plan.nodeName() == "Window":
        return windowed | {expression.exprId().id() for expression in listed(plan.windowExpressions())}
    if plan.nodeName() != "Project" or not windowed:
        return windowed
    return {
        expression.exprId().id()
        for expression in listed(plan.projectList())
        if any(used.exprId().id() in windowed for used in listed(expression.references().toSeq()))
    }


def without_names(rows: DataFrame) -> Any:
    """The analyzed plan without subquery aliases and views."""
    plan = rows._jdf.queryExecution().analyzed()
    for rule in NAMES_ELIMINATED:
        plan = java_class(rows.sparkSession, rule).apply(plan)
    return plan


def ids(plan: Any) -> list[int]:
    return [attribute.exprId().id() for attribute in listed(plan.output())]


def listed(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]


def holds(plan: Any, node: str) -> bool:
    return plan.nodeName() == node or any(holds(child, node) for child in listed(plan.children()))
