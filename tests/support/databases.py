"""Separate databases for tests on the shared servers."""

from __future__ import annotations

import uuid
from functools import lru_cache
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.engine import make_url

KINDS = ("sqlite", "postgresql", "mariadb")
REDIS = "redis"
EVERY = (*KINDS, REDIS)
MYSQL = "mysql"
"""For cases in which MySQL differs from MariaDB. It is started on first use, because that takes 10 s."""
DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}


def create(server_url: str) -> str:
    """A new database on this server; returns its URL."""
    name = f"tm_{uuid.uuid4().hex[:12]}"
    administer(server_url, f"CREATE DATABASE {name}")
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop(url: str) -> None:
    force = " WITH (FORCE)" if url.startswith("postgresql") else ""
    administer(url, f"DROP DATABASE {make_url(url).database}{force}")


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    """Query a store without tallymark."""
    with _engine(url).connect() as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


def execute(url: str, *statements: str) -> None:
    """Change a store without tallymark."""
    with _engine(url).begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _engine(url: str, **options: str) -> Engine:
    # SQLAlchemy resolves a relative path when it makes an engine; tests change the directory.
    return _engine_at(url, Path.cwd() if url.startswith("sqlite") else None, **options)


@lru_cache(maxsize=64)
def _engine_at(url: str, _directory: Path | None, **options: str) -> Engine:
    """Keeps no connections; a new engine would query the server's version and settings each time.

    Does not use TLS: PyMySQL would load all certificate authorities for each connection, which takes 30 ms.
    """
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    arguments = {"ssl_disabled": True} if backend == MYSQL else {}
    target = parsed.set(drivername=DRIVERS[backend])
    return create_engine(target, poolclass=NullPool, connect_args=arguments, **options)


def tables(url: str) -> set[str]:
    """The names of all tables and views."""
    source = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')",
        "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
        "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
    }
    return {str(name) for (name,) in query(url, source[url.split(":")[0].split("+")[0]])}


def administer(url: str, statement: str) -> None:
    parsed = make_url(url)
    home = {"postgresql": "postgres", "mysql": "mysql"}[parsed.get_backend_name()]
    server = parsed.set(database=home).render_as_string(hide_password=False)
    with _engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(statement))
