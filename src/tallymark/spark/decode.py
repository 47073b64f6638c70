"""Decodes records in Spark's tasks: one that does not fit its formats becomes a dead letter, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from tallymark.formats.debezium.json import DebeziumJson
from tallymark.formats.decoder import Decoder
from tallymark.formats.decoders import Decoders, FramedDecoder
from tallymark.formats.framing import Id
from tallymark.formats.json import JsonDecoder
from tallymark.formats.protobuf.indexes import FIRST
from tallymark.formats.protobuf.registered import PlainProtobuf, RegisteredProtobuf
from tallymark.formats.registered import PlainAvro, RegisteredAvro
from tallymark.formats.unnamed import written
from tallymark.spark.java import classes, new_counts
from tallymark.spark.plans import Selection, invoked

RAW = "_tallymark_raw"
"""Key and value of a dead record as they are in Kafka; NULL for records that could be decoded."""
DECODED = "_tallymark_decoded"
SIZE = "_tallymark_size"
"""The bytes of key and value, before decoding."""
RECORD = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns that a table's function sees."""
HEADERS = "array<struct<key: string, value: binary>>"
FIRST_TIME, LAST_TIME = "1970-01-01 00:00:00", "9999-12-31 23:59:59.999999"


class SparkDecoder:
    """Decodes keys and values of Kafka's records, as far as ``decoders`` can now.

    ``counts`` is an accumulator of the records that are decoded (``spark/jvm/Counts.java``).
    """

    def __init__(self, spark: SparkSession, decoders: Decoders) -> None:
        self.counts = new_counts(spark)
        self.version = decoders.version
        java = classes(spark)
        unnamed = java.Names("key: "), java.Names("")
        contents = zip((decoders.key, decoders.value), unnamed, strict=True)
        key, value = (_content(java, decoder, names) if decoder else None for decoder, names in contents)
        decoder = java.RecordDecoder(key, value, self.counts, *unnamed)
        headers = F.col("headers") if decoders.header_names else F.lit(None).cast(HEADERS)
        arguments = [*map(F.col, RECORD[:6]), headers]
        value_type = _spark_type(decoders.value)
        found, undecoded = F.col(DECODED), F.struct("key", "value")
        # A decoded value says by itself that the record is alive, unless it may be NULL, or the key is decoded, too.
        if decoders.key is None and not decoders.value.is_nullable:
            decoded = invoked(decoder, "value", value_type, *arguments)
            parts = {"value": found}
            is_dead = found.isNull() & F.col("value").isNotNull()
        else:
            key_type = _spark_type(decoders.key) if decoders.key else T.BinaryType()
            both = T.StructType([T.StructField("key", key_type), T.StructField("value", value_type)])
            decoded = invoked(decoder, "both", both, *arguments)
            parts = {name: found[name] for name in ("key", "value")}
            is_dead = found.isNull()
        record = [parts[name].alias(name) if name in parts else _column(name) for name in RECORD]
        self._is_alive = ~is_dead
        # Built once, because that costs more than decoding a small batch.
        self._decode = Selection(*map(F.col, RECORD), decoded.alias(DECODED))
        self._records = Selection(*record)
        self._all = Selection(*record, F.when(is_dead, undecoded).alias(RAW), _size())

    def __call__(self, raw: DataFrame) -> DataFrame:
        """All records: the columns of RECORD, RAW for those that could not be decoded, and SIZE."""
        return self._all(self._decode(raw))

    def records(self, raw: DataFrame) -> DataFrame:
        """The records that could be decoded, as a table's function sees them."""
        return self._records(self._decode(raw).where(self._is_alive))


def _content(java: Any, decoder: Decoder, unnamed: Any) -> Any:
    """The Java object that decodes the same, and adds fields to ``unnamed``; None for bytes."""
    if isinstance(decoder, FramedDecoder):
        return java.Content(_decoder(java, decoder.decoder, unnamed), True)
    if isinstance(decoder, RegisteredAvro):
        content = java.Content(decoder.header)
        for name, program in decoder.programs.items():
            found = java.AvroDecoder(program.as_json())
            content.add(_name(name), _naming(java, found, decoder, program.root, unnamed))
        return content
    if isinstance(decoder, RegisteredProtobuf):
        content = java.Content(decoder.header)
        content.readIndexes()
        for (name, indexes), steps in decoder.programs.items():
            after = "" if indexes == FIRST else f"/{'.'.join(map(str, indexes))}"
            found = java.ProtobufDecoder(steps.as_json())
            content.add(_name(name) + after, _naming(java, found, decoder, steps.root, unnamed))
        return content
    plain = _decoder(java, decoder, unnamed)
    return java.Content(plain, False) if plain else None


def _naming(java: Any, found: Any, decoder: Decoder, root: Mapping[str, Any], unnamed: Any) -> Any:
    """The Java decoder of a schema, with the fields that the reader's schema does not name."""
    paths = list(written(root)) if decoder.finds else []
    if not paths:
        return found
    naming = java.NamingDecoder(found, unnamed)
    for path in paths:
        naming.add(path)
    return naming


def _name(id: Id) -> str:
    """The name of a schema in Java."""
    return str(id).replace("-", "")


def _decoder(java: Any, decoder: Decoder, unnamed: Any) -> Any:
    unnamed = unnamed if decoder.finds else None
    if isinstance(decoder, DebeziumJson):
        return java.DebeziumDecoder(_spark_type(decoder).json(), decoder.per_second, decoder.is_base64, unnamed)
    if isinstance(decoder, JsonDecoder):
        return java.JsonDecoder(_spark_type(decoder).json(), unnamed)
    if isinstance(decoder, PlainProtobuf):
        return java.ProtobufDecoder(decoder.program.as_json())
    return java.AvroDecoder(decoder.program.as_json()) if isinstance(decoder, PlainAvro) else None


def _spark_type(decoder: Decoder) -> T.DataType:
    return from_arrow_type(decoder.type, prefer_timestamp_ntz=True)


def _column(name: str) -> Column:
    return _time() if name == "timestamp" else F.col(name)


def _time() -> Column:
    """The record's timestamp; NULL if the producer wrote an unknown time or a time outside the calendar."""
    time = F.col("timestamp")
    known = time.between(*(F.lit(end).cast("timestamp") for end in (FIRST_TIME, LAST_TIME)))
    return F.when(known, time).alias("timestamp")


def _size() -> Column:
    return sum((F.coalesce(F.length(name), F.lit(0)) for name in ("key", "value")), F.lit(0)).alias(SIZE)
