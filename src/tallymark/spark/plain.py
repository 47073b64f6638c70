"""Functions that only pick columns, such as ``records.select("value.*")``: their rows can be had without Spark.

What a function does is read off the plan that it makes of a DataFrame. As soon as anything is computed, filtered or
joined, it is Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tallymark.spark.shaping import NESTED


@dataclass(frozen=True)
class Pick:
    """A column of the records, or a field within it, or whether that is NULL."""

    column: str
    fields: tuple[str, ...] = ()
    is_null: bool = False

    def of(self, records: pa.Table) -> pa.ChunkedArray:
        found = records[self.column]
        found = pc.struct_field(found, list(self.fields)) if self.fields else found
        return pc.is_null(found) if self.is_null else found


def picked(rows: DataFrame, records: DataFrame) -> Mapping[str, Pick] | None:
    """Where each column of the rows comes from, if all of them are columns or fields of the records as they are."""
    if any(isinstance(field.dataType, NESTED) for field in rows.schema):
        # These become JSON text on the way.
        return None
    plan: Any = without_names(rows)
    found = _outputs(plan, records._jdf.queryExecution().analyzed()) or {}
    picks = [found.get(attribute) for attribute in _ids(plan)]
    if not all(picks):
        return None
    return dict(zip(rows.columns, (one for one in picks if one), strict=True))


def pick(records: pa.Table, picks: Mapping[str, Pick]) -> pa.Table:
    """The rows, of decoded records."""
    return pa.table({name: one.of(records) for name, one in picks.items()})


def _outputs(plan: Any, records: Any) -> dict[int, Pick] | None:
    """What a plan gives, by the ids that Spark has for its columns; None if it does more than pick."""
    if plan.children().isEmpty():
        # The ids of its columns are not enough: a checkpoint of other rows has the same.
        if not plan.fastEquals(records):
            return None
        return {attribute.exprId().id(): Pick(attribute.name()) for attribute in _listed(plan.output())}
    below = _outputs(plan.child(), records) if plan.nodeName() == "Project" else None
    if below is None:
        return None
    found = {one.exprId().id(): _pick(one, below) for one in _listed(plan.projectList())}
    return {attribute: one for attribute, one in found.items() if one}


def _pick(expression: Any, below: Mapping[int, Pick]) -> Pick | None:
    kind = expression.getClass().getSimpleName()
    if kind == "AttributeReference":
        return below.get(expression.exprId().id())
    if kind not in ("Alias", "GetStructField", "IsNull", "Cast"):
        return None
    found = _pick(expression.child(), below)
    if found is None or (found.is_null and kind in ("GetStructField", "IsNull")):
        return None
    if kind == "GetStructField":
        # The name that it has: the function may have spelled it in capitals.
        name = expression.child().dataType().fields()[expression.ordinal()].name()
        return replace(found, fields=(*found.fields, name))
    if kind == "Cast" and not expression.dataType().equals(expression.child().dataType()):
        return None
    return replace(found, is_null=True) if kind == "IsNull" else found


def over_several_records(rows: DataFrame) -> list[str]:
    """The columns that a window function has computed, or that are computed from such."""
    plan = without_names(rows)
    found = _windowed(plan)
    return [name for name, attribute in zip(rows.columns, _ids(plan), strict=True) if attribute in found]


def _windowed(plan: Any) -> set[int]:
    found = set[int]().union(*map(_windowed, _listed(plan.children())))
    if plan.nodeName() == "Window":
        return found | {one.exprId().id() for one in _listed(plan.windowExpressions())}
    if plan.nodeName() != "Project" or not found:
        return found
    return {
        one.exprId().id()
        for one in _listed(plan.projectList())
        if any(used.exprId().id() in found for used in _listed(one.references().toSeq()))
    }


def without_names(rows: DataFrame) -> Any:
    """The plan, without the names that subqueries and views have in it."""
    jvm: Any = rows.sparkSession._jvm
    analysis = jvm.org.apache.spark.sql.catalyst.analysis
    return analysis.EliminateView.apply(analysis.EliminateSubqueryAliases.apply(rows._jdf.queryExecution().analyzed()))


def _ids(plan: Any) -> list[int]:
    return [attribute.exprId().id() for attribute in _listed(plan.output())]


def _listed(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]
