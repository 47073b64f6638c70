"""The keys and types of a file, checked by pydantic; the values are checked by the classes that take them.

Nothing is checked here that such a class checks: what it refuses becomes an error of the key it came from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator
from pydantic_core import PydanticCustomError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from tallymark.core.budget import Budget
from tallymark.core.drift import OnDrift
from tallymark.core.durations import Duration
from tallymark.core.merging import MergeFunction
from tallymark.core.plan import Limits, OnLoss
from tallymark.core.retention import Retention
from tallymark.core.retry import PATIENCE
from tallymark.core.skip_ahead import SkipAhead
from tallymark.core.tables import Evolve, Write
from tallymark.core.tls import Tls
from tallymark.core.unmatched import Unmatched
from tallymark.errors import BadInput
from tallymark.formats.value import Avro, Bytes, Debezium, Format, Json, Protobuf
from tallymark.kafka.cluster import Sasl
from tallymark.kafka.membership import Group
from tallymark.run.commit import Delivery
from tallymark.run.setup import Settings
from tallymark.spark.pipeline import Road

Handler = Callable[[Any], Any]
AS_THEY_ARE = Settings.__annotations__.keys() - {"start", "ledger", "membership"}
"""Settings that are passed to the pipeline as they are in the file."""


def refused(error: BadInput) -> PydanticCustomError:
    return PydanticCustomError("refused", "{said}", {"said": str(error)})


def _checked(value: Any, handler: Handler) -> Any:
    try:
        return handler(value)
    except BadInput as error:
        raise refused(error) from None


def _flat(value: Any, prefix: str = "") -> Any:
    """Join the names of nested tables with dots: ``session.timeout.ms = 10000`` is three tables in TOML."""
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, one in value.items():
        found |= _flat(one, f"{prefix}{name}.") if isinstance(one, dict) else {prefix + name: one}
    return found


def _texts(value: Any) -> Any:
    """Spark accepts only text."""
    flat = _flat(value)
    if not isinstance(flat, dict):
        return flat
    return {name: one if isinstance(one, str) else json.dumps(one) for name, one in flat.items()}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else _of(list, value, "text or a list")


def _as(key: str) -> BeforeValidator:
    """Accept a text instead of a table with this key."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else _of(dict, value, "text or a table")
    )


