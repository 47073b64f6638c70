"""A jar counts only with the locked hash, however the registry and other processes behave."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark import jars
from tallymark.errors import SandboxError

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "PAUSES", (0.0, 0.0))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the fake Ivy serves: one folder per try."""
    path = tmp_path / "served"
    path.mkdir()
    monkeypatch.setenv("SERVED", str(path))
    return path


def serve(served: Path, attempt: int, artifact: jars.Artifact, content: bytes) -> None:
    folder = served / str(attempt) / artifact.group / artifact.name / "jars"
    folder.mkdir(parents=True)
    (folder / f"{artifact.name}-{artifact.version}.jar").write_bytes(content)


def calls(served: Path) -> int:
    log = served / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize(("name", "count"), [("kafka", 46), ("spark-kafka", 4), ("postgresql", 1), ("mariadb", 1)])
def test_the_lock_names_every_set(name: str, count: int) -> None:
    found = jars.artifacts(name)
    assert len(found) == len(set(found)) == count


def test_the_lock_is_read_line_by_line() -> None:
    text = f"# why\n\none g.h:a-b:1.0 {'0' * 64}  # because\none g:c:2 {'1' * 64}\ntwo g:d:3 {'2' * 64}\n"
    sets = jars.parse_lock(text)
    assert {name: [str(a) for a in found] for name, found in sets.items()} == {
        "one": ["g.h:a-b:1.0", "g:c:2"],
        "two": ["g:d:3"],
    }


@pytest.mark.parametrize("line", ["one g:a:1", f"one g:a {'0' * 64}", "one g:a:1 abc", "word"])
def test_a_bad_line_of_the_lock_is_named(line: str) -> None:
    with pytest.raises(SandboxError, match=r"line 2 of jars\.lock"):
        jars.parse_lock(f"# first\n{line}\n")


def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SandboxError, match=r"'mysql'.*kafka, spark-kafka, postgresql, mariadb"):
        jars.fetch("mysql")


def test_a_complete_cache_needs_neither_java_nor_network(
    private_cache: Path, fake_java: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    paths = jars.fetch("spark-kafka")
    assert all(path.is_relative_to(private_cache) and path.exists() for path in paths)


def test_files_are_hashed_once(private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.fetch("spark-kafka")
    monkeypatch.setattr(jars, "_is_right", lambda *_: pytest.fail("hashed again"))
    jars.fetch("spark-kafka")


def test_a_damaged_file_is_replaced_by_a_right_one(private_cache: Path, fake_java: Make, served: Path) -> None:
    fake_java()
    damaged = jars.artifacts("spark-kafka")[3]
    jars.fetch("spark-kafka")
    right = damaged.path.read_bytes()
    serve(served, 1, damaged, right)
    damaged.path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))

    jars.fetch("spark-kafka")

    assert calls(served) == 1
    assert hashlib.sha256(damaged.path.read_bytes()).hexdigest() == damaged.sha256


def test_a_file_that_came_with_the_wrong_hash_is_never_kept(private_cache: Path, fake_java: Make, served: Path) -> None:
    fake_java()
    wanted = jars.artifacts("spark-kafka")[3]
    wanted.path.unlink()
    for attempt in (1, 2):
        serve(served, attempt, wanted, b"not this")

    with pytest.raises(SandboxError, match=r"commons-pool2:2\.12\.0 .*wrong sha256"):
        jars.fetch("spark-kafka")

    assert calls(served) == 2
    assert not wanted.path.exists()
    assert not list(private_cache.rglob("*.verified"))


def test_a_file_that_ivy_lost_is_asked_for_again(private_cache: Path, fake_java: Make, served: Path) -> None:
    fake_java()
    lost = jars.artifacts("spark-kafka")[3]
    serve(served, 2, lost, lost.path.read_bytes())
    lost.path.unlink()

    jars.fetch("spark-kafka")

    assert calls(served) == 2
    assert lost.path.exists()
    assert not list(private_cache.rglob(".fetch-*"))


def test_processes_that_miss_the_same_file_fetch_it_once(
    private_cache: Path, fake_java: Make, served: Path, child_environment: dict[str, str]
) -> None:
    home = fake_java()
    missing = jars.artifacts("spark-kafka")[3]
    serve(served, 1, missing, missing.path.read_bytes())
    shutil.copytree(served / "1", served / "2")
    missing.path.unlink()

    script = "from tallymark.jars import fetch; print(len(fetch('spark-kafka')))"
    environment = {**child_environment, "JAVA_HOME": str(home), "TALLYMARK_CACHE": str(private_cache)}
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]

    assert [child.communicate(timeout=30)[0] for child in children] == ["4\n"] * 3
    assert calls(served) == 1
