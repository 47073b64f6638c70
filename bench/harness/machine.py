"""The facts of a machine and of all that runs on it: a rate without them means nothing."""

from __future__ import annotations

import os
import platform
from contextlib import closing, suppress
from datetime import UTC, datetime
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
    "PostgreSQL JDBC": ("jdbc", "postgresql"),
    "MySQL Connector/J": ("jdbc", "mysql-connector-j"),
    "Debezium JDBC sink": ("debezium", "debezium-connector-jdbc"),
    "Kafka Connect": ("connect", "connect-runtime"),
}


def facts(*stores: str, sandbox: bool = True) -> dict[str, str]:
    """Processor, cores, memory, kernel, day, and versions; that of the broker only if it is the sandbox's."""
    found = {
        "processor": _line_of("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "Python": platform.python_version(),
    }
    for name, package in PACKAGES.items():
        with suppress(PackageNotFoundError):
            found[name] = version(package)
    if sandbox:
        found["Kafka"] = _pinned("kafka", "kafka_2.13", LOCK)
    found |= {name: _pinned(*artifact, JARS) for name, artifact in PEERS.items()}
    for url in stores:
        found |= _database(url)
    return found


def sentence(facts: dict[str, str]) -> str:
    """The facts in a line, for a page."""
    known = dict(facts)
    parts = [known.pop("processor"), f"{known.pop('cores')} cores", known.pop("memory"), known.pop("kernel")]
    first = ", ".join(part for part in [*parts, known.pop("date")] if part)
    return f"{first}; {', '.join(f'{name} {value}' for name, value in known.items())}"


def _database(url: str) -> dict[str, str]:
    """What the server says of itself."""
    with closing(open_sql(url)) as store, store.look() as connection:
        dialect = store.dialect.name
        function = "sqlite_version" if dialect == "sqlite" else "version"
        answer = str(connection.execute(text(f"SELECT {function}()")).scalar_one())
    if dialect == "sqlite":
        return {"SQLite": answer}
    if dialect == "postgresql":
        return {"PostgreSQL": answer.split()[1]}
    return {"MariaDB" if "MariaDB" in answer else "MySQL": answer.split("-")[0]}


def _pinned(set_name: str, name: str, lock: Path) -> str:
    return next(one.version for one in artifacts(set_name, lock) if one.name == name)


def _memory() -> str:
    total = _line_of("/proc/meminfo", "MemTotal")
    return f"{int(total.split()[0]) / (1 << 20):.0f} GB" if total else ""


def _line_of(path: str, name: str) -> str:
    file = Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
