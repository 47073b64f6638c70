"""What the functions of a pipeline make of records that were read before: offsets and counts alone, by Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.audit.scope import MADE, RECORDS
from tallymark.shape import DELETED, OFFSET, PARTITION, TOPIC
from tallymark.spans import Partition, Span
from tallymark.spark.decode import RAW, RECORD, column
from tallymark.spark.failures import explained
from tallymark.spark.reader import SparkReader
from tallymark.spark.shaping import apply

PLACE = ("topic", "partition", "offset")


class Remaker(SparkReader):
    """Reads as a run does. What is dead already is kept from the functions: it may be what they fail on."""

    def merging(self) -> list[str]:
        """The tables whose functions merge records, so that no row has a single one."""
        return self._shaper.merging()

    @contextmanager
    def records(self, spans: Sequence[Span]) -> Iterator[DataFrame]:
        """The records of these spans, decoded; no partition may be among them twice."""
        self._spark.sparkContext.setJobGroup(self._run, f"tallymark audit of {sum(map(len, spans))} offsets")
        decoded = self._decode(self._scan.frame(spans)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with explained(self._source.brokers):
                yield decoded
        finally:
            decoded.unpersist()

    def offsets(self, decoded: DataFrame) -> pa.Table:
        """Which offsets hold a record, and of which the value can't be decoded."""
        return decoded.select(*PLACE, F.col(RAW).isNotNull().alias("undecoded")).toArrow().cast(RECORDS)

    def made(self, name: str, decoded: DataFrame, dead: Mapping[Partition, Collection[int]]) -> pa.Table:
        """How many rows the table's function makes of each record, by their keys."""
        spec, function = next(table for table in self._shaper.tables if table[0].name == name)
        records = decoded.where(F.col(RAW).isNull()).select(*RECORD)
        places = [(one.topic, one.number, offset) for one, offsets in dead.items() for offset in offsets]
        if places:
            gone = self._spark.createDataFrame(places, "topic STRING, partition INT, offset BIGINT")
            records = records.join(F.broadcast(gone), list(PLACE), "left_anti").select(*RECORD)
        with explained(self._source.brokers, spec.name):
            rows = apply(spec, function, records)
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
