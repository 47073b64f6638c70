"""A jar is used only with the locked hash, however the registry and other processes behave."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tallymark.errors import SandboxError
from tallymark.local import jars
from tallymark.local.sandbox.server import free_port


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "PAUSES", (0.0, 0.0))


class Registry:
    """A Maven repository on loopback. Every file has a list of responses, one for each request."""

    def __init__(self) -> None:
        self.answers: dict[str, list[int | bytes]] = {}
        self.asked: list[str] = []

    def serve(self, artifact: jars.Artifact, *answers: int | bytes) -> None:
        self.answers[f"/repository/{artifact.address}"] = list(answers)

    def answer(self, path: str) -> int | bytes:
        self.asked.append(path)
        answers = self.answers.get(path)
        return answers.pop(0) if answers else 404


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    made = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = made.answer(self.path)
            content = b"" if isinstance(found, int) else found
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TALLYMARK_MAVEN", f"http://127.0.0.1:{server.server_port}/repository/")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield made
        server.shutdown()


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
    with pytest.raises(SandboxError, match=r"'mysql'.*kafka, spark-kafka, postgresql, mariadb$"):
        jars.fetch("mysql")


def test_another_lock_has_sets_of_its_own(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"peers g:a:1 {'0' * 64}\n")
    assert [str(artifact) for artifact in jars.artifacts("peers", lock)] == ["g:a:1"]
    with pytest.raises(SandboxError, match=r"'kafka' is not a set of jars: choose one of peers$"):
        jars.fetch("kafka", lock=lock)


def test_a_complete_cache_needs_neither_java_nor_network(private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    paths = jars.fetch("spark-kafka")
    assert all(path.is_relative_to(private_cache) and path.exists() for path in paths)


def test_files_are_hashed_once(private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.fetch("spark-kafka")
    monkeypatch.setattr(hashlib, "sha256", lambda *_: pytest.fail("hashed again"))
    jars.fetch("spark-kafka")


def test_a_damaged_file_is_replaced_by_a_right_one(private_cache: Path, registry: Registry) -> None:
    damaged = jars.artifacts("spark-kafka")[3]
    jars.fetch("spark-kafka")
    right = damaged.path.read_bytes()
    registry.serve(damaged, right)
    damaged.path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))

    jars.fetch("spark-kafka")

    assert len(registry.asked) == 1
    assert hashlib.sha256(damaged.path.read_bytes()).hexdigest() == damaged.sha256


def test_a_file_that_came_with_the_wrong_hash_is_never_kept(private_cache: Path, registry: Registry) -> None:
    wanted = jars.artifacts("spark-kafka")[3]
    wanted.path.unlink()
    registry.serve(wanted, b"not this", b"nor this")

    with pytest.raises(SandboxError, match=r"commons-pool2:2\.12\.0 .*wrong sha256"):
        jars.fetch("spark-kafka")

    assert len(registry.asked) == 2
    assert not wanted.path.exists()
    assert not list(private_cache.rglob("*.verified"))


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_throttles_or_fails_is_asked_again(
    private_cache: Path, registry: Registry, status: int
) -> None:
    late = jars.artifacts("spark-kafka")[3]
    registry.serve(late, status, late.path.read_bytes())
    late.path.unlink()

    jars.fetch("spark-kafka")

    assert len(registry.asked) == 2
    assert late.path.exists()
    assert not list(private_cache.rglob(".fetch-*"))


def test_a_file_that_the_registry_does_not_have_is_asked_for_once(private_cache: Path, registry: Registry) -> None:
    absent = jars.artifacts("spark-kafka")[3]
    absent.path.unlink()

    with pytest.raises(SandboxError, match=r"commons-pool2:2\.12\.0 \(HTTP status 404\).*TALLYMARK_MAVEN"):
        jars.fetch("spark-kafka")

    assert len(registry.asked) == 1


def test_a_registry_that_is_not_there_is_named_with_the_way_out(
    private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYMARK_MAVEN", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    jars.artifacts("spark-kafka")[3].path.unlink()
    with pytest.raises(SandboxError, match=r"could not fetch .*refused.*check the network"):
        jars.fetch("spark-kafka")


def test_jars_need_neither_java_nor_spark_but_the_extra(
    private_cache: Path, child_environment: dict[str, str], tmp_path: Path
) -> None:
    jars.artifacts("spark-kafka")[3].path.unlink()
    script = (
        "import sys; sys.modules.update(pyspark=None, maven_artifact=None)\n"
        "from tallymark.errors import SandboxError\nfrom tallymark.local.jars import fetch\n"
        "try: fetch('spark-kafka')\nexcept SandboxError as error: print(error)"
    )
    environment = {**child_environment, "TALLYMARK_CACHE": str(private_cache), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert "pip install 'tallymark[sandbox]'" in done.stdout


def test_processes_that_miss_the_same_file_fetch_it_once(
    private_cache: Path, registry: Registry, child_environment: dict[str, str]
) -> None:
    missing = jars.artifacts("spark-kafka")[3]
    content = missing.path.read_bytes()
    registry.serve(missing, content, content)
    missing.path.unlink()

    script = "from tallymark.local.jars import fetch; print(len(fetch('spark-kafka')))"
    environment = {**child_environment, "TALLYMARK_CACHE": str(private_cache)}
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]

    assert [child.communicate(timeout=30)[0] for child in children] == ["4\n"] * 3
    assert len(registry.asked) == 1


@pytest.mark.parametrize("address", ["https://user:geheim@mirror/maven", "mirror/maven"])
def test_an_address_of_a_mirror_that_can_not_be_used_is_refused_and_not_shown(
    private_cache: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TALLYMARK_MAVEN", address)
    jars.artifacts("spark-kafka")[3].path.unlink()
    with pytest.raises(SandboxError, match="TALLYMARK_MAVEN must be an address") as told:
        jars.fetch("spark-kafka")
    assert "geheim" not in str(told.value)
