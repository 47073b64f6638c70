"""The file that ``tallymark init`` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from tallymark.cli.toml.infer import infer_schema
from tallymark.errors import BadInput
from tallymark.formats.value import Part

EXAMPLE = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"
STARTER = """\
# A tallymark pipeline: Kafka to database, exactly once.
#   tallymark check {name}      try it on real records, and write nothing
#   tallymark run {name}        run it, until Ctrl-C
# Any text may have ${{NAME}} or ${{NAME:-default}} in it, which come from the environment.

group = {group}
# Rows and offsets go here, in one transaction. {password}
store = {store}

# Where a partition without a saved position begins: uncommitted-earliest, uncommitted-latest, or a time
# ("uncommitted-timestamp=2026-01-31T00:00:00Z").
# start = "uncommitted-earliest"
# When Kafka deleted records before they were read: "fail", or "record" them as lost and go on.
# on_loss = "fail"
# Fields that the schema does not name: "record" counts them, also "ignore" or "fail".
# on_drift = "record"

[source]
brokers = {brokers}
topics = [{topic}]                      # names, or patterns such as "^orders-.*"
{format}

# [source.security]                     # a login; TALLYMARK_SASL_... in the environment says the same
# mechanism = "SCRAM-SHA-512"
# username = "shop"
# password_file = "/run/secrets/kafka"

# The query reads the view records: key, value, topic, partition, offset, timestamp, headers. More tables are filled
# in the same transaction.
[tables.{table}]
sql = \"\"\"
{sql}
\"\"\"
# write = "upsert"                      # overwrite rows by their key; append is the default
# key = "id"
# write = "merge"                       # add to the row of the key: running totals, with merge = {{ amount = "sum" }}
# delete = "tombstone"                  # delete the row of a key: by records without a value, or "value.op = 'd'"
# provenance = true                     # columns that say which record wrote a row
# evolve = true                         # add columns that the table lacks; "follow": also while a run reads

# [limits]
# records = 250000                      # the most that one batch reads
# [budget]
# max_dead_per_batch = 10000            # more undecodable records than that, and nothing moves
# max_dead_ratio_per_batch = 0.5        # the same for a share of a batch; 1 turns it off
"""


class Subject(NamedTuple):
    """What a registry has for the keys or values of a topic: a format's key in the file, and the type of the column."""

    format: str
    type: pa.DataType


@dataclass(frozen=True)
class Answers:
    """What is known about the new pipeline, and sample values of its topic."""

    file: str
    brokers: str | None = None
    topic: str | None = None
    store: str | None = field(default=None, repr=False)
    group: str | None = None
    values: tuple[bytes, ...] = field(default=(), repr=False)
    registry: str | None = None
    registered: Mapping[Part, Subject] = field(default_factory=dict)
    """The values and keys that the registry has Avro or Protobuf schemas for."""
    framed: bool = False
    """Whether the registry has a JSON Schema for the values, so that its id precedes them."""

    @cached_property
    def schema(self) -> str | None:
        """The JSON schema of the values, or an example; None if the values are not JSON objects."""
        if "value" in self.registered:
            return None
        return infer_schema(self.values) if self.values else EXAMPLE


def starter(answers: Answers) -> str:
    """The text of the file. It holds no password."""
    topic = answers.topic or "orders"
    store = _without_password(answers.store) if answers.store else "sqlite:///shop.db"
    return STARTER.format(
        name=answers.file,
        group=_quoted(answers.group or f"{topic.strip('^$.*')}-to-{_word(store.partition(':')[0])}"),
        store=_quoted(store),
        password="A password: TALLYMARK_STORE_PASSWORD, or { url = ..., password_file = ... }.",
        brokers=_quoted(answers.brokers or "localhost:9092"),
        topic=_quoted(topic),
        format=_format(answers),
        table=_table(topic),
        sql=_query(answers),
    )


def _format(answers: Answers) -> str:
    """The lines for the formats of values and keys."""
    found = {
        part: f"{{ {subject.format} = {_quoted(answers.registry or '')} }}"
        for part, subject in answers.registered.items()
    }
    otherwise = f"{{ json = {_json(answers)} }}" if answers.schema else '"bytes"'
    lines = [f"format = {found.get('value', otherwise)}"]
    return "\n".join([*lines, f"key = {found['key']}"] if "key" in found else lines)


def _json(answers: Answers) -> str:
    schema = _quoted(answers.schema or "")
    if not answers.framed:
        return schema
    return f"{{ schema = {schema}, framed = true, registry = {_quoted(answers.registry or '')} }}"


def _query(answers: Answers) -> str:
    subject = answers.registered.get("value")
    if answers.schema is not None or (subject is not None and pa.types.is_struct(subject.type)):
        return "SELECT value.*\nFROM records\nWHERE value IS NOT NULL"
    return f"SELECT {'value' if subject is not None else 'CAST(value AS STRING) AS value'}, timestamp FROM records"


def _without_password(store: str) -> str:
    try:
        url = make_url(store)
    except (ArgumentError, ValueError):
        raise BadInput("the store URL can't be read; write it like postgresql://user@host/database") from None
    # URL.set keeps a value if it gets None.
    bare = url._replace(password=None).difference_update_query(["password", "passwd"])
    return bare.render_as_string(hide_password=False)


def _table(topic: str) -> str:
    name = _word(topic)
    return f"{name}_rows" if name.startswith("tallymark_") else name


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "records"


def _quoted(text: str) -> str:
    """A TOML string: JSON's strings are valid in TOML, and ``${`` must not become a variable."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${")
