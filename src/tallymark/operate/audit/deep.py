"""Compares the tables of a pipeline with Kafka: reads every offset again, and accounts for it in every table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka.admin import ConfigResource

from tallymark.core.plan import check_identity
from tallymark.core.spans import Partition, Span
from tallymark.errors import BadInput, TallymarkError
from tallymark.kafka.brokers import TIMEOUT, Brokers
from tallymark.operate.audit.accounts import accounts
from tallymark.operate.audit.compare import Compared
from tallymark.operate.audit.scope import Origins, Scope, chunks
from tallymark.operate.findings import Finding, judge
from tallymark.run.setup import new_owner
from tallymark.spark.pipeline import Pipeline
from tallymark.stores.contract import Moment, Snapshot
from tallymark.stores.opening import open_store

if TYPE_CHECKING:
    from tallymark.operate.audit.remake import Remaker

AT_ONCE = 1_000_000
"""Number of offsets that are read at a time."""
NO_PROVENANCE = "it was declared without provenance=True"
NO_COLUMNS = "it does not exist, or has no provenance columns yet"
MERGES = "its function merges records, so a row has no single record"

OnProgress = Callable[[int, int], None]


@dataclass
class Comparison:
    """The compared tables, and why others are ``left_out``. ``checks`` compare tallies with the records in Kafka."""

    tables: Sequence[Compared] = ()
    checks: Sequence[Finding] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        return sum(table.wrong for table in self.tables)


def compare(pipeline: Pipeline, at_once: int = AT_ONCE, on_progress: OnProgress = lambda _, __: None) -> Comparison:
    """Read the group's records again, run the present functions, and compare the result with the tables."""
    from tallymark.operate.audit.remake import Remaker
    from tallymark.spark.session import session

    setup = pipeline.setup
    if setup.ledger_url != setup.store:
        raise BadInput("--deep needs rows and ledger in one store, to read both in one snapshot; audit without --deep")
    done = Comparison(left_out={spec.name: NO_PROVENANCE for spec, _ in pipeline.tables if not spec.provenance})
    store = open_store(setup.store)
    try:
        _check_any(pipeline, done)
        with store.snapshot() as snapshot:
            moment = snapshot.moment(setup.group)
            origins = _origins(snapshot, pipeline, moment, done)
    finally:
        store.close()
    _check_any(pipeline, done)
    scopes = _scopes(moment, Brokers(setup.source.cluster))
    tables = [table for table in pipeline.tables if table[0].name in origins]
    remaker = Remaker(session(pipeline.spark), setup.source, tables, new_owner().run)
    done.left_out |= dict.fromkeys(remaker.merging(), MERGES)
    _check_any(pipeline, done)
    # The reader's, because a replica may have the key of its records.
    specs = [spec for spec in remaker.tables if spec.name not in done.left_out]
    done.tables = [Compared(spec, origins[spec.name], scopes) for spec in specs]
    held = _read(remaker, done.tables, scopes, at_once, on_progress)
    done.checks = [_counted(scope, held[partition]) for partition, scope in sorted(scopes.items()) if _is_whole(scope)]
    return done


def _check_any(pipeline: Pipeline, done: Comparison) -> None:
    if all(spec.name in done.left_out for spec, _ in pipeline.tables):
        why = "; ".join(f"table {name}: {reason}" for name, reason in done.left_out.items()) or "it has no table"
        raise BadInput(f"group {pipeline.group}: --deep finds no table to compare ({why})")


def _origins(snapshot: Snapshot, pipeline: Pipeline, moment: Moment, done: Comparison) -> dict[str, Origins]:
    by_table = {}
    for spec, _ in pipeline.tables:
        if spec.name in done.left_out:
            continue
        pieces = snapshot.origins(spec.name)
        if pieces is None:
            done.left_out[spec.name] = NO_COLUMNS
        else:
            by_table[spec.name] = Origins.of(pieces, [position.partition for position in moment.positions])
    return by_table


def _scopes(moment: Moment, brokers: Brokers) -> dict[Partition, Scope]:
    partitions = {position.partition for position in moment.positions}
    topics = brokers.topics(sorted({partition.topic for partition in partitions}))
    logs = brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})
    compacting = {name for name in topics if _compacts(brokers, name)}
    scopes = {}
    for account in accounts(moment):
        partition, log = account.position.partition, logs[account.position.partition]
        check_identity(account.position, log.topic_id, log.cluster_id)
        scopes[partition] = Scope(account, log, partition.topic in compacting)
    return scopes


def _compacts(brokers: Brokers, topic: str) -> bool:
    """Whether compaction may have removed records. True if permission to read the setting is missing."""
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
    try:
        (entries,) = brokers.ask(lambda admin: admin.describe_configs(resources, request_timeout=TIMEOUT)).values()
    except TallymarkError:
        return True
    return "compact" in str(entries["cleanup.policy"].value)


def _read(
    remaker: Remaker,
    tables: Sequence[Compared],
    scopes: Mapping[Partition, Scope],
    at_once: int,
    on_progress: OnProgress,
) -> Counter[Partition]:
    """Compare all records. Returns their number by partition."""
    held = Counter[Partition]()
    spans = [piece for scope in scopes.values() for piece in scope.pieces()]
    total, done = sum(map(len, spans)), 0
    dead = {partition: scope.account.letters for partition, scope in scopes.items()}
    on_progress(0, total)
    for chunk in chunks(spans, at_once):
        with remaker.records(chunk) as decoded:
            records = remaker.offsets(decoded)
            held.update({span.partition: _of(records, span).num_rows for span in chunk})
            for table in tables:
                made = remaker.made(table.spec.name, decoded, dead)
                for span in chunk:
                    table.compare(span, _of(records, span), _of(made, span))
        done += sum(map(len, chunk))
        on_progress(done, total)
    for table in tables:
        table.conclude()
    return held


def _is_whole(scope: Scope) -> bool:
    """Whether Kafka still holds every record of the tally."""
    return not scope.compacts and scope.log.start <= scope.account.span.start


def _counted(scope: Scope, held: int) -> Finding:
    tally = scope.account.position.tally
    wrong = held != tally.applied + tally.dead
    advice = "the tally was changed manually; reset to its first offset to start a new one" if wrong else None
    found, wanted = f"{held} in Kafka", f"{tally.applied} applied + {tally.dead} dead"
    return judge(str(scope.partition), "records", found, wanted, fail=advice)


def _of(rows: pa.Table, span: Span) -> pa.Table:
    """Return the rows of the span's partition."""
    in_partition = pc.and_(
        pc.equal(rows["topic"], span.partition.topic), pc.equal(rows["partition"], span.partition.number)
    )
    return rows.filter(in_partition).drop_columns(["topic", "partition"])
