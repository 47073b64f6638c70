"""Dry run of a pipeline: reports what it would read, write, create and refuse, and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

import pyarrow as pa

from tallymark.core import drift
from tallymark.core.batch import BatchToCommit, fetched, refused
from tallymark.core.plan import Plan, check_identity, plan
from tallymark.core.records import DeadLetter
from tallymark.core.spans import Log, Partition
from tallymark.core.start import StartRules
from tallymark.core.tables import TableSpec, table_schema, visible
from tallymark.core.topics import is_pattern
from tallymark.core.unmatched import count_unmatched
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.membership import Standalone
from tallymark.run.commit import Destination
from tallymark.run.setup import Setup
from tallymark.spark.pipeline import Pipeline
from tallymark.stores.contract import Store
from tallymark.stores.opening import sqlite_file
from tallymark.stores.sql.columns import columns_for
from tallymark.stores.sql.store import SqlStore
from tallymark.stores.sql.tables import has_table, reflected

SAMPLE = 100
"""Maximum number of records that are read, over all partitions."""


@dataclass(frozen=True)
class SampledStart:
    """Where a run would begin to read a partition. ``saved``: the offset is a position of the ledger."""

    partition: Partition
    offset: int
    log: Log
    saved: bool


@dataclass(frozen=True)
class Sampled:
    """What would be written to a table. ``missing`` are the columns that would be added; all, if it does not exist."""

    spec: TableSpec
    schema: pa.Schema
    exists: bool
    missing: Sequence[str]
    rows: pa.Table
    deletes: int
    types: Mapping[str, str]
    """The database types of the ``missing`` columns."""


@dataclass(frozen=True)
class Trial:
    """The result of a dry run."""

    group: str
    starts: Sequence[SampledStart]
    records: int = 0
    tables: Sequence[Sampled] = ()
    letters: Sequence[DeadLetter] = ()
    unmatched: int | None = None
    """The number of records that give no row to any table; None if that is unknown, because functions merge records."""
    drift: Mapping[str, int] = field(default_factory=dict)
    """The number of records with each field that the schema does not name."""


def try_setup(setup: Setup) -> Trial:
    """Check topics, formats, store and positions of a group. Raises the error that a run would raise."""
    with _destination(setup) as destination:
        brokers = _brokers(setup, destination)
        setup.source.decoders(patience=0)
        return Trial(setup.group, _starts(setup, brokers, destination.ledger))


def try_pipeline(pipeline: Pipeline, rows: int = 10) -> Trial:
    """Like ``try_setup``, and apply the pipeline to a sample of records. Returns up to ``rows`` rows of each table."""
    setup = pipeline.setup
    with _destination(setup) as destination:
        job, brokers = pipeline._job(), _brokers(setup, destination)
        starts = _starts(setup, brokers, destination.ledger)
        sample = _sample(starts, setup)
        with pipeline._reading(destination, job.owner) as reader:
            specs, schemas = reader.tables, reader.schemas()
            destination.rows.check_tables(specs, schemas)
            reading = reader.read(sample.spans, "check") if sample else None
            if setup.on_drift == "fail" and reading is not None:
                drift.check(setup.group, reading.drift)
        if reading is None:
            tables = [_sampled(destination.rows, spec, schemas, None, rows) for spec in specs]
            return Trial(setup.group, starts, tables=tables)
        read = [spec for spec in specs if spec.name in reading.rows]
        letters = [*reading.dead_letters, *fetched(refused(reading, read), brokers.records)]
        batch = BatchToCommit.shaped("check", datetime.now(UTC), sample, reading, read, letters, drift_of=reader.drift)
        tables = [_sampled(destination.rows, spec, schemas, batch, rows) for spec in specs]
        records = sum(seen.records for seen in reading.seen.values())
        return Trial(setup.group, starts, records, tables, letters, count_unmatched(reading), _drift(batch))


def _drift(batch: BatchToCommit) -> dict[str, int]:
    """The fields of most records first."""
    found = Counter[str]()
    for fields in batch.drift().values():
        found.update({name: one.records for name, one in fields.items()})
    return dict(found.most_common())


def _brokers(setup: Setup, destination: Destination) -> Brokers:
    brokers = Brokers(setup.source.cluster)
    brokers.find(setup.source.topic_names)
    destination.rows.ping()
    destination.ledger.ping()
    return brokers


def _starts(setup: Setup, brokers: Brokers, ledger: Store) -> list[SampledStart]:
    """Return where a run that starts now, as the only member, would begin in each partition."""
    topics, chosen = brokers.find(setup.source.topic_names), _chosen(setup)
    logs = {partition: log for partition, log in brokers.logs(topics).items() if chosen is None or partition in chosen}
    positions = ledger.positions(setup.group).get(setup.group, []) if ledger.has_ledger() else []
    saved = [position for position in positions if position.partition in logs]
    for position in saved:
        check_identity(position, topics[position.partition.topic].id, brokers.cluster_id())
    at = brokers.offsets_at(logs, setup.starts.timestamp) if setup.starts.timestamp else {}
    by_pattern = any(map(is_pattern, setup.source.topic_names))
    rules = StartRules(setup.starts, frozenset(topics), chosen, by_pattern)
    changes = rules.decide(positions, frozenset(logs), logs, at, lambda _: True)
    offsets = {
        **{position.partition: position.next_offset for position in saved},
        **{partition: first.offset for partition, first in changes.first.items()},
        **{partition: restart.offset for partition, restart in changes.restarts.items()},
    }
    known = {position.partition for position in saved} - changes.restarts.keys()
    return [
        SampledStart(partition, offsets[partition], log, partition in known) for partition, log in sorted(logs.items())
    ]


def _chosen(setup: Setup) -> frozenset[Partition] | None:
    return setup.membership.chosen() if isinstance(setup.membership, Standalone) else None


def _sample(starts: Sequence[SampledStart], setup: Setup) -> Plan:
    """Plan the records that would be read first, or if none are left to read, the last records of the log."""
    logs = {start.partition: start.log for start in starts}
    first = plan({start.partition: start.offset for start in starts}, logs, SAMPLE, setup.on_loss)
    if first.spans:
        return first
    each = max(1, SAMPLE // max(1, len(logs)))
    return plan(
        {partition: max(log.start, log.stop - each) for partition, log in logs.items()}, logs, SAMPLE, setup.on_loss
    )


def _sampled(
    store: Store, spec: TableSpec, schemas: Mapping[str, pa.Schema], batch: BatchToCommit | None, most: int
) -> Sampled:
    schema = table_schema(spec, schemas[spec.name])
    columns = _columns(store, spec.name) if isinstance(store, SqlStore) else schema.names
    missing = [name for name in schema.names if name not in columns] if columns is not None else schema.names
    change = next((change for change in batch.changes if change.spec == spec), None) if batch else None
    rows = change.puts if change else schema.empty_table()
    shown = visible(rows).slice(0, most)
    types = column_types(store, spec, schema)
    added = {name: types[name] for name in missing}
    deletes = change.deletes.num_rows if change else 0
    return Sampled(spec, schema, columns is not None, missing, shown, deletes, added)


def column_types(store: Store, spec: TableSpec, schema: pa.Schema) -> dict[str, str]:
    """Return the database type of each column. Redis has no column types, so its types are those of Arrow."""
    if not isinstance(store, SqlStore):
        return {field.name: str(field.type) for field in schema}
    dialect = store.engine.dialect
    return {str(column.name): str(column.type.compile(dialect)) for column in columns_for(schema, spec.key)}


def _columns(store: SqlStore, table: str) -> list[str] | None:
    with store.look() as connection:
        return list(reflected(connection, table).columns.keys()) if has_table(connection, table) else None


@contextmanager
def _destination(setup: Setup) -> Iterator[Destination]:
    """Open the destination. A missing SQLite file is opened in a temporary directory, because opening creates it."""
    with TemporaryDirectory() as elsewhere:
        urls = [_temporary(url, elsewhere) if url else None for url in (setup.store, setup.ledger)]
        with replace(setup, store=urls[0] or setup.store, ledger=urls[1]).destination() as destination:
            yield destination


def _temporary(url: str, elsewhere: str) -> str:
    file = sqlite_file(url)
    absent = file is not None and not file.exists() and file.parent.is_dir()
    return f"sqlite:///{elsewhere}/{file.name}" if file is not None and absent else url
