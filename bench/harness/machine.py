"""The facts of a machine and of all that runs on it: a rate without them means nothing."""

from __future__ import annotations

import os
import platform
from contextlib import closing, suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sqlalchemy import text

from bench import JARS
from tallymark.local.jars import LOCK, artifacts
from tallymark.stores.opening import open_sql

PACKAGES = {
    "tallymark": "tallymark",
    "Spark": "pyspark",
    "pyarrow": "pyarrow",
    "confluent-kafka": "confluent-kafka",
    "psycopg": "psycopg",
    "PyMySQL": "pymysql",
}
PEERS = {
    ("jdbc", "postgresql"): "PostgreSQL JDBC",
    ("jdbc", "mysql-connector-j"): "MySQL Connector/J",
    ("debezium", "debezium-connector-jdbc"): "Debezium JDBC sink",
    ("connect", "connect-runtime"): "Kafka Connect",
}


def machine() -> dict[str, str]:
    """Processor, cores, memory, kernel, and the day."""
    return {
        "processor": _fact("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
    }


def versions(*, sandbox: bool = True) -> dict[str, str]:
    """Of Python, the packages, and the jars that are pinned; of the broker only where it is the sandbox's."""
    found = {"Python": platform.python_version()}
    for name, package in PACKAGES.items():
        with suppress(PackageNotFoundError):
            found[name] = version(package)
    if sandbox:
        found["Kafka"] = _pinned("kafka", "kafka_2.13", LOCK)
    return found | {said: _pinned(set_name, name, JARS) for (set_name, name), said in PEERS.items()}


def database(url: str) -> dict[str, str]:
    """What the server says of itself."""
    with closing(open_sql(url)) as store, store.look() as connection:
        if store.dialect.name == "sqlite":
            return {"SQLite": str(connection.execute(text("SELECT sqlite_version()")).scalar_one())}
        said = str(connection.execute(text("SELECT version()")).scalar_one())
    if store.dialect.name == "postgresql":
        return {"PostgreSQL": said.split()[1]}
    return {"MariaDB" if "MariaDB" in said else "MySQL": said.split("-")[0]}


def sentence(facts: dict[str, str]) -> str:
    """In a line, for a page."""
    known = dict(facts)
    parts = [known.pop("processor", ""), f"{known.pop('cores', '?')} cores", known.pop("memory", "")]
    parts += [known.pop("kernel", ""), known.pop("date", "")]
    return (
        ", ".join(part for part in parts if part) + "; " + ", ".join(f"{name} {said}" for name, said in known.items())
    )


def _pinned(set_name: str, name: str, lock: Path) -> str:
    return next(one.version for one in artifacts(set_name, lock) if one.name == name)


def _memory() -> str:
    said = _fact("/proc/meminfo", "MemTotal")
    return f"{int(said.split()[0]) / (1 << 20):.0f} GB" if said else ""


def _fact(path: str, name: str) -> str:
    file = Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
