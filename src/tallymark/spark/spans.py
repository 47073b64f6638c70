"""Spans as Spark's Kafka source takes them, and as conditions on its records."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.raw import hulls
from tallymark.spans import Partition, Span


def by_topic(spans: Sequence[Span], form: Callable[[list[Span]], Any]) -> str:
    """JSON as the Kafka source takes it, an entry for each topic."""
    topics: dict[str, list[Span]] = {}
    for span in spans:
        topics.setdefault(span.partition.topic, []).append(span)
    return json.dumps({topic: form(parts) for topic, parts in topics.items()})


def within(span: Span) -> Column:
    """Whether a record is one of the span's."""
    here = (F.col("topic") == span.partition.topic) & (F.col("partition") == span.partition.number)
    return here & (F.col("offset") >= span.start) & (F.col("offset") < span.stop)


def leave_out(records: DataFrame, gone: Collection[tuple[Partition, int]]) -> DataFrame:
    """All records but these."""
    for span in hulls(gone):
        offsets = ", ".join(str(offset) for partition, offset in gone if partition == span.partition)
        # Text, which Spark takes at once: a column would ask the JVM for every single offset.
        records = records.where(~(within(span) & F.expr(f"offset IN ({offsets})")))
    return records
