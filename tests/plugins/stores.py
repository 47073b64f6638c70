"""Stores for tests: every test has its own empty database on the shared servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallymark.errors import SandboxError
from tallymark.local.sandbox import Sandbox
from tests.support import databases


def pytest_itemcollected(item: pytest.Item) -> None:
    # xdist reads the groups before any later hook could set them.
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if databases.MYSQL in getattr(item, "fixturenames", ()) or databases.MYSQL in parameters.values():
        item.add_marker(pytest.mark.xdist_group("mysql"))


@pytest.fixture
def database(servers: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """``database("postgresql")``: the URL of a new, empty database of that kind. SQLite has one per test."""
    made: list[str] = []

    def make(kind: str) -> str:
        if kind == databases.REDIS:
            return _with_own_prefix(servers)
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / 'store.db'}"
        made.append(databases.create(servers[kind]))
        return made[-1]

    yield make
    for url in made:
        databases.drop(url)


@pytest.fixture
def redis_url(servers: dict[str, str]) -> str:
    """A Redis store with its own key prefix on the shared server."""
    return _with_own_prefix(servers)


def _with_own_prefix(servers: dict[str, str]) -> str:
    return f"{servers[databases.REDIS]}?tag={uuid.uuid4().hex[:12]}"


@pytest.fixture(params=databases.KINDS)
def store_url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    """A new database of each kind that speaks SQL in turn."""
    return database(str(request.param))


@pytest.fixture(params=databases.EVERY)
def url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    """A new store of each kind in turn. A module for fewer kinds overrides this fixture."""
    return database(str(request.param))


@pytest.fixture(scope="session")
def mysql(servers: dict[str, str]) -> Iterator[str]:
    """The address of a real MySQL. If there is none, its tests are skipped with the reason."""
    if databases.MYSQL in servers:
        yield servers[databases.MYSQL]
        return
    with Sandbox() as box:
        try:
            server = box.mysql()
        except SandboxError as error:
            pytest.skip(f"no MySQL on this machine: {error}")
        yield server.url
