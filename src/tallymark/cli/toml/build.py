"""Builds the pipeline that a TOML file describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.cli.toml.complaints import validated
from tallymark.cli.toml.document import Document, read
from tallymark.cli.toml.model import FormatTable, PipelineFile, Source, Table
from tallymark.core.start import Start
from tallymark.errors import BadInput
from tallymark.formats.value import Bytes, Format
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.membership import Group, Standalone
from tallymark.kafka.source import Kafka
from tallymark.run.setup import Setup
from tallymark.spark.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tallymark.spark.pipeline import TableFunction


def load_pipeline(path: Path) -> Pipeline:
    """The pipeline of a file. ``BadInput`` has a line for each mistake in it."""
    document = read(path)
    said = validated(PipelineFile, document)
    source = _source(document, said.source)
    with document.blamed("start"):
        start = Start.parse(said.start)
    with document.blamed("store"):
        store = said.store.full_url()
    with document.blamed("ledger"):
        ledger = said.ledger.full_url() if said.ledger else None
    with document.blamed("standalone"):
        membership = _membership(document, said)
    with document.blamed("group"):
        Setup(said.group, source, store)
    with document.blamed("membership"):
        Setup(said.group, source, store, membership=membership)
    for name, value in said.settings().items():
        with document.blamed(name):
            Setup(said.group, source, store, membership=membership, **{name: value})
    pipeline = Pipeline(
        group=said.group,
        source=source,
        store=store,
        ledger=ledger,
        limits=said.limits,
        road=said.road,
        unmatched=said.unmatched,
        spark=said.spark,
        start=start,
        membership=membership,
        **said.settings(),
    )
    with document.blamed("tables"):
        if not said.tables:
            raise BadInput("tables has none; add one, such as [tables.orders] with sql")
    for name, table in said.tables.items():
        with document.blamed("tables", name):
            _add(pipeline, document, name, table)
    return pipeline


def _source(document: Document, said: Source) -> Kafka:
    with document.blamed("source", "format"):
        if (said.format is None) == isinstance(said.topics, list):
            raise BadInput("source.format is missing, unless each topic has its own: [source.topics]")
        value = said.format.format("source.format") if said.format else Bytes()
    with document.blamed("source", "key"):
        key = said.key.format("source.key")
    with document.blamed("source", "brokers"):
        Cluster(said.brokers, said.security, said.tls)
    with document.blamed("source", "topics"):
        topics = said.topics if isinstance(said.topics, list) else _formats(said.topics)
        Kafka(said.brokers, topics)
    with document.blamed("source", "settings"):
        return Kafka(said.brokers, topics, value, said.settings, said.security, said.tls, key)


def _formats(said: Mapping[str, FormatTable]) -> dict[str, Format]:
    return {topic: found.format(f"source.topics.{topic}") for topic, found in said.items()}


def _membership(document: Document, said: PipelineFile) -> Group | Standalone:
    if said.standalone is False:
        return said.membership
    if "membership" in document.values:
        raise BadInput("standalone reads without a group; leave out standalone, or [membership]")
    return Standalone(None if said.standalone is True else said.standalone)


def _add(pipeline: Pipeline, document: Document, name: str, said: Table) -> None:
    register = pipeline.table(
        name,
        key=said.key,
        write=said.write,
        version=said.version,
        delete=said.delete,
        provenance=said.provenance,
        create=said.create,
        evolve=said.evolve,
        per_batch=said.per_batch,
        merge=said.merge,
        inexact=said.inexact,
        topics=said.topics,
    )
    if said.sql is not None:
        register(_function(document, name, said.sql))
    elif said.write != "replica":
        raise BadInput(f"tables.{name}.sql is missing")


def _function(document: Document, name: str, sql: str) -> TableFunction:
    def rows(records: DataFrame) -> DataFrame:
        from tallymark.cli.toml.query import select

        with document.blamed("tables", name, "sql"):
            return select(sql, records, f"tables.{name}.sql")

    return rows
