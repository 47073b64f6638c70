"""Decodes a batch and computes its rows in the tasks that read it; only rows travel to the driver, or are staged.

One row-wise table is read, counted and computed in a single pass. Several such tables share a cache of the decoded
records. Functions that shuffle records, that fail on a record, or that are applied again without some records, work on
a cache that was counted before, so that counts, rows and dead letters are of the same records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core import raw
from tallymark.core.batch import fetched
from tallymark.core.records import DeadLetter, PartitionCounts, Reading, merged
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import Refusal, Staged
from tallymark.errors import ReadFailed
from tallymark.formats import json as formats
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import Kafka
from tallymark.spark.counting import Counted, count, counted, counting
from tallymark.spark.decode import RAW, RECORD, SparkDecoder
from tallymark.spark.errors import FunctionFailed, explained
from tallymark.spark.executors import check_reached, stage
from tallymark.spark.functions import as_columns
from tallymark.spark.plans import is_row_wise
from tallymark.spark.rows import Shaper
from tallymark.spark.scan import Scan, leave_out
from tallymark.stores.sql.staging import Stages

MOST_FETCHED = 1000
"""Maximum number of dead records that the driver fetches itself; for more, a job is faster."""
UNDECODED = "does not fit the schema"
Records = Collection[tuple[Partition, int]]


class Tasks:
    """Reads spans of one source for the tables of a shaper."""

    def __init__(self, source: Kafka, scan: Scan, decode: SparkDecoder, shaper: Shaper, brokers: Brokers) -> None:
        self._source, self._scan, self._decode, self._shaper, self._brokers = source, scan, decode, shaper, brokers
        self.is_cancelled = False
        """Whether the results are no longer needed."""

    def collect(self, spans: Sequence[Span], without: Records = ()) -> Reading:
        """Read the spans, and collect the rows of all tables."""
        self.check_running()
        reading = None if without else self._in_one_pass(spans)
        return reading or self._by_cache(spans, without)

    def stage(self, stages: Stages, spans: Sequence[Span], batch: str, without: Records = ()) -> Reading:
        """Read the spans, and have the tasks write the rows of all tables to staging tables."""
        self.check_running()
        reading = None if without else self._staged_in_one_pass(stages, spans, batch)
        return reading or self._staged_by_cache(stages, spans, batch, without)

    def _in_one_pass(self, spans: Sequence[Span]) -> Reading | None:
        """None if the rows can't be computed in a pass that counts the records."""
        decoded = counting(self._decode(self._scan.frame(spans)), spans)
        rows: dict[str, pa.Table] = {}
        found: Counted | None = None
        with _cached(decoded) if len(self._shaper.tables) > 1 else nullcontext():
            try:
                for spec, function in self._shaper.tables:
                    frame = self._shaper.frame(spec, function, _records(decoded))
                    if not is_row_wise(frame, decoded):
                        return None
                    rows[spec.name] = self._shaper.collect(spec, frame)
                    found = found or counted(frame)
                    if found is None:
                        return None
            except FunctionFailed:
                return None
            assert found is not None
            letters = self._letters(found, decoded)
        return Reading(found.seen, rows, letters, size=found.size)

    def _by_cache(self, spans: Sequence[Span], without: Records) -> Reading:
        with self._counted_cache(spans, without) as (decoded, found):
            rows, refusals = self._shaper.shape(_records(decoded), spans)
            return Reading(found.seen, rows, self._letters(found, decoded), refusals, found.size)

    def _staged_in_one_pass(self, stages: Stages, spans: Sequence[Span], batch: str) -> Reading | None:
        spec, function = self._shaper.tables[0]
        if len(self._shaper.tables) > 1 or spec.write != "append" or spec.deletes is not None:
            return None
        decoded = counting(self._decode(self._scan.frame(spans)), spans)
        try:
            with explained(self._source.brokers, spec.name):
                rows = as_columns(self._shaper.rows(spec, function, _records(decoded)))
                if not is_row_wise(rows, decoded):
                    return None
                done, reports = stage(stages, spec, rows, self._shaper.schemas[spec.name], batch)
        except FunctionFailed as error:
            check_reached(error)
            return None
        with stages.kept([done.name]):
            if (found := counted(reports)) is not None:
                return self._of_stages(found, {spec.name: done}, decoded)
        stages.drop([done.name])
        return None

    def _staged_by_cache(self, stages: Stages, spans: Sequence[Span], batch: str, without: Records) -> Reading:
        with self._counted_cache(spans, without) as (decoded, found):
            done = self._shaper.stage(stages, _records(decoded), batch)
            with stages.kept(table.name for table in done.values()):
                return self._of_stages(found, done, decoded)

    def _of_stages(self, found: Counted, done: Mapping[str, Staged], decoded: DataFrame) -> Reading:
        letters = self._letters(found, decoded)
        return Reading(found.seen, self._shaper.no_rows(), letters, size=found.size, staged=done)

    @contextmanager
    def _counted_cache(self, spans: Sequence[Span], without: Records) -> Iterator[tuple[DataFrame, Counted]]:
        """The decoded records, cached and counted."""
        self.check_running()
        with _cached(self._decode(leave_out(self._scan.frame(spans), without))) as decoded:
            with explained(self._source.brokers):
                found = count(decoded)
            yield decoded, found

    def check_running(self) -> None:
        if self.is_cancelled:
            raise ReadFailed("the batch was not read, because the run is ending")

    def _letters(self, found: Counted, decoded: DataFrame) -> list[DeadLetter]:
        """The dead letters of the records that could not be decoded."""
        if not found.dead:
            return []
        if len(found.dead) <= MOST_FETCHED:
            refusals = [Refusal(*record, "", UNDECODED) for record in found.dead]
            return [self._explained(letter) for letter in fetched(refusals, self._brokers.records)]
        names = [F.col(RAW).alias("value") if name == "value" else F.col(name) for name in raw.SCHEMA.names]
        with explained(self._source.brokers):
            dead = decoded.where(F.col(RAW).isNotNull()).select(*names).toArrow()
        return [self._explained(letter) for letter in raw.letters(dead, dict.fromkeys(range(dead.num_rows), UNDECODED))]

    def _explained(self, letter: DeadLetter) -> DeadLetter:
        error = letter.error if letter.value is None else formats.explain(self._source.value, letter.value)
        return replace(letter, table=None, error=error)


def joined(parts: Sequence[Reading]) -> Reading:
    """The reading of all parts of a batch, in the order of their offsets."""
    if len(parts) == 1:
        return parts[0]
    seen: Mapping[Partition, PartitionCounts] = {}
    for part in parts:
        seen = merged(seen, part.seen)
    return Reading(
        seen,
        {name: pa.concat_tables(part.rows[name] for part in parts) for name in parts[0].rows},
        [letter for part in parts for letter in part.dead_letters],
        [refusal for part in parts for refusal in part.refusals],
        sum(part.size for part in parts),
    )


def _records(decoded: DataFrame) -> DataFrame:
    """The records that could be decoded, as a table's function sees them."""
    return decoded.where(F.col(RAW).isNull()).select(*RECORD)


@contextmanager
def _cached(frame: DataFrame) -> Iterator[DataFrame]:
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()
