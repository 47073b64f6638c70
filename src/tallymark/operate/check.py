"""A pipeline without its consequences: what it would read, make of it, create and refuse. Writes nothing anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from tempfile import TemporaryDirectory

import pyarrow as pa

from tallymark.batch import Batch
from tallymark.brokers import Brokers
from tallymark.claiming import Beginning
from tallymark.commit import Destination
from tallymark.letters import fetched, refused
from tallymark.membership import Standalone
from tallymark.pipeline import Pipeline
from tallymark.plan import Plan, check_identity, plan
from tallymark.read import DeadLetter
from tallymark.setup import Setup
from tallymark.shape import TableSpec, table_schema, visible
from tallymark.source import is_pattern
from tallymark.spans import Log, Partition
from tallymark.stores.columns import columns_for
from tallymark.stores.opening import sqlite_file
from tallymark.stores.sql import SqlStore
from tallymark.stores.store import Store
from tallymark.stores.targets import has_table, reflected

SAMPLE = 100
"""Records that are read, over all partitions."""


@dataclass(frozen=True)
class Start:
    """Where a run would begin to read a partition, and how much it would find there."""

    partition: Partition
    offset: int
    log: Log
    saved: bool


@dataclass(frozen=True)
class Sampled:
    """What a table would get. ``missing`` are the columns that it lacks and would be given; all, if it is absent."""

    spec: TableSpec
    schema: pa.Schema
    exists: bool
    missing: Sequence[str]
    rows: pa.Table
    deletes: int
    types: Mapping[str, str]
    """For the columns that are ``missing``: the type that each would get in the database."""


@dataclass(frozen=True)
class Trial:
    """What a run would find and do."""

    group: str
    starts: Sequence[Start]
    records: int = 0
    tables: Sequence[Sampled] = ()
    letters: Sequence[DeadLetter] = ()


def try_setup(setup: Setup) -> Trial:
    """Topics, store and positions of a group; raises what a run would refuse."""
    with _destination(setup) as destination:
        return Trial(setup.group, _starts(setup, _brokers(setup, destination), destination.ledger))


def try_pipeline(pipeline: Pipeline, rows: int = 10) -> Trial:
    """The same, and what the pipeline makes of a sample of records: up to so many rows of each table."""
    setup = pipeline.setup
    with _destination(setup) as destination:
        job, brokers = pipeline._job(), _brokers(setup, destination)
        starts = _starts(setup, brokers, destination.ledger)
        sample = _sample(starts, setup)
        with pipeline._reading(destination, job.owner) as reader:
            schemas = reader.schemas()
            destination.rows.check_tables(job.tables, schemas)
            reading = reader.read(sample.spans, "check") if sample else None
        if reading is None:
            tables = [_sampled(destination.rows, spec, schemas, None, rows) for spec in job.tables]
            return Trial(setup.group, starts, tables=tables)
        letters = [*reading.dead_letters, *fetched(refused(reading, job.tables), brokers.records)]
        batch = Batch.shaped("check", datetime.now(timezone.utc), sample, reading, job.tables, letters)
        tables = [_sampled(destination.rows, spec, schemas, batch, rows) for spec in job.tables]
        return Trial(setup.group, starts, sum(seen.records for seen in reading.seen.values()), tables, letters)


def _brokers(setup: Setup, destination: Destination) -> Brokers:
    brokers = Brokers(setup.source.cluster)
    brokers.find(setup.source.topic_names)
    destination.rows.ping()
    destination.ledger.ping()
    return brokers


def _starts(setup: Setup, brokers: Brokers, ledger: Store) -> list[Start]:
    """Where a run that starts now would begin, in every partition that is its own if it is alone."""
    topics, chosen = brokers.find(setup.source.topic_names), _chosen(setup)
    logs = {one: log for one, log in brokers.logs(topics).items() if chosen is None or one in chosen}
    positions = ledger.positions(setup.group).get(setup.group, []) if ledger.has_ledger() else []
    saved = [position for position in positions if position.partition in logs]
    for position in saved:
        check_identity(position, topics[position.partition.topic].id, brokers.cluster_id())
    at = brokers.offsets_at(logs, setup.starts.timestamp) if setup.starts.timestamp else {}
    by_pattern = any(map(is_pattern, setup.source.topic_names))
    beginning = Beginning(setup.starts, frozenset(topics), chosen, by_pattern)
    wish = beginning.wish(positions, frozenset(logs), logs, at, lambda _: True)
    offsets = {
        **{position.partition: position.next_offset for position in saved},
        **{one: first.offset for one, first in wish.first.items()},
        **{one: restart.offset for one, restart in wish.restarts.items()},
    }
    known = {position.partition for position in saved} - wish.restarts.keys()
    return [Start(one, offsets[one], log, one in known) for one, log in sorted(logs.items())]


def _chosen(setup: Setup) -> frozenset[Partition] | None:
    return setup.membership.chosen() if isinstance(setup.membership, Standalone) else None


def _sample(starts: Sequence[Start], setup: Setup) -> Plan:
    """What would be read first; where nothing is left to read, what was read last."""
    logs = {start.partition: start.log for start in starts}
    first = plan({start.partition: start.offset for start in starts}, logs, SAMPLE, setup.on_loss)
    if first.spans:
        return first
    each = max(1, SAMPLE // max(1, len(logs)))
    return plan({one: max(log.start, log.stop - each) for one, log in logs.items()}, logs, SAMPLE, setup.on_loss)


def _sampled(
    store: Store, spec: TableSpec, schemas: Mapping[str, pa.Schema], batch: Batch | None, most: int
) -> Sampled:
    schema = table_schema(spec, schemas[spec.name])
    columns = _columns(store, spec.name) if isinstance(store, SqlStore) else schema.names
    missing = [name for name in schema.names if name not in columns] if columns is not None else schema.names
    change = next((one for one in batch.changes if one.spec == spec), None) if batch else None
    rows = change.puts if change else schema.empty_table()
    shown = visible(rows).slice(0, most)
    types = _types(store, spec, schema)
    wanted = {name: types[name] for name in missing}
    deletes = change.deletes.num_rows if change else 0
    return Sampled(spec, schema, columns is not None, missing, shown, deletes, wanted)


def _types(store: Store, spec: TableSpec, schema: pa.Schema) -> dict[str, str]:
    """As the database has them; Redis has none."""
    if not isinstance(store, SqlStore):
        return {field.name: str(field.type) for field in schema}
    dialect = store.engine.dialect
    return {str(one.name): str(one.type.compile(dialect)) for one in columns_for(schema, spec.key)}


def _columns(store: SqlStore, table: str) -> list[str] | None:
    with store.look() as connection:
        return list(reflected(connection, table).columns.keys()) if has_table(connection, table) else None


@contextmanager
def _destination(setup: Setup) -> Iterator[Destination]:
    """SQLite makes a file of a database that is only looked at: one that is absent is looked for elsewhere."""
    with TemporaryDirectory() as elsewhere:
        urls = [_unmade(url, elsewhere) if url else None for url in (setup.store, setup.ledger)]
        with replace(setup, store=urls[0] or setup.store, ledger=urls[1]).destination() as destination:
            yield destination


def _unmade(url: str, elsewhere: str) -> str:
    file = sqlite_file(url)
    absent = file is not None and not file.exists() and file.parent.is_dir()
    return f"sqlite:///{elsewhere}/{file.name}" if file is not None and absent else url
