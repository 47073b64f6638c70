"""Decodes values with Spark: a value that does not fit the format becomes a dead letter, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tallymark.errors import BadInput
from tallymark.formats import fields
from tallymark.formats.limits import DEEPEST
from tallymark.formats.value import Bytes, Json
from tallymark.spark import numbers

RAW = "_tallymark_raw"
"""The undecodable value; NULL for records that could be decoded."""
CORRUPT = "_tallymark_corrupt"
PARSED = "_tallymark_parsed"
FIELDS = "_tallymark_fields"
FITS = "_tallymark_fits"
SUSPICIOUS = "_tallymark_suspicious"
VALUES = "_tallymark_values"
END = "_tallymark_end"
OVERFLOWN = 'Infinity"'
"""The end of what Spark stores for a number in place of a STRING that is too large for a double."""
JSON_OPTIONS = {
    **numbers.STRICT,
    "columnNameOfCorruptRecord": CORRUPT,
    # The value is two levels deep in what is parsed.
    "maxNestingDepth": str(DEEPEST + 2),
}
EPOCH = "1970-01-01 00:00:00"
FIRST_MOMENT, LAST_MOMENT = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
"""The part of Spark's range of 300,000 years that the databases and Python can represent."""

TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)

SIZE = "_tallymark_size"
"""The bytes of key and value, before decoding."""

RECORD = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns that a table's function sees."""


def parse_schema(source: Json) -> T.StructType:
    try:
        schema = T.DataType.fromDDL(source.schema)
    except PySparkException as error:
        raise BadInput(f"Json schema {source.schema!r} can't be read: {first_line(error)}") from None
    if not isinstance(schema, T.StructType):
        raise BadInput(f"Json schema {source.schema!r} has no fields; write it like 'id BIGINT, name STRING'")
    return schema


class SparkDecoder:
    """Converts Kafka's columns to RECORD, and adds RAW for values that could not be decoded.

    The column expressions are built once, because building them costs more than decoding a small batch, and only on
    first use, because they are not needed if Arrow decodes all batches.
    """

    def __init__(self, source: Json | Bytes) -> None:
        self._schema = parse_schema(source) if isinstance(source, Json) else None

    def records(self, raw: DataFrame) -> DataFrame:
        """The columns of RECORD, to derive the schemas of tables; values are decoded without the strict checks."""
        if self._schema is None:
            return raw.select(*RECORD)
        return raw.withColumn("value", F.from_json(F.col("value").cast("string"), self._schema)).select(*RECORD)

    @cached_property
    def _steps(self) -> list[list[Column]]:
        passed = [F.col(name) for name in RECORD]
        came = [_time() if name == "timestamp" else F.col(name) for name in RECORD]
        schema = self._schema
        if schema is None:
            return [[*came, F.lit(None).cast("binary").alias(RAW), _size()]]
        others = [F.col(name) for name in RECORD if name != "value"]
        casts = [_found(field).try_cast(field.dataType).alias(_cast_name(field)) for field in schema if _is_cast(field)]
        value = F.struct(*(_field(field).alias(field.name) for field in schema))
        # Separate projections, because Spark would compute an expensive expression once for each reference.
        return [
            [*came, _parsed_json(schema)],
            [*passed, F.col(PARSED), *casts],
            [*passed, value.alias(FIELDS), _fits(schema).alias(FITS), *_suspicion(schema)],
            *([[*passed, F.col(FIELDS), _fits_after_all(schema).alias(FITS)]] if _suspicion(schema) else []),
            [
                F.when(F.col(FITS), F.col(FIELDS)).alias("value"),
                F.when(~F.col(FITS), F.col("value")).alias(RAW),
                *others,
                _size(),
            ],
        ]

    def __call__(self, raw: DataFrame) -> DataFrame:
        for columns in self._steps:
            raw = raw.select(*columns)
        return raw


def _time() -> Column:
    """The record's timestamp; NULL if the producer wrote an unknown time or a time outside the calendar."""
    time = F.col("timestamp")
    return F.when(_in_years(time, T.TimestampType(), EPOCH), time).alias("timestamp")


def _size() -> Column:
    return sum((F.coalesce(F.length(name), F.lit(0)) for name in ("key", "value")), F.lit(0)).alias(SIZE)


def _parsed_json(schema: T.StructType) -> Column:
    """The value, parsed as the element of an array that is followed by an end mark.

    Without that, Spark stops reading at the end of the first object, takes the first element of an array for the whole,
    and replaces bytes that are not UTF-8. Inside the array the value must be exactly one object.
    """
    fit = F.is_valid_utf8(F.col("value").cast("string"))
    if (decimals := numbers.only(T.DecimalType, _wrapped(schema))) is not None:
        fit = fit & ~numbers.has_odd_decimals(_wrapped_value(), decimals)
    return F.when(fit, F.from_json(_wrapped_value(), _wrapper(schema), JSON_OPTIONS)).alias(PARSED)


def _wrapped_value() -> Column:
    return F.concat(F.lit(f'{{"{VALUES}":['), F.col("value").cast("string"), F.lit(f'],"{END}":true}}'))


def _fits(schema: T.StructType) -> Column:
    """Whether the value is a single object that fits the schema; NULL for tombstones."""
    parsed = F.col(PARSED)
    fits = (F.size(parsed[VALUES]) == 1) & parsed[END] & parsed[CORRUPT].isNull() & _object().isNotNull()
    for field in schema:
        cast = _field(field) if isinstance(field.dataType, TIMES) else None
        if (unfit := _unfit(_found(field), field.dataType, cast)) is not None:
            fits = fits & ~unfit
    return F.when(F.col("value").isNotNull(), F.coalesce(fits, F.lit(False)))


