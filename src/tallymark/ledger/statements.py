"""Pieces of SQL that several ledger operations share, the one that the dialects spell differently, and the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, bindparam
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert

from tallymark.ledger.tables import positions
from tallymark.spans import Partition


def key_condition() -> list[ColumnElement[bool]]:
    """One position, by parameters: the same statement text for every group and partition."""
    return [
        positions.c.group_name == bindparam("_group"),
        positions.c.topic == bindparam("_topic"),
        positions.c.partition_id == bindparam("_partition"),
    ]


def key_parameters(group: str, partition: Partition) -> dict[str, Any]:
    return {"_group": group, "_topic": partition.topic, "_partition": partition.number}


def insert_if_absent(connection: Connection, table: Table) -> Insert:
    """INSERT that leaves a row alone that is there already. (MySQL's INSERT IGNORE would hide other errors too.)"""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    first = next(iter(table.primary_key.columns))
    return mysql.insert(table).on_duplicate_key_update({first.name: first})


@contextmanager
def by_driver(connection: Connection, statement: str) -> Iterator[Any]:
    """A cursor of the driver's own in the same transaction, for what SQLAlchemy can't do or takes too long over.

    Its errors are raised as SQLAlchemy's, which name the statement.
    """
    errors, driver = connection.dialect.loaded_dbapi.Error, connection.connection.driver_connection
    assert driver is not None
    try:
        with driver.cursor() as cursor:
            yield cursor
    except errors as error:
        gone = connection.dialect.is_disconnect(error, driver, None)
        if gone:
            # Or the rollback would fail as well, and its words would take the place of these.
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, errors, connection_invalidated=gone, dialect=connection.dialect
        ) from error
