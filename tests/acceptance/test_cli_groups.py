"""``tallymark pause`` and ``resume``, on every kind of ledger, while nothing runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tallymark.spans import Partition
from tallymark.stores.opening import open_store
from tests.support.command import tallymark
from tests.support.commits import take


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_group_is_paused_with_a_reason_and_resumed(
    kind: str, group: str, database: Callable[[str], str], redis_url: str
) -> None:
    url = redis_url if kind == "redis" else database(kind)
    store = open_store(url)
    store.create_ledger()
    take(store, group, "a", [Partition("orders", 0)])
    store.close()

    paused = tallymark("pause", group, "--reason", "stock taking", "--store", url)
    assert (paused.returncode, paused.stdout.strip()) == (0, f"{group}: running -> paused")
    shown = tallymark("status", "--store", url)
    assert f"{group} is paused since" in shown.stdout
    assert "stock taking" in shown.stdout
    (line,) = json.loads(tallymark("status", "--store", url, "--json").stdout)
    assert (line["desired_state"], line["reason"]) == ("paused", "stock taking")

    resumed = json.loads(tallymark("resume", group, "--store", url, "--json").stdout)
    assert (resumed["before"], resumed["now"]) == ("paused", "running")
    assert "is paused" not in tallymark("status", "--store", url).stdout

    unknown = tallymark("resume", "nobody", "--store", url)
    assert unknown.returncode == 1
    assert "knows no group nobody" in unknown.stderr
    assert "Traceback" not in unknown.stderr
