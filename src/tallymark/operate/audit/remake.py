"""Runs the functions of a pipeline on past records with Spark, and returns only offsets, keys and counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core.spans import Partition, Span
from tallymark.core.tables import DELETED, OFFSET, PARTITION, TOPIC
from tallymark.errors import BadInput
from tallymark.operate.audit.scope import MADE, RECORDS
from tallymark.spark.decode import RAW, RECORD
from tallymark.spark.errors import explained
from tallymark.spark.layouts import Layout
from tallymark.spark.plans import column
from tallymark.spark.reader import SparkReader

PLACE = ("topic", "partition", "offset")


class Remaker(SparkReader):
    """Reads like a run, except that dead records are not passed to the functions, which might fail on them."""

    def merging(self) -> list[str]:
        """Return the tables whose functions merge records, so that a row does not come from a single record."""
        return self._all.shaper.merging()

    @property
    def _all(self) -> Layout:
        """The layout of all topics."""
        if not self._layouts.is_shared:
            raise BadInput("--deep compares tables that get all topics, and this pipeline has others; leave out --deep")
        return self._layouts.known[0]

    @contextmanager
    def records(self, spans: Sequence[Span]) -> Iterator[DataFrame]:
        """Read and decode the records of these spans, which must be of different partitions."""
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark audit of {sum(map(len, spans))} offsets")
        with explained(self._source.brokers), self._all.tasks.decoded(spans) as decoded:
            yield decoded

    def offsets(self, decoded: DataFrame) -> pa.Table:
        """Return the offsets that hold a record, and whether its value can't be decoded."""
        return decoded.select(*PLACE, F.col(RAW).isNotNull().alias("undecoded")).toArrow().cast(RECORDS)

    def made(self, name: str, decoded: DataFrame, dead: Mapping[Partition, Collection[int]]) -> pa.Table:
        """Return how many rows the table's function makes of each record, by key."""
        spec, function = next(table for table in self._all.shaper.tables if table[0].name == name)
        records = decoded.where(F.col(RAW).isNull()).select(*RECORD)
        places = [
            (partition.topic, partition.number, offset) for partition, offsets in dead.items() for offset in offsets
        ]
        if places:
            gone = self._spark.createDataFrame(places, "topic STRING, partition INT, offset BIGINT")
            records = records.join(F.broadcast(gone), list(PLACE), "left_anti").select(*RECORD)
        with explained(self._source.brokers, spec.name):
            rows = self._all.shaper.rows(spec, function, records)
            origin = [rows[hidden].alias(name) for name, hidden in zip(PLACE, (TOPIC, PARTITION, OFFSET), strict=True)]
            key = F.xxhash64(*map(column, spec.key)) if spec.key else F.lit(0).cast("bigint")
            deleted = F.coalesce(rows[DELETED], F.lit(False)) if spec.deletes is not None else F.lit(False)
            final = deleted & column(spec.version).isNull() if spec.version else deleted
            version = [column(spec.version).alias("version")] if spec.version else []
            found = rows.select(*origin, key.alias("key"), deleted.alias("deleted"), final.alias("final"), *version)
            names = [name for name in found.columns if name != "version"]
            highest = [F.max("version").alias("version") for _ in version]
            made = found.groupBy(*names).agg(F.count("*").alias("rows"), *highest).toArrow()
            return made.cast(pa.schema([*MADE, *list(made.schema)[len(MADE) :]]))
