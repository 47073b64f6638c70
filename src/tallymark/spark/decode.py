"""Decodes values in Spark's tasks: a value that does not fit the format becomes a dead letter, never an exception."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.errors import BadInput
from tallymark.formats.value import Bytes, Json
from tallymark.spark.errors import first_line
from tallymark.spark.java import json_decoder
from tallymark.spark.plans import invoked

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
    """Converts Kafka's columns to RECORD, and adds RAW for values that could not be decoded, and SIZE."""

    def __init__(self, source: Json | Bytes) -> None:
        self._schema = parse_schema(source) if isinstance(source, Json) else None
        self._steps: list[list[Column]] | None = None

    def __call__(self, raw: DataFrame) -> DataFrame:
        if self._steps is None:
            # Built once, because that costs more than decoding a small batch.
            self._steps = self._columns(raw)
        for columns in self._steps:
            raw = raw.select(*columns)
        return raw

    def _columns(self, raw: DataFrame) -> list[list[Column]]:
        given = [_time() if name == "timestamp" else F.col(name) for name in RECORD]
        if self._schema is None:
            return [[*given, F.lit(None).cast("binary").alias(RAW), _size()]]
        decoder = json_decoder(raw.sparkSession, self._schema.json())
        decoded, value = F.col(DECODED), F.col("value")
        others = [F.col(name) for name in RECORD if name != "value"]
        undecodable = F.when(decoded.isNull() & value.isNotNull(), value)
        return [
            [*given, invoked(decoder, "decode", self._schema, value).alias(DECODED)],
            [decoded.alias("value"), *others, undecodable.alias(RAW), _size()],
        ]


def _time() -> Column:
    """The record's timestamp; NULL if the producer wrote an unknown time or a time outside the calendar."""
    time = F.col("timestamp")
    known = time.between(*(F.lit(end).cast("timestamp") for end in (FIRST_TIME, LAST_TIME)))
    return F.when(known, time).alias("timestamp")


def _size() -> Column:
    return sum((F.coalesce(F.length(name), F.lit(0)) for name in ("key", "value")), F.lit(0)).alias(SIZE)
