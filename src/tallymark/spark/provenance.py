"""Which record a row came from, although the user's function selected other columns.

Spark resolves a sort by columns that a projection below it has dropped: it adds them to the projection, sorts, and
drops them again on top. The plan in between is the user's result with the record's columns still in it, and that is
what we take. It holds for every row-wise function (select, filter, withColumn, explode); where rows of several records
are merged (an aggregate, a join) there is no single record, and Spark says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tallymark.shape import DELETED, OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.source import is_pattern
from tallymark.spark.decode import quoted

COLUMNS = {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET, "timestamp": TIMESTAMP, DELETED: DELETED}


def with_provenance(result: DataFrame, records: DataFrame) -> DataFrame:
    """The result with topic, partition, offset and timestamp of its record, where there is a single one.

    Where the records say which of them delete, that too.
    """
    kept = {name: alias for name, alias in COLUMNS.items() if name in records.columns}
    try:
        order = result.sortWithinPartitions(*(records[name] for name in kept))
        columns = [*(result[quoted(name)] for name in result.columns), *(records[n].alias(a) for n, a in kept.items())]
        return DataFrame(_below_sort(order), result.sparkSession).select(*columns)
    except PySparkException:
        return result


def collect(spec: TableSpec, rows: DataFrame, topics: Sequence[str]) -> pa.Table:
    """All rows, with as few hidden columns on the way as can be: each costs as much as one of the user's."""
    one_topic = topics[0] if len(topics) == 1 and not is_pattern(topics[0]) and TOPIC in rows.columns else None
    dropped = [*([TOPIC] if one_topic else []), *([TIMESTAMP] if spec.write == "append" else [])]
    found = rows.drop(*dropped).toArrow()
    return found.append_column(TOPIC, pa.repeat(one_topic, found.num_rows)) if one_topic else found


def _below_sort(ordered: DataFrame) -> Any:
    plan = ordered._jdf.queryExecution().analyzed()
    while plan.nodeName() != "Sort":
        plan = plan.child()
    jvm: Any = ordered.sparkSession._jvm
    # Python has no way to make a DataFrame of a plan.
    return jvm.org.apache.spark.sql.classic.Dataset.ofRows(ordered.sparkSession._jsparkSession, plan.child())
