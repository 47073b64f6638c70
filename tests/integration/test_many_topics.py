"""A table for each of many topics in one pipeline, through kills, a new topic and a schema that evolves."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.avro import LATER_ORDER, ORDER, framed, text
from tests.support.background import wait_for
from tests.support.command import started, tallymark
from tests.support.databases import query, tables
from tests.support.kafka import Topics
from tests.support.pipelines import UNBALANCED
from tests.support.registry import SchemaRegistry

pytestmark = pytest.mark.xdist_group("processes")

RECORDS = 40
FILE = """
group = "{group}"
store = "{store}"
[limits]
records = 2000
[source]
brokers = "{brokers}"
topics = ['^{prefix}\\.']
format = {{ avro = "{registry}" }}
settings."session.timeout.ms" = 6000
settings."topic.metadata.refresh.interval.ms" = 1000
[tables."{{1}}"]
topics = '^{prefix}\\.(.*)$'
key = "id"
write = "upsert"
sql = "SELECT value.id, value.name FROM records"
"""


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


MANY = pytest.param(200, 3, marks=[pytest.mark.faults, pytest.mark.timeout(900)])


@pytest.mark.parametrize(("count", "kills"), [(5, 1), MANY])
def test_a_table_for_each_of_many_topics(
    topics: Topics,
    brokers: str,
    group: str,
    registry: SchemaRegistry,
    database: Callable[[str], str],
    tmp_path: Path,
    count: int,
    kills: int,
) -> None:
    prefix = f"lake{time.monotonic_ns()}"
    url, file = database("postgresql"), tmp_path / "lake.toml"
    known = {"group": group, "store": url, "brokers": brokers, "prefix": prefix, "registry": registry.url}
    file.write_text(FILE.format(**known))
    sent: dict[str, int] = {}

    def create(name: str) -> None:
        topics.create(1, name=f"{prefix}.{name}")
        registry.add(f"{prefix}.{name}-value", text(ORDER))
        sent[name] = 0

    def send(name: str, *, later: bool = False) -> None:
        schema = LATER_ORDER if later else ORDER
        id, _ = registry.add(f"{prefix}.{name}-value", text(schema))
        numbers = range(sent[name], sent[name] + RECORDS)
        topics.send(f"{prefix}.{name}", [framed(id, schema, {"id": n, "name": f"{name}-{n}"}) for n in numbers])
        sent[name] += RECORDS

    def all_there(name: str) -> bool:
        return name in tables(url) and query(url, f'SELECT count(*) FROM "{name}"') == [(sent[name],)]

    names = [f"t{number}" for number in range(count)]
    for name in names:
        create(name)
        send(name)
    for left in reversed(range(kills)):
        run = started("run", file)
        wait_for(partial(all_there, names[-1 - left]), 300)
        for name in names[:: 2 + left]:
            send(name, later=left == 0)
        if left == 0:
            create("new")
            send("new")
            wait_for(partial(all_there, "new"), 120)
        run.send_signal(signal.SIGKILL)
        run.wait()
    ended = tallymark("run", file, "--until", "caught-up")
    assert ended.returncode == 0, ended
    for name, expected in sent.items():
        found = query(url, f'SELECT id, name FROM "{name}" ORDER BY id')
        assert found == [(n, f"{name}-{n}") for n in range(expected)], name
    assert not query(url, UNBALANCED)
    assert not query(url, "SELECT * FROM tallymark_dead_letters")
    applied = query(url, "SELECT sum(applied) FROM tallymark_positions")
    assert int(str(applied[0][0])) == sum(sent.values())
