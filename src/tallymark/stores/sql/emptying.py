"""Counts and deletes the rows of the tables of a group, for a reset that starts over."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter

from sqlalchemy import Connection, delete, func, inspect, select, table

from tallymark.stores.sql.deletions import name_of
from tallymark.stores.sql.tables import has_table


def row_counts(connection: Connection, names: Collection[str]) -> dict[str, int]:
    """Return the number of rows of each of these tables that exists."""
    there = [name for name in sorted(names) if has_table(connection, name)]
    return {name: connection.scalar(select(func.count()).select_from(table(name))) or 0 for name in there}


def empty_tables(connection: Connection, names: Collection[str]) -> None:
    """Delete all rows of those of these tables that exist, and their deletions, in the connection's transaction."""
    every = sorted({*names, *map(name_of, names)})
    for name in _referring_first(connection, [name for name in every if has_table(connection, name)]):
        empty_table(connection, name)


def empty_table(connection: Connection, name: str) -> None:
    """Delete all rows of a table.

    Not by TRUNCATE: MySQL would commit the transaction. On PostgreSQL it is transactional, but needs a privilege of its
    own and a lock that waits for every reader and blocks all new ones until the positions are committed.
    """
    connection.execute(delete(table(name)))


def _referring_first(connection: Connection, names: Collection[str]) -> Iterator[str]:
    """Yield the tables in an order that foreign keys between them accept, if there is one."""
    catalog, referring = inspect(connection), TopologicalSorter[str]()
    for name in names:
        referring.add(name)
        for key in catalog.get_foreign_keys(name):
            if key["referred_table"] in names and key["referred_table"] != name:
                referring.add(key["referred_table"], name)
    try:
        yield from list(referring.static_order())
    except CycleError:
        yield from names
