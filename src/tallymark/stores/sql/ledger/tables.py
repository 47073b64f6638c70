"""The tables of the ledger, in the database that holds the rows.

All names start with ``tallymark_``; offsets are BIGINT; a position is the next offset to read; times are UTC. Changes
to this schema only add to it, and increase ``VERSION``; a new table or column says in which version it was added.
"""

from __future__ import annotations

from datetime import UTC, datetime
from textwrap import dedent
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

VERSION = 6
SINCE = "since"
"""The key of ``info`` that holds the version that added a table or column; version 1 without it."""
VIEW = "tallymark_status"


class UtcTime(TypeDecorator[datetime]):
    """A point in time: aware UTC in Python; timestamptz, DATETIME(6) or ISO text in the database."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[datetime]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def _name(length: int) -> TypeEngine[str]:
    """Return a case-sensitive type: for MySQL's default collations the topics ``Orders`` and ``orders`` are equal."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def _bytes() -> TypeEngine[bytes]:
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text() -> TypeEngine[str]:
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, default=0)


def _serial() -> Column[int]:
    # SQLite generates ids only for a column of type INTEGER.
    return Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True)


metadata = MetaData()
_options: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}

schema = Table(
    "tallymark_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", UtcTime, nullable=False),
    **_options,
)

positions = Table(
    "tallymark_positions",
    metadata,
    Column("group_name", _name(255), primary_key=True),
    Column("topic", _name(249), primary_key=True),
    Column("partition_id", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    _count("applied"),
    _count("dead"),
    _count("skipped"),
    _count("lost"),
    _count("absent"),
    Column("record_time", UtcTime),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", _name(64)),
    Column("owner_host", _name(255)),
    Column("owned_since", UtcTime),
    Column("topic_id", _name(64), nullable=False),
    Column("cluster_id", _name(64), nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("leader_epoch", Integer, info={SINCE: 4}),
    Column("drift", _text(), info={SINCE: 6}),
    **_options,
)

batches = Table(
    "tallymark_batches",
    metadata,
    _serial(),
    Column("group_name", _name(255), nullable=False),
    Column("batch", _name(64), nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("committed_at", UtcTime, nullable=False),
    _count("applied"),
    _count("dead"),
    _count("skipped"),
    _count("lost"),
    _count("absent"),
    Column("table_rows", _text(), nullable=False),
    Column("spans", _text(), nullable=False),
    Index("tallymark_batches_by_time", "group_name", "committed_at"),
    **_options,
)

exceptions = Table(
    "tallymark_exceptions",
    metadata,
    _serial(),
    Column("group_name", _name(255), nullable=False),
    Column("topic", _name(249), nullable=False),
    Column("partition_id", Integer, nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("stop_offset", BigInteger, nullable=False),
    Column("kind", _name(16), nullable=False),
    Column("reason", _text(), nullable=False),
    Column("batch", _name(64)),
    Column("recorded_at", UtcTime, nullable=False),
    Index("tallymark_exceptions_by_group", "group_name", "topic", "partition_id"),
    **_options,
)

dead_letters = Table(
    "tallymark_dead_letters",
    metadata,
    _serial(),
    Column("group_name", _name(255), nullable=False),
    Column("topic", _name(249), nullable=False),
    Column("partition_id", Integer, nullable=False),
    Column("record_offset", BigInteger, nullable=False),
    Column("record_time", UtcTime),
    Column("record_key", _bytes()),
    Column("record_value", _bytes()),
    Column("headers", _text()),
    Column("table_name", _name(255)),
    Column("error", _text(), nullable=False),
    Column("state", _name(16), nullable=False, default="dead"),
    Column("batch", _name(64), nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    Column("changed_at", UtcTime, info={SINCE: 3}),
    Column("changed_by", _name(255), info={SINCE: 3}),
    Index("tallymark_dead_letters_by_record", "group_name", "topic", "partition_id", "record_offset"),
    **_options,
)

groups = Table(
    "tallymark_groups",
    metadata,
    Column("group_name", _name(255), primary_key=True),
    Column("desired_state", _name(16), nullable=False, default="running"),
    Column("reason", _text()),
    Column("changed_by", _name(255)),
    Column("changed_at", UtcTime, nullable=False),
    **_options,
)

rebalances = Table(
    "tallymark_rebalances",
    metadata,
    _serial(),
    Column("group_name", _name(255), nullable=False),
    Column("happened_at", UtcTime, nullable=False),
    Column("kind", _name(16), nullable=False),
    Column("run", _name(64), nullable=False),
    Column("host", _name(255), nullable=False),
    Column("seconds", Double, nullable=False),
    Column("gained", _text(), nullable=False),
    Column("lost", _text(), nullable=False),
    Index("tallymark_rebalances_by_time", "group_name", "happened_at"),
    info={SINCE: 2},
    **_options,
)

runs = Table(
    "tallymark_runs",
    metadata,
    Column("group_name", _name(255), primary_key=True),
    Column("run", _name(64), primary_key=True),
    Column("host", _name(255), nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("error", _text()),
    info={SINCE: 3},
    **_options,
)

tables = Table(
    "tallymark_tables",
    metadata,
    Column("group_name", _name(255), primary_key=True),
    Column("table_name", _name(255), primary_key=True),
    Column("write_mode", _name(16), primary_key=True),
    Column("store", _text()),
    Column("recorded_at", UtcTime, nullable=False),
    info={SINCE: 5},
    **_options,
)

RECORD_AGE = {
    "postgresql": "EXTRACT(EPOCH FROM now() - p.record_time)",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, p.record_time, UTC_TIMESTAMP(6)) / 1000000",
    "sqlite": "(julianday('now') - julianday(p.record_time)) * 86400",
}
NOW = {"postgresql": "now()", "mysql": "UTC_TIMESTAMP(6)", "sqlite": "CURRENT_TIMESTAMP"}


def version_row(dialect: str) -> str:
    """Return the INSERT statement that completes a ledger of this version."""
    return f"INSERT INTO {schema.name} (version, applied_at) VALUES ({VERSION}, {NOW[dialect]})"


def status_view(dialect: str) -> str:
    """Return the CREATE VIEW statement for progress in plain SQL. Lag needs Kafka: see ``tallymark status``."""
    return dedent(f"""\
        CREATE VIEW {VIEW} AS
        SELECT p.group_name, COALESCE(g.desired_state, 'running') AS desired_state, g.reason,
               p.topic, p.partition_id, p.next_offset, p.record_time,
               {RECORD_AGE[dialect]} AS record_age_seconds,
               p.applied, p.dead, p.skipped, p.lost, p.absent,
               p.applied + p.dead + p.skipped + p.lost + p.absent = p.next_offset - p.first_offset AS balanced,
               p.owner, p.owner_host, p.owned_since, p.epoch, p.updated_at
        FROM tallymark_positions p LEFT JOIN tallymark_groups g ON g.group_name = p.group_name""")
