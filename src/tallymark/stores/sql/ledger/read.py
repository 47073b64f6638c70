"""Read positions from the SQL ledger, and build conditions and statements for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Table, bindparam, select, tuple_
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert

from tallymark.core.drift import from_json
from tallymark.core.spans import OUTCOMES, Owner, Partition, Position, Tally
from tallymark.stores.sql.ledger.tables import positions


def key_condition() -> list[ColumnElement[bool]]:
    """Match a position by bind parameters: the statement text is the same for every group and partition."""
    return [
        positions.c.group_name == bindparam("_group"),
        positions.c.topic == bindparam("_topic"),
        positions.c.partition_id == bindparam("_partition"),
    ]


def key_parameters(group: str, partition: Partition) -> dict[str, Any]:
    return {"_group": group, "_topic": partition.topic, "_partition": partition.number}


def insert_if_absent(connection: Connection, table: Table) -> Insert:
    """Return an INSERT that keeps an existing row. Not MySQL's INSERT IGNORE, which hides other errors too."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    first = next(iter(table.primary_key.columns))
    return mysql.insert(table).on_duplicate_key_update({first.name: first})


@contextmanager
def by_driver(connection: Connection, statement: str) -> Iterator[Any]:
    """Yield a driver cursor in the same transaction, for what SQLAlchemy can't do or does too slowly.

    Driver errors are raised as SQLAlchemy's, which name the statement.
    """
    driver = connection.connection.driver_connection
    assert driver is not None
    try:
        with driver.cursor() as cursor:
            yield cursor
    except connection.dialect.loaded_dbapi.Error as error:
        raise as_sqlalchemy(error, connection, statement) from error


def as_sqlalchemy(error: Any, connection: Connection, statement: str) -> DBAPIError:
    """Return SQLAlchemy's form of an error of the driver, as if SQLAlchemy had executed the statement."""
    errors, driver = connection.dialect.loaded_dbapi.Error, connection.connection.driver_connection
    gone = connection.dialect.is_disconnect(error, driver, None)
    if gone:
        # Without this the rollback would fail too, and its error would replace this error.
        connection.invalidate(error)
    found = DBAPIError.instance(statement, None, error, errors, connection_invalidated=gone, dialect=connection.dialect)
    assert isinstance(found, DBAPIError)
    return found


def read_positions(connection: Connection, group: str, partitions: Iterable[Partition]) -> dict[Partition, Position]:
    """Return the positions of the partitions that have one."""
    return _select(connection, group, partitions, lock=False)


def lock_positions(connection: Connection, group: str, partitions: Iterable[Partition]) -> dict[Partition, Position]:
    """Lock the positions until the transaction ends, and return them. Waits for commits that move them."""
    return _select(connection, group, partitions, lock=True)


def lock_group(connection: Connection, group: str) -> dict[Partition, Position]:
    """Lock all positions of a group until the transaction ends, and return them."""
    query = select(positions).where(positions.c.group_name == group).with_for_update()
    ordered = query.order_by(positions.c.topic, positions.c.partition_id)
    return {position.partition: position for position in map(_position, connection.execute(ordered))}


def read_group(connection: Connection, group: str | None = None) -> dict[str, list[Position]]:
    """Return the positions of one group or of all groups."""
    query = select(positions).order_by(positions.c.group_name, positions.c.topic, positions.c.partition_id)
    found: dict[str, list[Position]] = {}
    for row in connection.execute(query if group is None else query.where(positions.c.group_name == group)):
        found.setdefault(row.group_name, []).append(_position(row))
    return found


def _select(
    connection: Connection, group: str, partitions: Iterable[Partition], *, lock: bool
) -> dict[Partition, Position]:
    keys = [(partition.topic, partition.number) for partition in sorted(partitions)]
    query = (
        select(positions)
        .where(positions.c.group_name == group, tuple_(positions.c.topic, positions.c.partition_id).in_(keys))
        .order_by(positions.c.topic, positions.c.partition_id)
    )
    rows = connection.execute(query.with_for_update() if lock else query)
    return {position.partition: position for position in map(_position, rows)}


def _position(row: Row[Any]) -> Position:
    owner = Owner(row.owner, row.owner_host, row.owned_since) if row.owner else None
    return Position(
        partition=Partition(row.topic, row.partition_id),
        next_offset=row.next_offset,
        first_offset=row.first_offset,
        topic_id=row.topic_id,
        cluster_id=row.cluster_id,
        epoch=row.epoch,
        owner=owner,
        tally=Tally(*(getattr(row, name) for name in OUTCOMES)),
        record_time=row.record_time,
        updated_at=row.updated_at,
        leader_epoch=row.leader_epoch,
        drift=from_json(row.drift),
    )
