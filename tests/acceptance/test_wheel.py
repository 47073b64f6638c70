"""The built wheel works in an empty environment, with the newest and with the lowest versions that it allows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tallymark.local.jars import artifacts, fetch
from tests.support.command import REPOSITORY
from tests.support.databases import query

ORDERS = [{"id": n, "customer": "ada", "amount": n / 2, "at": "2026-01-31T12:00:00Z"} for n in range(100)]


@dataclass(frozen=True)
class Environment:
    home: Path
    cache: Path
    constraints: Path

    def install(self, what: str) -> None:
        pip = self.home / "bin" / "pip"
        self.done(pip, "install", "--quiet", "--disable-pip-version-check", "--constraint", self.constraints, what)

    def versions(self) -> dict[str, Version]:
        listed = json.loads(self.done(self.home / "bin" / "pip", "list", "--format", "json"))
        return {canonicalize_name(one["name"]): Version(one["version"]) for one in listed}

    def tallymark(self, *arguments: str | Path, code: int = 0, **variables: str) -> str:
        return self.done(self.home / "bin" / "tallymark", *arguments, code=code, **variables)

    def done(self, *command: str | Path, code: int = 0, **variables: str) -> str:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment = {**kept, "TALLYMARK_CACHE": str(self.cache), "COLUMNS": "200", **variables}
        ran = subprocess.run(
            command, env=environment, cwd=self.home, capture_output=True, text=True, timeout=900, check=False
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stdout if code == 0 else ran.stderr


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    """An empty environment, and a cache that lacks a jar of each set, so that there is something to fetch."""
    home, cache = tmp_path / "venv", tmp_path / "cache"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    asked = subprocess.run(
        [home / "bin" / "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "maven-artifact"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        pytest.skip(f"no package registry can be reached: {asked.stderr.strip().splitlines()[-1]}")
    for name in ("kafka", "spark-kafka", "postgresql"):
        held = list(zip(artifacts(name), fetch(name), strict=True))
        smallest = min(held, key=lambda one: one[1].stat().st_size)
        for artifact, path in held:
            if len(held) == 1 or artifact != smallest[0]:
                (cache / "jars" / artifact.group).mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, cache / "jars" / artifact.group / path.name)
    made = Environment(home, cache, tmp_path / "constraints.txt")
    yield made
    if (home / "bin" / "tallymark").exists():
        made.tallymark("sandbox", "down")


@pytest.mark.faults
@pytest.mark.timeout(1500)  # most of it is the installation of Spark, which pip builds the first time
@pytest.mark.parametrize("lowest", [False, True], ids=["newest", "lowest"])
def test_what_the_readme_shows_runs_for_a_new_user(environment: Environment, tmp_path: Path, lowest: bool) -> None:
    wheel = _wheel(tmp_path)
    bounds = _lower_bounds(wheel) if lowest else {}
    environment.constraints.write_text("".join(f"{name}=={version}\n" for name, version in bounds.items()))
    environment.install(str(wheel))
    file = tmp_path / "orders.py"
    file.write_text(_readme("localhost:9092", "postgresql://localhost/shop"))
    assert "pip install 'tallymark[spark]'" in environment.tallymark("run", file, code=2)
    assert "pip install 'tallymark[spark,sandbox]'" in environment.tallymark("demo", code=2)
    assert "pip install 'tallymark[sandbox]'" in environment.tallymark("sandbox", "up", code=2)

    environment.install(f"{wheel}[{'all' if lowest else 'spark,postgresql,sandbox'}]")
    assert environment.versions().items() >= bounds.items()
    up = json.loads(environment.tallymark("sandbox", "up", "--with", "postgresql", "--json"))
    brokers, store = (next(one["url"] for one in up["services"] if one["name"] == name) for name in KINDS)
    records = tmp_path / "orders.jsonl"
    records.write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
    environment.tallymark("produce", "orders", "--create", "4", "--from-file", records, "--brokers", brokers)
    file.write_text(_readme(brokers, store))
    environment.tallymark("run", file, "--until", "caught-up")
    assert query(store, "SELECT count(*), sum(amount) FROM orders") == [(100, 2475.0)]
    assert environment.tallymark("status", "--file", file).startswith("orders-to-shop is stopped")

    demo = json.loads(environment.tallymark("demo", "--records", "4000", "--kills", "1", "--json"))
    assert (demo["applied"], demo["dead"], demo["missing"], demo["duplicated"]) == (3960, 40, 0, 0)


KINDS = ("kafka", "postgresql")


def _wheel(directory: Path) -> Path:
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (made,) = directory.glob("tallymark-*.whl")
    return made


def _lower_bounds(wheel: Path) -> dict[str, Version]:
    """The lowest version of everything that the wheel requires here, with all extras."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = message_from_bytes(files.read(metadata)).get_all("Requires-Dist", [])
    bounds: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": "all"}):
            (lowest,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
            name = canonicalize_name(requirement.name)
            bounds[name] = max(lowest, bounds.get(name, lowest))
    return bounds


def _readme(brokers: str, store: str) -> str:
    """The pipeline under "A pipeline", with these addresses."""
    text = (REPOSITORY / "README.md").read_text()
    code = re.search(r"## A pipeline\n\n```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    return code[1].replace("localhost:9092", brokers).replace("postgresql://localhost/shop", store)


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(_wheel(tmp_path)) as files:
        held = {Path(name) for name in files.namelist() if ".dist-info/" not in name}
    source = REPOSITORY / "src"
    there = {path.relative_to(source) for path in (source / "tallymark").rglob("*") if path.is_file()}
    assert held == {path for path in there if "__pycache__" not in path.parts}
    assert {path.name for path in held if path.suffix != ".py"} == {
        *("py.typed", "jars.lock", "log4j2.properties", "commit.lua"),
        *("Decoder.java", "JsonDecoder.java", "DebeziumDecoder.java", "AvroDecoder.java", "ProtobufDecoder.java"),
        *("Content.java", "Names.java", "NamingDecoder.java", "RecordDecoder.java"),
        *("Counts.java", "LongSums.java"),
    }
