"""``tallymark sandbox`` brings servers up behind its back, tells about them, and leaves nothing when they go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tallymark.cache import cache_dir
from tallymark.jars import fetch

from .processes import eventually, is_alive

CLI = [sys.executable, "-c", "from tallymark.cli.sandbox import app; app(prog_name='tallymark sandbox')"]

Run = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path, child_environment: dict[str, str]) -> dict[str, str]:
    """State of its own over the real downloads."""
    for name in ("kafka", "postgresql"):
        fetch(name)
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("jars", "kafka"):
        (cache_dir() / name).mkdir(exist_ok=True)
        (cache / name).symlink_to(cache_dir() / name)
    return {**child_environment, "TALLYMARK_CACHE": str(cache)}


@pytest.fixture
def run(environment: dict[str, str]) -> Iterator[Run]:
    def run(*arguments: str) -> str:
        done = subprocess.run([*CLI, *arguments], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    run("down")


def services(output: str) -> dict[str, dict[str, Any]]:
    return {service["name"]: service for service in json.loads(output)["services"]}


def test_up_adds_what_is_missing_and_down_ends_all_but_kept_data(run: Run) -> None:
    assert run("status") == "no sandbox is up: tallymark sandbox up\n"
    kafka = services(run("up", "--json"))["kafka"]
    more = services(run("up", "--with", "postgresql,valkey", "--json"))
    assert more["kafka"] == kafka
    assert set(more) == {"kafka", "postgresql", "valkey"}

    again = run("up", "--with", "valkey")
    assert "already up: kafka, valkey" in again
    shown = run("status")
    assert all(service["url"] in shown and str(service["pid"]) in shown for service in more.values())

    with psycopg.connect(more["postgresql"]["url"]) as connection:
        connection.execute("CREATE TABLE kept ()")
    assert run("down", "--keep-data") == "stopped kafka, postgresql, valkey; data kept\n"
    assert not any(is_alive(service["pid"]) for service in more.values())
    assert json.loads(run("status", "--json")) == {"up": False, "services": []}

    again_up = services(run("up", "--with", "postgresql", "--json"))
    with psycopg.connect(again_up["postgresql"]["url"]) as connection:
        connection.execute("SELECT FROM kept")
    assert run("down") == "stopped kafka, postgresql; data removed\n"
    assert not Path(kafka["log"]).parents[1].exists()


def test_an_interrupted_up_leaves_nothing(run: Run, environment: dict[str, str]) -> None:
    state = Path(environment["TALLYMARK_CACHE"], "sandbox")
    command = subprocess.Popen([*CLI, "up"], env=environment, stderr=subprocess.DEVNULL)
    assert eventually(lambda: (state / "state.json").exists())
    keeper = int((state / "keeper.lock").read_text())
    command.send_signal(signal.SIGINT)
    assert command.wait(30) != 0
    assert not is_alive(keeper)
    assert not (state / "state.json").exists()
    assert json.loads(run("status", "--json"))["up"] is False


def test_a_killed_keeper_takes_its_servers_along(run: Run, environment: dict[str, str]) -> None:
    pid = services(run("up", "--json"))["kafka"]["pid"]
    os.kill(int(Path(environment["TALLYMARK_CACHE"], "sandbox", "keeper.lock").read_text()), signal.SIGKILL)
    assert eventually(lambda: not is_alive(pid))
    assert run("status") == "no sandbox is up: tallymark sandbox up\n"


def test_an_unknown_server_is_refused_with_the_known_ones(environment: dict[str, str]) -> None:
    done = subprocess.run([*CLI, "up", "--with", "oracle"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "choose from postgresql, mariadb, valkey" in done.stderr


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_help_shows_an_example(run: Run, command: str) -> None:
    assert f"Example: tallymark sandbox {command}" in run(command, "--help")
