"""``tallymark sandbox`` starts servers in the background, shows them, and leaves nothing behind."""

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
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis

from tallymark.local.cache import cache_dir
from tallymark.local.jars import fetch
from tallymark.local.java import java as real_java
from tests.support.background import wait_for
from tests.support.command import in_process

from .processes import is_alive

CLI = [sys.executable, "-c", "import sys; from tallymark.cli import main; main(['sandbox', *sys.argv[1:]])"]

JAVA_WITHOUT_KAFKA = """\
#!/bin/sh
case "$*" in *" kafka.Kafka "*) exec sleep 600;; esac
exec '{java}' "$@"
"""
"""A broker that never starts."""

Run = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path, child_environment: dict[str, str]) -> dict[str, str]:
    """Separate state with the real downloads."""
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


@pytest.mark.faults
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
    assert json.loads(run("status", "--json")) == {"up": False, "services": [], "environment": {}}

    again_up = services(run("up", "--with", "postgresql", "--json"))
    with psycopg.connect(again_up["postgresql"]["url"]) as connection:
        connection.execute("SELECT FROM kept")
    assert run("down") == "stopped kafka, postgresql; data removed\n"
    assert not Path(kafka["log"]).parents[1].exists()


@pytest.mark.faults
def test_a_service_that_ended_or_was_stopped_comes_back_with_its_data_beside_the_others(run: Run) -> None:
    first = services(run("up", "--with", "valkey", "--json"))
    redis = Redis.from_url(first["valkey"]["url"])
    redis.set("kept", "1")

    os.kill(first["valkey"]["pid"], signal.SIGKILL)
    wait_for(lambda: services(run("status", "--json"))["valkey"]["state"] == "ended")
    again = services(run("up", "--json"))
    assert again["kafka"] == first["kafka"]
    assert (again["valkey"]["state"], again["valkey"]["url"]) == ("running", first["valkey"]["url"])
    assert redis.get("kept") == b"1"

    assert services(run("stop", "valkey", "--json"))["valkey"]["state"] == "stopped"
    assert not is_alive(again["valkey"]["pid"])
    assert services(run("start", "valkey", "--json"))["valkey"]["state"] == "running"
    assert redis.get("kept") == b"1"
    assert services(run("status", "--json"))["kafka"] == first["kafka"]


@pytest.mark.faults
def test_an_interrupted_up_leaves_nothing(run: Run, environment: dict[str, str], tmp_path: Path) -> None:
    state = Path(environment["TALLYMARK_CACHE"], "sandbox")
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA_WITHOUT_KAFKA.format(java=real_java()))
    java.chmod(0o755)
    slow = {**environment, "JAVA_HOME": str(java.parents[1])}
    command = subprocess.Popen([*CLI, "up"], env=slow, stderr=subprocess.DEVNULL)
    wait_for(lambda: (state / "state.json").exists())
    keeper = int((state / "keeper.lock").read_text())
    command.send_signal(signal.SIGINT)
    assert command.wait(30) != 0
    assert not is_alive(keeper)
    assert not (state / "state.json").exists()
    assert json.loads(run("status", "--json"))["up"] is False


@pytest.mark.faults
def test_a_killed_keeper_takes_its_servers_along(run: Run, environment: dict[str, str]) -> None:
    pid = services(run("up", "--json"))["kafka"]["pid"]
    os.kill(int(Path(environment["TALLYMARK_CACHE"], "sandbox", "keeper.lock").read_text()), signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    assert run("status") == "no sandbox is up: tallymark sandbox up\n"


def refused(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([*CLI, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def login(variables: dict[str, str]) -> AdminClient:
    """A client with the addresses that ``up`` printed."""
    admin = AdminClient(
        {
            "bootstrap.servers": variables["TALLYMARK_BROKERS"],
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": variables["TALLYMARK_SASL_MECHANISM"],
            "sasl.username": variables["TALLYMARK_SASL_USERNAME"],
            "sasl.password": Path(variables["TALLYMARK_SASL_PASSWORD_FILE"]).read_text(),
            "ssl.ca.location": variables["TALLYMARK_TLS_CA"],
        }
    )
    admin.list_topics(timeout=15)
    return admin


@pytest.mark.faults
def test_a_secured_kafka_tells_how_to_get_in_and_no_secret(run: Run, environment: dict[str, str]) -> None:
    told = [run("up", "--secure"), run("status", "--json"), run("up", "--json"), run("status")]
    variables = json.loads(told[1])["environment"]
    assert json.loads(told[2])["environment"] == variables
    assert all(f"export {name}={value}" in told[0].splitlines() for name, value in variables.items())
    login(variables)
    assert "has a secured Kafka with --nodes 1, not" in refused(environment, "up", "--nodes", "3")
    kept = [path.read_text() for path in Path(environment["TALLYMARK_CACHE"], "sandbox").iterdir() if path.is_file()]
    secret = Path(variables["TALLYMARK_SASL_PASSWORD_FILE"]).read_text()
    assert not any(secret in text for text in (*told, *kept))


@pytest.mark.faults
def test_kept_data_keep_who_may_get_in(run: Run, environment: dict[str, str]) -> None:
    before = json.loads(run("up", "--secure", "--json"))["environment"]
    admin = login(before)
    admin.create_topics([NewTopic("kept", 1)])["kept"].result(15)
    paths = [Path(before[f"TALLYMARK_{name}"]) for name in ("SASL_PASSWORD_FILE", "TLS_CA")]
    contents = [path.read_bytes() for path in paths]
    run("down", "--keep-data")
    assert "run tallymark sandbox down first" in refused(environment, "up", "--nodes", "3")
    after = json.loads(run("up", "--json"))["environment"]
    assert [path.read_bytes() for path in paths] == contents
    assert "kept" in login(after).list_topics(timeout=15).topics


@pytest.mark.faults
def test_three_brokers_are_one_service_of_three_nodes(run: Run, environment: dict[str, str]) -> None:
    kafka = services(run("up", "--nodes", "3", "--json"))["kafka"]
    assert kafka["url"] == ",".join(node["url"] for node in kafka["nodes"])
    os.kill(kafka["nodes"][0]["pid"], signal.SIGKILL)
    wait_for(lambda: "ended" in run("status"))
    shown = {line.split()[0]: line.split()[1] for line in run("status").splitlines()[1:]}
    assert shown == {"kafka-1": "ended", "kafka-2": "running", "kafka-3": "running"}
    assert "not a secured Kafka with --nodes 3" in refused(environment, "up", "--secure")
    assert services(run("start", "kafka-1", "--json"))["kafka"]["nodes"][0]["state"] == "running"
    assert [one["state"] for one in services(run("stop", "kafka-3", "--json"))["kafka"]["nodes"]][2] == "ended"
    again = services(run("up", "--json"))["kafka"]
    assert {one["state"] for one in again["nodes"]} == {"running"}
    assert again["nodes"][1] == kafka["nodes"][1]
    run("down")
    assert not any(is_alive(node["pid"]) for node in again["nodes"])


def test_an_unknown_server_is_refused_with_the_known_ones(environment: dict[str, str]) -> None:
    assert "choose from postgresql, mariadb, mysql, valkey, redis" in refused(environment, "up", "--with", "oracle")


def test_two_brokers_are_refused(environment: dict[str, str]) -> None:
    assert "choose 1, 3 or 5" in refused(environment, "up", "--nodes", "2")


@pytest.mark.parametrize("command", ["up", "down", "stop", "start", "status"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: tallymark sandbox {command}" in in_process("sandbox", command, "--help").stdout