def _of(kind: type, value: Any, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise PydanticCustomError("wanted", "{wanted}", {"wanted": wanted})
    return value


Checked = WrapValidator(_checked)
Names = Annotated[list[str], BeforeValidator(_listed)]
Security = Annotated[Sasl, Checked]
TlsOrNot = Annotated[Tls, Checked] | bool


class Strict(BaseModel):
    """Refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class Place(Strict):
    """A store: its URL, and its password separately."""

    url: str = Field(repr=False)
    password: str | None = Field(None, repr=False)
    password_file: str | None = None

    def full_url(self) -> str:
        if self.password is None and self.password_file is None:
            return self.url
        if self.password is not None and self.password_file is not None:
            raise BadInput("password and password_file are both given; keep one of them")
        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):
            raise BadInput("the store URL can't be read; write it like postgresql://user@host/database") from None
        if self.password is not None:
            url = url.set(password=self.password)
        else:
            url = url.update_query_dict({"password_file": self.password_file or ""})
        return url.render_as_string(hide_password=False)


StorePlace = Annotated[Place, _as("url")]


class EventsTable(Strict):
    """The format of Debezium's change events: ``{ json = "id BIGINT" }``, or ``{ avro = "https://..." }``."""

    json_format: Annotated[Json, Checked, _as("schema")] | None = Field(None, alias="json")
    avro: Annotated[Avro, Checked, _as("registry")] | None = None
    times: Literal["millis", "micros", "nanos"] = "micros"
    decimals: Literal["base64", "text"] = "base64"

    def format(self, key: str) -> Debezium:
        inner = self.json_format or self.avro
        if inner is None or (self.json_format and self.avro):
            raise BadInput(
                f'{key} must have one format; write debezium = {{ json = "id BIGINT" }}, or '
                'debezium = { avro = "https://registry:8081" }'
            )
        return Debezium(inner, self.times, self.decimals)


class FormatTable(Strict):
    """How keys or values are decoded: ``bytes``, or a table with a format, such as ``{ json = "id BIGINT" }``."""

    json_format: Annotated[Json, Checked, _as("schema")] | None = Field(None, alias="json")
    avro: Annotated[Avro, Checked, _as("registry")] | None = None
    debezium: Annotated[EventsTable, _as("avro")] | None = None
    protobuf: Annotated[Protobuf, Checked, _as("registry")] | None = None
    name: Literal["bytes"] | None = None

    def format(self, key: str) -> Format:
        """The format; ``key`` is where the file has this table."""
        events = self.debezium.format(f"{key}.debezium") if self.debezium else None
        given = (self.json_format, self.avro, self.protobuf, events, Bytes() if self.name else None)
        found = [one for one in given if one is not None]
        if len(found) != 1:
            name = key.rpartition(".")[2]
            raise BadInput(
                f'{key} must have one format; write {name} = "bytes", {name} = {{ json = "id BIGINT" }}, '
                f'{name} = {{ avro = "https://registry:8081" }}, or {name} = {{ protobuf = "https://registry:8081" }}'
            )
        return found[0]


class Source(Strict):
    brokers: str
    topics: Names | dict[str, Annotated[FormatTable, _as("name")]]
    format: Annotated[FormatTable, _as("name")] | None = None
    key: Annotated[FormatTable, _as("name")] = Field(default_factory=lambda: FormatTable(json=None, name="bytes"))
    settings: Annotated[dict[str, Any], BeforeValidator(_flat)] = {}
    security: Security | None = None
    tls: TlsOrNot | None = None


class Table(Strict):
    """The options of ``@pipeline.table``, with a query instead of the function."""

    sql: str | None = None
    topics: str | None = None
    key: Names = []
    write: Literal[Write, "replica"] = "append"
    version: str | None = None
    delete: str | None = None
    provenance: bool = False
    create: bool = True
    evolve: Evolve = False
    per_batch: bool = False
    merge: dict[str, MergeFunction] = {}
    inexact: bool = False


class PipelineFile(Strict):
    """The file of a pipeline."""

    group: str
    store: StorePlace
    ledger: StorePlace | None = None
    source: Source
    tables: dict[str, Table]
    delivery: Delivery = "exactly-once"
    start: str = "uncommitted-earliest"
    on_loss: OnLoss = "fail"
    on_drift: OnDrift = "record"
    patience: Duration = PATIENCE
    mirror: bool = False
    metrics_port: int | None = None
    metrics_host: str = ""
    tracing: bool = False
    road: Road = "auto"
    unmatched: Unmatched = "applied"
    limits: Annotated[Limits, Checked] = Limits()
    budget: Annotated[Budget, Checked] = Budget()
    retention: Annotated[Retention, Checked] = Retention()
    catch_up: Annotated[SkipAhead, Checked] | None = None
    membership: Annotated[Group, Checked] = Group()
    standalone: bool | dict[str, list[int]] = False
    spark: Annotated[dict[str, str], BeforeValidator(_texts)] = Field({}, repr=False)

    def settings(self) -> dict[str, Any]:
        """The settings in the file that are passed on unchanged; the others keep their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set & AS_THEY_ARE}


class Defaults(Strict):
    """The file ``tallymark.toml``."""

    store: StorePlace | None = None
    brokers: str | None = None
    security: Security | None = None
    tls: TlsOrNot | None = None


SECTIONS: Mapping[tuple[str, ...], type] = {
    ("source",): Source,
    ("source", "format"): FormatTable,
    ("source", "format", "json"): Json,
    ("source", "format", "avro"): Avro,
    ("source", "format", "debezium"): EventsTable,
    ("source", "format", "debezium", "json"): Json,
    ("source", "format", "debezium", "avro"): Avro,
    ("source", "format", "protobuf"): Protobuf,
    ("source", "key"): FormatTable,
    ("source", "key", "json"): Json,
    ("source", "key", "avro"): Avro,
    ("source", "key", "protobuf"): Protobuf,
    ("source", "security"): Sasl,
    ("source", "tls"): Tls,
    ("store",): Place,
    ("ledger",): Place,
    ("tables", "*"): Table,
    ("limits",): Limits,
    ("budget",): Budget,
    ("retention",): Retention,
    ("catch_up",): SkipAhead,
    ("membership",): Group,
    ("security",): Sasl,
    ("tls",): Tls,
}
"""The model of each table of a file, for the names that are known there."""
