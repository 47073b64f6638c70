"""Servers and their data are removed when the process that started them is killed, whichever thread started them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.background import wait_for

from .processes import is_alive

STARTER = """
import json, os, threading, time
from tallymark.local.sandbox import Sandbox

box = Sandbox()
threads = [threading.Thread(target=getattr(box, name)) for name in {names}]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
{before}
print(json.dumps([str(box.directory), [server.pid for server in box.servers.values()]]), flush=True)
time.sleep(600)
"""

FORK_THAT_HOLDS_THE_PIPES = """
if os.fork() == 0:
    time.sleep(20)
    os._exit(0)
"""


def started(
    environment: dict[str, str], *names: str, before: str = ""
) -> tuple[subprocess.Popen[str], Path, list[int]]:
    script = STARTER.format(names=names, before=before)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    directory, pids = json.loads(child.stdout.readline())
    assert len(pids) == len(names)
    assert all(is_alive(pid) for pid in pids)
    return child, Path(directory), pids


@pytest.mark.faults
def test_servers_and_data_go_with_a_killed_parent(child_environment: dict[str, str]) -> None:
    child, directory, pids = started(child_environment, "valkey", "kafka", "postgresql")
    with child:
        child.kill()
        wait_for(lambda: not any(is_alive(pid) for pid in pids))
        wait_for(lambda: not directory.exists())


def test_a_fork_of_the_parent_does_not_keep_servers_alive(child_environment: dict[str, str]) -> None:
    child, directory, pids = started(child_environment, "valkey", before=FORK_THAT_HOLDS_THE_PIPES)
    child.kill()
    child.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    wait_for(lambda: not directory.exists())
    assert child.stdout is not None
    child.stdout.close()
