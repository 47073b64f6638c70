"""Decodes values in Spark's tasks: a value that does not fit the format becomes a dead letter, never an exception."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.errors import BadInput
from tallymark.formats.value import Bytes, Json
from tallymark.spark.errors import first_line
from tallymark.spark.java import classes, new_counts
from tallymark.spark.plans import Selection, invoked

RAW = "_tallymark_raw"
"""The undecodable value; NULL for records that could be decoded."""
DECODED = "_tallymark_decoded"
SIZE = "_tallymark_size"
"""The bytes of key and value, before decoding."""
RECORD = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns that a table's function sees."""
FIRST_TIME, LAST_TIME = "1970-01-01 00:00:00", "9999-12-31 23:59:59.999999"


def parse_schema(source: Json) -> T.StructType:
    try:
        schema = T.DataType.fromDDL(source.schema)
    except PySparkException as error:
        raise BadInput(f"Json schema {source.schema!r} can't be read: {first_line(error)}") from None
    if not isinstance(schema, T.StructType):
        raise BadInput(f"Json schema {source.schema!r} has no fields; write it like 'id BIGINT, name STRING'")
    return schema


class SparkDecoder:
    """Decodes the values of Kafka's records.

    ``counts`` is an accumulator of the records that are decoded (``spark/jvm/Counts.java``).
    """

    def __init__(self, spark: SparkSession, source: Json | Bytes) -> None:
        self.counts = new_counts(spark)
        schema = parse_schema(source) if isinstance(source, Json) else None
        decoder = classes(spark).RecordDecoder(schema.json() if schema else None, self.counts)
        kind, method = (schema, "json") if schema else (T.BinaryType(), "bytes")
        found = invoked(decoder, method, kind, *RECORD[:6])
        decoded, value = F.col(DECODED), F.col("value")
        record = [decoded.alias("value") if name == "value" else _column(name) for name in RECORD]
        is_dead = decoded.isNull() & value.isNotNull()
        self._is_alive = ~is_dead
        # Built once, because that costs more than decoding a small batch.
        self._decode = Selection(*map(F.col, RECORD), found.alias(DECODED))
        self._records = Selection(*record)
        self._all = Selection(*record, F.when(is_dead, value).alias(RAW), _size())

    def __call__(self, raw: DataFrame) -> DataFrame:
        """All records: the columns of RECORD, RAW for values that could not be decoded, and SIZE."""
        return self._all(self._decode(raw))

    def records(self, raw: DataFrame) -> DataFrame:
        """The records that could be decoded, as a table's function sees them."""
        return self._records(self._decode(raw).where(self._is_alive))


def _column(name: str) -> Column:
    return _time() if name == "timestamp" else F.col(name)


def _time() -> Column:
    """The record's timestamp; NULL if the producer wrote an unknown time or a time outside the calendar."""
    time = F.col("timestamp")
    known = time.between(*(F.lit(end).cast("timestamp") for end in (FIRST_TIME, LAST_TIME)))
    return F.when(known, time).alias("timestamp")


def _size() -> Column:
    return sum((F.coalesce(F.length(name), F.lit(0)) for name in ("key", "value")), F.lit(0)).alias(SIZE)
