"""Decodes a batch and computes its rows in the tasks that read it; only rows travel to the driver, or are staged.

One table that is row-wise, or that aggregates once, is read, counted and computed in a single pass. Several such tables
share a cache of the decoded records. Functions that read records more than once, that fail on a record, or that are
applied again without some records, work on a cache that was counted before, so that counts, rows and dead letters are
of the same records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tallymark.core import raw
from tallymark.core.batch import fetched
from tallymark.core.drift import Fields
from tallymark.core.drift import merged as all_fields
from tallymark.core.records import DeadLetter, PartitionCounts, Reading, merged
from tallymark.core.spans import Partition, Span
from tallymark.core.tables import Refusal, Staged
from tallymark.errors import ReadFailed, Unreachable
from tallymark.formats.decoders import Decoders
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.source import Kafka
from tallymark.spark.aggregates import with_long_sums
from tallymark.spark.counting import Counted, count, counted
from tallymark.spark.decode import RAW, RECORD, SparkDecoder
from tallymark.spark.errors import FunctionFailed, explained
from tallymark.spark.executors import check_reached, stage
from tallymark.spark.functions import as_columns
from tallymark.spark.plans import is_row_wise, is_single_pass
from tallymark.spark.rows import Shaper
from tallymark.spark.scan import Scan, leave_out
from tallymark.stores.sql.staging import Stages

MOST_FETCHED = 1000
"""Maximum number of dead records that the driver fetches itself; for more, a job is faster."""
UNDECODED = "does not fit the schema"
Records = Collection[tuple[Partition, int]]


class Tasks:
    """Reads spans of one source for the tables of a shaper, also in several threads."""

    def __init__(
        self,
        spark: SparkSession,
        source: Kafka,
        scan: Scan,
        decoders: Decoders,
        shaper: Shaper,
        brokers: Brokers,
        stop: threading.Event,
    ) -> None:
        """Nothing is read after ``stop`` is set."""
        self._spark, self._source, self._scan, self._shaper, self._brokers = spark, source, scan, shaper, brokers
        self._decoders = decoders
        self._idle: list[SparkDecoder] = []
        self._stop = stop

    def collect(self, spans: Sequence[Span], without: Records = ()) -> Reading:
        """Read the spans, and collect the rows of all tables."""

        def collected(decode: SparkDecoder) -> Reading:
            reading = None if without else self._in_one_pass(decode, spans)
            return reading or self._by_cache(spans, without)

        return self._read(collected)

    def stage(self, stages: Stages, spans: Sequence[Span], batch: str, without: Records = ()) -> Reading:
        """Read the spans, and have the tasks write the rows of all tables to staging tables."""

        def staged(decode: SparkDecoder) -> Reading:
            reading = None if without else self._staged_in_one_pass(decode, stages, spans, batch)
            return reading or self._staged_by_cache(stages, spans, batch, without)

        return self._read(staged, lambda reading: stages.drop(table.name for table in reading.staged.values()))

    @contextmanager
    def decoded(self, spans: Sequence[Span]) -> Iterator[DataFrame]:
        """The decoded records of the spans, cached."""
        while True:
            with self._decoder() as decode, _cached(decode(self._scan.frame(spans))) as decoded:
                if not self._decoders.learns or not self._has_missed(decode, self._collected_letters(decoded)):
                    yield decoded
                    return

    def _read(
        self, read: Callable[[SparkDecoder], Reading], discard: Callable[[Reading], None] = lambda _: None
    ) -> Reading:
        """Read, and read again if the tasks did not know a schema that the driver has learned since."""
        while True:
            check_running(self._stop)
            with self._decoder() as decode:
                reading = read(decode)
                if not self._has_missed(decode, reading.dead_letters):
                    return reading
            discard(reading)

    def _has_missed(self, decode: SparkDecoder, letters: Sequence[DeadLetter]) -> bool:
        return decode.version != self._decoders.version and any(letter.error == UNDECODED for letter in letters)

    @contextmanager
    def _decoder(self) -> Iterator[SparkDecoder]:
        """A decoder that nothing else uses in the block: its counts are of one query.

        After an error it is not used again, because tasks of the query may still run.
        """
        decoder = self._idle.pop() if self._idle else None
        if decoder is None or decoder.version != self._decoders.version:
            decoder = SparkDecoder(self._spark, self._decoders)
        yield decoder
        self._idle.append(decoder)

    def _in_one_pass(self, decode: SparkDecoder, spans: Sequence[Span]) -> Reading | None:
        """None if the rows can't be computed in a pass that counts the records."""
        records = decode.records(self._scan.frame(spans))
        frames = {spec: self._shaper.frame(spec, function, records) for spec, function in self._shaper.tables}
        if not all(is_single_pass(frame, records) for frame in frames.values()):
            return None
        offsets = sum(map(len, spans))
        frames = {spec: with_long_sums(frame, offsets) for spec, frame in frames.items()}
        # A function may have read records already, so the cache and the counts begin here.
        decode.counts.reset()
        try:
            with _cached(records) if len(frames) > 1 else nullcontext():
                rows = {spec.name: self._shaper.collect(spec, frame) for spec, frame in frames.items()}
        except FunctionFailed:
            return None
        found = counted(decode.counts)
        if found is None or len(found.dead) > MOST_FETCHED:
            return None
        return Reading(found.seen, rows, self._fetched_letters(found), size=found.size, drift=found.drift)

    def _by_cache(self, spans: Sequence[Span], without: Records) -> Reading:
        with self._counted_cache(spans, without) as (decoded, found):
            rows, refusals = self._shaper.shape(_records(decoded), spans)
            letters = self._cached_letters(found, decoded)
            return Reading(found.seen, rows, letters, refusals, found.size, drift=found.drift)

    def _staged_in_one_pass(
        self, decode: SparkDecoder, stages: Stages, spans: Sequence[Span], batch: str
    ) -> Reading | None:
        spec, function = self._shaper.tables[0]
        if len(self._shaper.tables) > 1 or spec.write != "append" or spec.deletes is not None:
            return None
        records = decode.records(self._scan.frame(spans))
        try:
            with explained(self._source.brokers, spec.name):
                rows = as_columns(self._shaper.rows(spec, function, records))
                if not is_row_wise(rows, records):
                    return None
                decode.counts.reset()
                done = stage(stages, spec, rows, self._shaper.schemas[spec.name], batch)
        except FunctionFailed as error:
            check_reached(error)
            return None
        with stages.kept([done.name]):
            found = counted(decode.counts)
            if found is not None and len(found.dead) <= MOST_FETCHED:
                return self._of_stages(found, {spec.name: done}, self._fetched_letters(found))
        stages.drop([done.name])
        return None

    def _staged_by_cache(self, stages: Stages, spans: Sequence[Span], batch: str, without: Records) -> Reading:
        with self._counted_cache(spans, without) as (decoded, found):
            done = self._shaper.stage(stages, _records(decoded), batch)
            with stages.kept(table.name for table in done.values()):
                return self._of_stages(found, done, self._cached_letters(found, decoded))

    def _of_stages(self, found: Counted, done: Mapping[str, Staged], letters: list[DeadLetter]) -> Reading:
        return Reading(found.seen, self._shaper.no_rows(), letters, size=found.size, staged=done, drift=found.drift)

    @contextmanager
    def _counted_cache(self, spans: Sequence[Span], without: Records) -> Iterator[tuple[DataFrame, Counted]]:
        """The decoded records, cached and counted.

        Not with the decoder of a pass that has failed, whose tasks may still count.
        """
        check_running(self._stop)
        with self._decoder() as decode, _cached(decode(leave_out(self._scan.frame(spans), without))) as decoded:
            decode.counts.reset()
            with explained(self._source.brokers):
                found = count(decoded)
            yield decoded, replace(found, drift=self._drift(decode, found))

    def _drift(self, decode: SparkDecoder, found: Counted) -> Mapping[Partition, Fields]:
        """The drift of records that were counted in a cache, counted by the decoder when it filled the cache."""
        if not self._decoders.finds or not found.seen:
            return {}
        by_decoder = counted(decode.counts)
        if (
            by_decoder is None
            or by_decoder.seen.keys() != found.seen.keys()
            or any(by_decoder.seen[partition].records != seen.records for partition, seen in found.seen.items())
        ):
            raise Unreachable(
                "Spark decoded a part of the batch twice, so its drift is not known exactly; it is read again"
            )
        return by_decoder.drift

    def _fetched_letters(self, found: Counted) -> list[DeadLetter]:
        """The dead letters of the records that could not be decoded."""
        refusals = [Refusal(*record, "", UNDECODED) for record in found.dead]
        return self._explained(fetched(refusals, self._brokers.records))

    def _cached_letters(self, found: Counted, decoded: DataFrame) -> list[DeadLetter]:
        if len(found.dead) <= MOST_FETCHED:
            return self._fetched_letters(found)
        return self._collected_letters(decoded)

    def _collected_letters(self, decoded: DataFrame) -> list[DeadLetter]:
        names = [F.col(RAW)[name].alias(name) if name in ("key", "value") else F.col(name) for name in raw.SCHEMA.names]
        with explained(self._source.brokers):
            dead = decoded.where(F.col(RAW).isNotNull()).select(*names).toArrow()
        return self._explained(raw.letters(dead, dict.fromkeys(range(dead.num_rows), UNDECODED)))

    def _explained(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """The letters with the errors of the driver's decoder, which may learn a schema that the tasks do not know."""
        return [replace(letter, table=None) for letter in self._decoders.explained(letters, UNDECODED)]


def check_running(stop: threading.Event) -> None:
    if stop.is_set():
        raise ReadFailed("the batch was not read, because the run is ending")


def joined(parts: Sequence[Reading]) -> Reading:
    """The reading of all parts of a batch, in the order of their offsets."""
    if len(parts) == 1:
        return parts[0]
    seen: Mapping[Partition, PartitionCounts] = {}
    drift: Mapping[Partition, Fields] = {}
    for part in parts:
        seen, drift = merged(seen, part.seen), all_fields(drift, part.drift)
    return Reading(
        seen,
        {
            # A table that follows the schemas may have more columns in the rows of one topic than in those of others.
            name: pa.concat_tables((part.rows[name] for part in parts if name in part.rows), promote_options="default")
            for name in dict.fromkeys(name for part in parts for name in part.rows)
        },
        [letter for part in parts for letter in part.dead_letters],
        [refusal for part in parts for refusal in part.refusals],
        sum(part.size for part in parts),
        drift=drift,
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
