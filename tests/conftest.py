"""One set of real servers for the whole run; every test has its own topic, group and database.

The servers start in the controlling process, so that parallel workers share them, unless TALLYMARK_TEST_SERVERS has the
addresses of servers that run already. Tests that need Spark are kept on one worker (``--dist loadgroup``), so that
there is one session.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tallymark.errors import SandboxError
from tallymark.local.sandbox import Sandbox
from tests.support import databases
from tests.support.kafka import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDRESSES = "TALLYMARK_TEST_SERVERS"
"""Environment variable: JSON with the addresses of the servers ``kafka``, ``postgresql``, ``mariadb`` and ``redis``.

It may have ``mysql``, too.
"""
# A run that fails says something about the change, not about its luck. CONTRIBUTING tells how to try other examples.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")
_box: Sandbox | None = None


def pytest_configure(config: pytest.Config) -> None:
    # Background processes of a shell without job control ignore Ctrl-C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (
        hasattr(config, "workerinput")
        or config.option.collectonly
        or _only_unit_tests(config)
        or ADDRESSES in os.environ
    ):
        return
    global _box
    _box = Sandbox()
    with ThreadPoolExecutor() as pool:
        kafka, postgresql, mariadb = pool.submit(_box.kafka), pool.submit(_box.postgresql), pool.submit(_box.mariadb)
        redis = pool.submit(_box.valkey)
        addresses = {
            "kafka": kafka.result().brokers,
            "postgresql": postgresql.result().url,
            "mariadb": mariadb.result().url,
            "redis": redis.result().url,
        }
    os.environ[ADDRESSES] = json.dumps(addresses)


def pytest_unconfigure() -> None:
    if _box is not None:
        _box.close()


def pytest_itemcollected(item: pytest.Item) -> None:
    # As early as this: xdist looks for the groups before any other hook could set them.
    parameters = _parameters(item)
    for mark in item.iter_markers("faults_where"):
        if all(_is_one_of(parameters[name], wanted) for name, wanted in mark.kwargs.items()):
            item.add_marker(pytest.mark.faults)
    if "mysql" in getattr(item, "fixturenames", ()) or databases.MYSQL in parameters.values():
        item.add_marker(pytest.mark.xdist_group("mysql"))
    if "spark" in getattr(item, "fixturenames", ()):
        # Two Spark sessions share the tests, one in each of two workers.
        name = "spark" if item.path.stem.startswith(("test_spark", "test_secured")) else "spark too"
        item.add_marker(pytest.mark.xdist_group(name))


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _is_one_of(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted


def _only_unit_tests(config: pytest.Config) -> bool:
    return bool(config.args) and all("tests/unit" in argument for argument in config.args)


@pytest.fixture(scope="session")
def servers() -> dict[str, str]:
    addresses: dict[str, str] = json.loads(os.environ[ADDRESSES])
    return addresses


@pytest.fixture(scope="session")
def brokers(servers: dict[str, str]) -> str:
    return servers["kafka"]


@pytest.fixture(scope="session")
def topics(brokers: str) -> Topics:
    """Creates topics and writes to them."""
    return Topics(brokers)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def database(servers: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """``database("postgresql")``: the URL of a new, empty database of that kind."""
    made: list[str] = []

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / 'store.db'}"
        made.append(databases.create(servers[kind]))
        return made[-1]

    yield make
    for url in made:
        databases.drop(url)


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


@pytest.fixture
def redis_url(servers: dict[str, str]) -> str:
    """A Redis store with its own key prefix on the shared server."""
    return f"{servers['redis']}?tag={uuid.uuid4().hex[:12]}"


@pytest.fixture(params=databases.KINDS)
def store_url(request: pytest.FixtureRequest, database: Callable[[str], str]) -> str:
    """A new database of each kind in turn."""
    kind: Any = request.param
    return database(kind)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tallymark.spark.session import session

    running = session({"spark.master": "local[2]"})
    yield running
    running.stop()
