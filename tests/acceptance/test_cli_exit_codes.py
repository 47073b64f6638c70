"""Exit codes: 0 done, 1 it looked and found something wrong, 2 it could not look or was used wrongly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tallymark.core.spans import Partition
from tallymark.stores.opening import open_store
from tests.support import databases
from tests.support.command import in_process
from tests.support.commits import take, work

FOUND, FAILED = 1, 2
NOWHERE = "127.0.0.1:1"
APP = """
import tallymark as tm
app = tm.App(brokers={brokers!r}, store={store!r}, patience=0)

@app.listen({topic!r}, group="g", value=tm.Json("id INT"))
def receive(record, db): ...
"""


@pytest.fixture
def ledger(database: Callable[[str], str]) -> str:
    """A ledger with a group whose run has vanished, and whose tally does not add up."""
    url = database("sqlite")
    with closing(open_store(url)) as store:
        store.create_ledger()
        claims = take(store, "g", "run", [Partition("orders", 0)])
        store.apply((), work("g", "run", claims, 0, 7, dead=2).entry)
    databases.execute(
        url,
        "UPDATE tallymark_positions SET applied = applied - 1",
        "INSERT INTO tallymark_runs (group_name, run, host, started_at, seen_at) "
        "VALUES ('g', 'run', 'worker-7', '2025-12-31 00:00:00', '2026-01-01 00:00:00')",
    )
    return url


@pytest.mark.parametrize(
    ("code", "command", "words"),
    [
        (0, "status g --store LEDGER", "g is "),
        (0, "groups --store LEDGER", "g "),
        (0, "dead-letters list --store LEDGER", "ERROR"),
        (FOUND, "status --fail --store LEDGER", "g is failed"),
        (FOUND, "audit g --store LEDGER", "broken"),
        (FOUND, "doctor --brokers NOWHERE", "fail"),
        (FOUND, "check APP", "topic zzz-none does not exist"),
        (FOUND, "check BROKEN", "broken.py line 1: NameError"),
        (FAILED, "check absent.py", "absent.py: there is no such file"),
        (FAILED, "check UNREACHABLE", "can't be reached"),
        (FAILED, "status --store LEDGER --brokers NOWHERE", "lag is not known"),
        (FAILED, "status nobody --store LEDGER", "has no group nobody"),
        (FAILED, "status --store sqlite:///absent.db", "has no ledger"),
        (FAILED, "status", "status needs --store"),
        (FAILED, "audit --store LEDGER", "audit needs the name of a group"),
        (FAILED, "members g --brokers BROKERS", "the brokers know no group g"),
        (FAILED, "consume orders", "consume needs --brokers"),
        (FAILED, "run", "run needs a pipeline or an app"),
        (FAILED, "run APP", "topic zzz-none does not exist"),
        (FAILED, "run APP --until tomorrow", "'tomorrow' is not"),
        (FAILED, "run APP --file APP", "name one file"),
        (FAILED, "reset g --store LEDGER --brokers BROKERS", "nothing says where to"),
        (FAILED, "delete-group g --execute --store LEDGER", "2 open dead letters"),
        (FAILED, "status --no-such-option", "No such option"),
        (FAILED, "no-such-command", "No such command"),
    ],
)
def test_exit_codes(
    code: int,
    command: str,
    words: str,
    ledger: str,
    brokers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tallymark.kafka.brokers.TIMEOUT", 2.0)
    for name, address in (("app.py", brokers), ("unreachable.py", NOWHERE)):
        Path(name).write_text(APP.format(brokers=address, store="sqlite:///new.db", topic="zzz-none"))
    Path("broken.py").write_text("nonsense\n")
    names = {"LEDGER": ledger, "BROKERS": brokers, "NOWHERE": NOWHERE}
    names |= {"APP": "app.py", "BROKEN": "broken.py", "UNREACHABLE": "unreachable.py"}
    done = in_process(*(names.get(word, word) for word in command.split()))
    said = " ".join(f"{done.stdout} {done.stderr}".replace("│", "").split())
    assert (done.returncode, words in said) == (code, True), said
    assert "Traceback" not in said