def _suspicion(schema: T.StructType) -> list[Column]:
    """Whether a number in place of a STRING may be too large, if the schema has such a type."""
    strings = numbers.only(T.StringType, schema)
    suspicious = None if strings is None else _unfit(_object(), strings, rules=MAY_OVERFLOW)
    return [] if suspicious is None else [suspicious.alias(SUSPICIOUS)]


def _fits_after_all(schema: T.StructType) -> Column:
    """Whether a value fits that may have a number which is too large.

    Spark does not compile this, so it is apart from the checks that all values need. Spark keeps it apart because it
    refers to FITS twice.
    """
    strings = numbers.only(T.StringType, schema)
    assert strings is not None
    overflow = numbers.has_overflow(_wrapped_value(), _wrapped(strings))
    return F.when(F.col(FITS) & F.col(SUSPICIOUS), ~overflow).otherwise(F.col(FITS))


def column(name: str) -> Column:
    """The column with exactly this name, whatever characters it contains."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Quote a name, because Spark takes a dot as access to a field within a column."""
    return f"`{name.replace('`', '``')}`"


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split("JVM stacktrace")[0].split())[:300].rstrip(".")


def _wrapped(kind: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(VALUES, T.ArrayType(kind))])


def _wrapper(schema: T.StructType) -> T.StructType:
    """The schema to parse with."""
    return _wrapped(_loose(schema)).add(END, T.BooleanType()).add(CORRUPT, T.StringType())


def _loose(kind: T.DataType) -> T.DataType:
    """The type to parse a field as, before it is checked and cast.

    Spark's parser reads a byte as unsigned and accepts many formats of times. It also takes much longer to parse a
    timestamp than to cast its text.
    """
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, _loose(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_loose(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _loose(kind.valueType))
    if isinstance(kind, T.ByteType):
        return T.ShortType()
    return T.StringType() if isinstance(kind, TIMES) else kind


def _is_cast(field: T.StructField) -> bool:
    return _loose(field.dataType).simpleString() != field.dataType.simpleString()


def _object() -> Column:
    return F.get(F.col(PARSED)[VALUES], F.lit(0))


def _found(field: T.StructField) -> Column:
    """The field as parsed; dates and timestamps are text."""
    return _object()[field.name]


def _cast_name(field: T.StructField) -> str:
    return f"_tallymark_cast_{field.name}"


def _field(field: T.StructField) -> Column:
    return column(_cast_name(field)) if _is_cast(field) else _found(field)


@dataclass(frozen=True)
class Rule:
    """Whether a value is unfit, and whether an array holds such a value: Spark compiles no lambda functions."""

    value: Callable[[Column], Column]
    array: Callable[[Column], Column]


Rules = Mapping[type[T.DataType], Rule]
INFINITE = Rule(
    lambda number: F.abs(number) == float("inf"),
    lambda numbers: (F.array_max(numbers) == float("inf")) | (F.array_min(numbers) == float("-inf")),
)
RULES: Rules = {
    T.ByteType: Rule(
        lambda number: ~number.between(-128, 127),
        lambda numbers: (F.array_max(numbers) > 127) | (F.array_min(numbers) < -128),
    ),
    T.DoubleType: INFINITE,
    T.FloatType: INFINITE,
}
MAY_OVERFLOW: Rules = {
    T.StringType: Rule(lambda text: text.contains(OVERFLOWN), lambda texts: F.array_join(texts, "").contains(OVERFLOWN))
}


def _unfit(found: Column, kind: T.DataType, cast: Column | None = None, rules: Rules = RULES) -> Column | None:
    """Whether the parsed value differs from its text, or no database can hold it. Never NULL.

    ``cast`` is the time that ``found`` was cast to, if it has been cast already.
    """
    if isinstance(kind, TIMES):
        time = found.try_cast(kind) if cast is None else cast
        return found.isNotNull() & ~F.coalesce(found.rlike(_form(kind)) & _in_years(time, kind), F.lit(False))
    if isinstance(kind, T.StructType):
        return _either(_unfit(found[field.name], field.dataType, rules=rules) for field in kind)
    if isinstance(kind, T.ArrayType):
        return _any(found, kind.elementType, rules)
    if isinstance(kind, T.MapType):
        return _any(F.map_values(found), kind.valueType, rules)
    rule = rules.get(type(kind))
    return None if rule is None else F.coalesce(rule.value(found), F.lit(False))


def _either(parts: Iterable[Column | None]) -> Column | None:
    known = [part for part in parts if part is not None]
    return reduce(or_, known) if known else None


def _any(found: Column, kind: T.DataType, rules: Rules) -> Column | None:
    """Whether an element of an array does not fit."""
    if isinstance(kind, T.StructType):
        # A field of an array of objects is the array of these fields.
        return _either(_any(found[field.name], field.dataType, rules) for field in kind)
    if (rule := rules.get(type(kind))) is not None:
        return F.coalesce(rule.array(found), F.lit(False))
    if _unfit(F.lit(None), kind, rules=rules) is None:
        return None

    def unfit(one: Column) -> Column:
        found = _unfit(one, kind, rules=rules)
        assert found is not None
        return found

    return F.coalesce(F.exists(found, unfit), F.lit(False))


def _form(kind: T.DataType) -> str:
    forms: dict[type[T.DataType], str] = {T.DateType: fields.DAY, T.TimestampNTZType: fields.CLOCK}
    return rf"^(?:{forms.get(type(kind), fields.MOMENT)})\z"


def _in_years(time: Column, kind: T.DataType, first: str = FIRST_MOMENT) -> Column:
    return time.between(*(F.lit(moment).cast(kind) for moment in (first, LAST_MOMENT)))
