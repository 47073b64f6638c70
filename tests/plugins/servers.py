"""One set of real servers for the whole run, started in the controlling process so that parallel workers share it.

TALLYMARK_TEST_SERVERS may have the addresses of servers that run already. Unit tests start nothing.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tallymark.local.sandbox import Sandbox

ADDRESSES = "TALLYMARK_TEST_SERVERS"
"""Environment variable: JSON with the addresses of the servers ``kafka``, ``postgresql``, ``mariadb`` and ``redis``.

It may have ``mysql``, too.
"""
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


def _only_unit_tests(config: pytest.Config) -> bool:
    return bool(config.args) and all("tests/unit" in argument for argument in config.args)


@pytest.fixture(scope="session")
def servers() -> dict[str, str]:
    addresses: dict[str, str] = json.loads(os.environ[ADDRESSES])
    return addresses
