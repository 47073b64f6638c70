"""The aggregates of a batch: which may be merged with those of other batches, and how sums are computed faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from tallymark.spark.java import java_class
from tallymark.spark.plans import ROW_WISE, holds, ids, listed, of_plan, without_names

AGGREGATES = {
    "sum": ("Sum", "Count", "CountIf"),
    "count": ("Sum", "Count", "CountIf"),
    "min": ("Min",),
    "max": ("Max",),
    "newest": ("MaxBy",),
    "oldest": ("MinBy",),
}
"""The aggregates of a batch whose results a merge function combines to that of all records."""
EXPANDING = (*ROW_WISE, "Expand", "Repartition", "RepartitionByExpression", "Sort")
"""Nodes that make rows of each record by itself, but may move them between partitions."""
JOINS = (("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI"), ("INNER", "CROSS", "RIGHT OUTER"))
"""Joins that make no row without a record, if the records are on the left; on the right."""
INSTEAD = {
    "Average": "keep the sum and the count, and divide them in a view",
    "Deduplicate": "write the keys to a table of their own with write='ignore', and count that",
    "Distinct": "write the keys to a table of their own with write='ignore', and count that",
    "Filter": "filter the records before the aggregate, or the totals in a view",
    "Join": "join the records with a table of yours so that each row has a record",
    "Union": "leave out rows that come from no record: every batch would add them",
}


def unmergeable(rows: DataFrame, records: DataFrame, functions: Mapping[str, str]) -> str | None:
    """Return why merged rows of all batches may differ from one row of all records, with the way out.

    None if each record is computed by itself, or if one aggregate combines records and its results can be merged.
    """
    plan, leaf = without_names(rows), records._jdf.queryExecution().analyzed()
    names = dict(zip(ids(plan), rows.columns, strict=True))
    while plan.nodeName() == "Project" and holds(plan, "Aggregate"):
        used = {_source(expression): expression.exprId().id() for expression in listed(plan.projectList())}
        names = {source: names[above] for source, above in used.items() if source is not None and above in names}
        plan = plan.child()
    if plan.nodeName() == "Aggregate":
        found = {names.get(each.exprId().id()): _aggregate(each) for each in listed(plan.aggregateExpressions())}
        for name, function in functions.items():
            kind = found.get(name)
            if function in AGGREGATES and kind not in AGGREGATES[function]:
                way = INSTEAD.get(kind or "", f"aggregate it by {' or '.join(AGGREGATES[function]).lower()} alone")
                what = f"is {kind} of" if kind else "is computed from"
                return f"column {name} {what} the records of one batch, and is merged by {function}: {way}"
        plan = plan.child()
    return _batchwise(plan, leaf)


def _batchwise(plan: Any, leaf: Any) -> str | None:
    """Return which node of a plan compares or selects records of one batch."""
    if not _reads(plan, leaf) or plan.children().isEmpty():
        return None
    node, children = plan.nodeName(), listed(plan.children())
    inner = [child for child in children if _reads(child, leaf)]
    fine = node in EXPANDING or (node == "Union" and len(inner) == len(children))
    if node == "Join" and len(inner) == 1:
        fine = plan.joinType().sql() in JOINS[children.index(inner[0])]
    if not fine or (node == "Filter" and holds(plan, "Aggregate")) or not plan.subqueries().isEmpty():
        way = INSTEAD.get(node, "leave it out, or append the rows and compute totals in a view")
        return f"{node} sees the records of one batch only: {way}"
    return next((why for child in inner if (why := _batchwise(child, leaf))), None)


def _reads(plan: Any, leaf: Any) -> bool:
    # In a self-join or a union with itself, Spark gives new ids to the columns of one side.
    return plan.sameResult(leaf) or any(_reads(child, leaf) for child in listed(plan.children()))


def _source(expression: Any) -> int | None:
    """The id of the column that an expression passes on unchanged."""
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference":
        return int(expression.exprId().id())
    return _source(expression.child()) if kind == "Alias" else None


def _aggregate(expression: Any) -> str | None:
    """The aggregate whose result a column is, also with a wider type or 0 for NULL; None if it is something else."""
    kind = expression.getClass().getSimpleName()
    if kind == "Alias" or (kind == "Cast" and _keeps_value(expression)):
        return _aggregate(expression.child())
    if kind == "Coalesce":
        first, *others = listed(expression.children())
        zeros = all(other.foldable() and str(other.eval(None)) in ("0", "0.0", "0.00") for other in others)
        return _aggregate(first) if zeros else None
    if kind != "AggregateExpression":
        return None
    name: str = expression.aggregateFunction().getClass().getSimpleName()
    return f"{name} DISTINCT" if expression.isDistinct() else name


def _keeps_value(cast: Any) -> bool:
    """Whether a cast changes no number: of integers to any wider number, of decimals to decimals of the same scale."""
    source, target = cast.child().dataType().typeName(), cast.dataType().typeName()
    if source in ("byte", "short", "integer", "long"):
        return target in ("byte", "short", "integer", "long", "double") or target.startswith("decimal(")
    if source.startswith("decimal("):
        return bool(target.startswith("decimal(") and target.endswith(source.partition(",")[2]))
    return (source, target) == ("float", "double")


def with_long_sums(rows: DataFrame, most: int) -> DataFrame:
    """The same rows, computed from at most so many records, with decimals that are added as whole numbers."""
    plan = rows._jdf.queryExecution().analyzed()
    # A generator makes any number of rows of a record.
    if not holds(plan, "Aggregate") or holds(plan, "Generate"):
        return rows
    long_sums = java_class(rows.sparkSession, "tallymark.LongSums")(len(str(most)))
    return of_plan(plan.transformAllExpressions(long_sums), rows.sparkSession)
