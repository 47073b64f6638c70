"""Decoding values: what fits the format becomes ``value``, what does not becomes a dead letter, never an exception."""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.errors import BadInput
from tallymark.source import Bytes, Json

RAW = "_tallymark_raw"
"""The undecodable value, and NULL for every record that is fine."""
CORRUPT = "_tallymark_corrupt"
PARSED = "_tallymark_parsed"
VALUES = "_tallymark_values"
END = "_tallymark_end"
JSON_OPTIONS = {
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    # NaN and Infinity are no JSON, and not every database can hold them.
    "allowNonNumericNumbers": "false",
}
FIRST_YEAR, LAST_YEAR = 1, 9999
"""What both databases and Python can hold of Spark's 300,000 years."""
JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", float: "a number", type(None): "null"}

RECORD = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns that a table's function sees."""


def parse_schema(source: Json) -> T.StructType:
    try:
        schema = T.DataType.fromDDL(source.schema)
    except PySparkException as error:
        raise BadInput(f"Json schema {source.schema!r} can't be read: {first_line(error)}") from None
    if not isinstance(schema, T.StructType):
        raise BadInput(f"Json schema {source.schema!r} names no fields; write it like 'id BIGINT, name STRING'")
    return schema


def decode(raw: DataFrame, source: Json | Bytes) -> DataFrame:
    """Kafka's columns with ``value`` decoded, and RAW beside it where that failed."""
    if isinstance(source, Bytes):
        return raw.select(*RECORD).withColumn(RAW, F.lit(None).cast("binary"))
    schema = parse_schema(source)
    text = F.col("value").cast("string")
    # By itself Spark stops reading at the end of the first object, takes an array's first element for the whole, and
    # replaces bytes that are not UTF-8. Between brackets and before an end mark the value has to be exactly one object.
    wrapped = F.concat(F.lit(f'{{"{VALUES}":['), text, F.lit(f'],"{END}":true}}'))
    parsed = F.when(F.is_valid_utf8(text), F.from_json(wrapped, _wrapper(schema), JSON_OPTIONS))
    whole = (F.size(F.col(PARSED)[VALUES]) == 1) & F.col(PARSED)[END] & F.col(PARSED)[CORRUPT].isNull()
    bad = ~F.coalesce(whole, F.lit(False)) | _object().isNull()
    for field in schema:
        bad = bad | _unfit(field)
    has_value = F.col("value").isNotNull()
    frame = raw.withColumn(PARSED, parsed)
    dead = F.when(has_value & bad, F.col("value")).alias(RAW)
    value = F.when(has_value & ~bad, F.struct(*(_field(field).alias(field.name) for field in schema))).alias("value")
    others = [name for name in RECORD if name != "value"]
    return frame.select(value, dead, *others)


def explain(source: Json | Bytes, value: bytes) -> str:
    """Why a value is dead, for its letter."""
    assert isinstance(source, Json)
    try:
        # Numbers as floats: an int of thousands of digits would be an error of Python's own.
        decoded = json.loads(value.decode("utf-8"), parse_int=float, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(decoded, dict):
        return f"not a JSON object but {JSON_NAMES[type(decoded)]}"
    return f"does not fit the schema {source.schema}"


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split("JVM stacktrace")[0].split())[:300].rstrip(".")


def _wrapper(schema: T.StructType) -> T.StructType:
    """The schema to parse with. Timestamps are text, which is much faster to cast afterwards than to parse there."""
    fields = [T.StructField(f.name, T.StringType()) if _is_timestamp(f) else f for f in schema]
    return T.StructType(
        [
            T.StructField(VALUES, T.ArrayType(T.StructType(fields))),
            T.StructField(END, T.BooleanType()),
            T.StructField(CORRUPT, T.StringType()),
        ]
    )


def _is_timestamp(field: T.StructField) -> bool:
    return isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType))


def _object() -> Column:
    return F.get(F.col(PARSED)[VALUES], F.lit(0))


def _parsed(field: T.StructField) -> Column:
    return _object()[field.name]


def _field(field: T.StructField) -> Column:
    return _parsed(field).try_cast(field.dataType) if _is_timestamp(field) else _parsed(field)


def _unfit(field: T.StructField) -> Column:
    """Whether Spark has parsed a field to something that the value does not say or no database can hold."""
    found = _field(field)
    if _is_timestamp(field):
        # Spark takes a time without a date for one of today, and a number for a year.
        dated = _parsed(field).rlike(r"^\s*\d{4}-") & F.coalesce(_in_years(found), F.lit(False))
        return _parsed(field).isNotNull() & ~dated
    if isinstance(field.dataType, T.DateType):
        return found.isNotNull() & ~_in_years(found)
    if isinstance(field.dataType, (T.DoubleType, T.FloatType)):
        return found.isNotNull() & (F.abs(found) == float("inf"))
    return F.lit(False)


def _in_years(time: Column) -> Column:
    return F.year(time).between(FIRST_YEAR, LAST_YEAR)
