"""Separate caches for tests, filled from the real one so that nothing is downloaded twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallymark.local import jars
from tallymark.local.java import java_home
from tallymark.local.sandbox import Sandbox

SOURCES = str(Path(jars.__file__).parents[2])

FAKE_JAVA = """\
#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "{version}"'
exit 0
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox() as box:
        yield box


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Makes JAVA_HOME a fake that claims the given version."""

    def make(version: str = "17.0.1") -> Path:
        home = tmp_path / f"java-{version}"
        (home / "bin").mkdir(parents=True)
        executable = home / "bin" / "java"
        executable.write_text(FAKE_JAVA.format(version=version))
        executable.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        return home

    java_home.cache_clear()
    yield make
    java_home.cache_clear()


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with copies of the connector's jars that a test may damage."""
    real = jars.fetch("spark-kafka")
    cache = tmp_path / "cache"
    monkeypatch.setenv("TALLYMARK_CACHE", str(cache))
    for path, artifact in zip(real, jars.artifacts("spark-kafka"), strict=True):
        artifact.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, artifact.path)
    return cache


@pytest.fixture
def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([SOURCES, os.environ.get("PYTHONPATH", "")])}
