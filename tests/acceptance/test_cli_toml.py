"""A pipeline without Python: init, check, run, status, with store and brokers from tallymark.toml."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tallymark.cli.load import load, setup_of
from tallymark.cli.toml.build import load_pipeline
from tallymark.core import credentials as secrets
from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.kafka.cluster import Cluster
from tallymark.stores.opening import open_store
from tests.support.command import BINARY, in_process
from tests.support.commits import take
from tests.support.databases import execute, query, tables
from tests.support.kafka import Topics

processes = pytest.mark.xdist_group("processes")

ORDERS = [{"id": n, "customer": f"c{n}", "amount": 1.5, "at": "2026-01-31T10:00:00Z"} for n in range(20)]


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == (1 if done.args[0] == "check" else 2), done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    return done.stderr


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.faults
@pytest.mark.usefixtures("spark")
def test_what_init_writes_is_checked_and_runs_as_it_is(topics: Topics, brokers: str, here: Path) -> None:
    topic = topics.create(2)
    topics.send(topic, [*ORDERS, b"broken"], partitions=2)

    made = in_process("init", "--brokers", brokers, "--topic", topic)
    assert (made.returncode, made.stderr) == (0, "")
    assert "looked at 21 records" in made.stdout
    assert "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP" in Path("shop.toml").read_text()

    checked = in_process("check", "shop.toml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "would be created with id BIGINT, customer TEXT" in checked.stdout
    assert "not JSON" in checked.stdout
    assert not Path("shop.db").exists()

    run = in_process("run", "shop.toml", "--until", "caught-up", "--json")
    assert run.returncode == 0
    tally = json.loads(run.stdout)
    assert (tally["applied"], tally["dead"]) == (20, 1)
    table = topic.replace("-", "_")
    assert query("sqlite:///shop.db", f"SELECT count(*), count(DISTINCT customer) FROM {table}") == [(20, 20)]

    first, second = json.loads(in_process("status", "--file", "shop.toml", "--json").stdout)["groups"][0]["partitions"]
    assert (first["lag"], second["lag"], first["applied"] + second["applied"]) == (0, 0, 20)


def test_init_overwrites_nothing_by_itself_and_writes_no_password(here: Path) -> None:
    Path("shop.toml").write_text("mine")
    assert "shop.toml exists" in said(in_process("init"))
    assert Path("shop.toml").read_text() == "mine"

    store = "postgresql://shop:geheim@db/shop?password=geheim&tls=verify"
    made = in_process("init", "--force", "--store", store, "--group", "g", "--topic", "x", "--json")

    assert json.loads(made.stdout)["file"] == "shop.toml"
    text = Path("shop.toml").read_text()
    assert "geheim" not in text + made.stdout
    assert 'store = "postgresql://shop@db/shop?tls=verify"' in text
    assert 'group = "g"' in text
    assert "can't be written" in said(in_process("init", "no/such/place.toml"))


def test_init_says_when_it_has_seen_no_record(topics: Topics, brokers: str) -> None:
    empty, binary = topics.create(1), topics.create(1)
    topics.send(binary, [b"\xff", b"x"])
    assert f"topic {empty} is empty" in in_process("init", "a.toml", "--brokers", brokers, "--topic", empty).stdout
    assert "does not exist" in in_process("init", "b.toml", "--brokers", brokers, "--topic", "none").stdout
    in_process("init", "c.toml", "--brokers", brokers, "--topic", binary)
    assert 'format = "bytes"' in Path("c.toml").read_text()


FILE = """
group = "{group}"
store = "sqlite:///shop.db"
[source]
brokers = "{brokers}"
topics = "{topic}"
format = {{ json = "id BIGINT, customer STRING" }}
[tables.orders]
key = "id"
write = "upsert"
evolve = true
sql = "SELECT value.* FROM records"
"""


@pytest.fixture
def shop(brokers: str, group: str) -> Callable[..., Path]:
    def write(topic: str, change: str = "", to: str = "") -> Path:
        file = Path("shop.toml")
        file.write_text(FILE.format(brokers=brokers, group=group, topic=topic).replace(change, to))
        return file

    return write


@pytest.mark.usefixtures("spark")
def test_check_shows_what_a_run_would_do_and_does_nothing(topics: Topics, shop: Callable[..., Path]) -> None:
    topic = topics.create(1)
    topics.send_to(topic, 0, [{"id": n % 15, "customer": f"c{n}"} for n in range(30)])
    topics.send_to(topic, 0, [b"broken", {"customer": "nobody"}])
    execute("sqlite:///shop.db", "CREATE TABLE orders (id BIGINT PRIMARY KEY)")

    found = json.loads(in_process("check", shop(topic), "--json").stdout)

    assert found["partitions"] == [
        {"topic": topic, "partition": 0, "start_offset": 0, "log_end_offset": 32, "saved": False}
    ]
    (table,) = found["tables"]
    assert (table["exists"], table["would_add"], found["records"]) == (True, ["customer"], 32)
    assert table["rows"] == [{"id": n, "customer": f"c{n + 15}"} for n in range(10)]
    assert [(letter["offset"], letter["table"]) for letter in found["dead_letters"]] == [(30, None), (31, "orders")]
    assert tables("sqlite:///shop.db") == {"orders"}
    assert "would get the columns customer TEXT" in in_process("check", shop(topic)).stdout

    in_process("run", shop(topic), "--until", "caught-up")
    after = json.loads(in_process("check", shop(topic), "--limit", "1", "--json").stdout)
    assert (after["partitions"][0]["start_offset"], after["partitions"][0]["saved"]) == (32, True)
    assert [len(table["rows"]) for table in after["tables"]] == [1]


@pytest.mark.usefixtures("spark")
def test_check_refuses_what_does_not_fit(topics: Topics, shop: Callable[..., Path]) -> None:
    topic = topics.create(1)
    execute("sqlite:///shop.db", "CREATE TABLE orders (id BIGINT)")
    assert "no primary key or unique index on (id)" in said(in_process("check", shop(topic)))
    assert "create=False" in said(in_process("check", shop(topic, "[tables.orders]", "[tables.o]\ncreate = false")))
    assert "does not exist" in said(in_process("check", shop("none")))
    assert "shop.toml line 12: tables.orders.sql" in said(in_process("check", shop(topic, "value.*", "valu.x")))
    assert "shop.toml line 10: tables.orders.wite is not known; did you mean write?" in said(
        in_process("check", shop(topic, "write", "wite"))
    )


@pytest.mark.usefixtures("spark")
def test_fields_that_the_schema_does_not_name_are_shown(topics: Topics, shop: Callable[..., Path]) -> None:
    topic = topics.create(2)
    discounts = [{"id": n, "customer": "c", "discount": 1} | ({"note": "x"} if n == 3 else {}) for n in range(20)]
    topics.send(topic, [*discounts, {"customer": "no key", "discount": 1}], partitions=2)
    checked = in_process("check", shop(topic))
    assert "\nfields that the schema does not name: discount in 20 records, note in 1 record\n" in checked.stdout
    assert json.loads(in_process("check", shop(topic), "--json").stdout)["drift"] == {"discount": 20, "note": 1}
    failing = shop(topic, "[source]", 'on_drift = "fail"\n[source]')
    for command, *options in (["check"], ["run", "--until", "caught-up"]):
        done = in_process(command, failing, *options)
        assert done.returncode == (1 if command == "check" else 2)
        assert f"{topic}[0] offset 0 has the field discount, which the schema does not name" in done.stderr
    unknown = said(in_process("check", shop(topic, "[source]", "on_drift = 'never'\n[source]")))
    assert 'shop.toml line 4: on_drift must be ignore, record or fail, not "never"' in unknown

    assert in_process("run", shop(topic), "--until", "caught-up").returncode == 0
    line = "  fields that the schema does not name: discount in 20 records since "
    assert line in in_process("status", "--file", "shop.toml").stdout
    (group,) = json.loads(in_process("status", "--file", "shop.toml", "--json").stdout)["groups"]
    assert [(one["field"], one["records"]) for one in group["drift"]] == [("discount", 20), ("note", 1)]
    assert group["drift"][0].keys() == {"field", "records", "first_at", "last_at"}


def test_check_of_an_app_looks_at_topics_and_store(topics: Topics, brokers: str) -> None:
    topic = topics.create(2)
    Path("app.py").write_text(
        f"import tallymark as tm\napp = tm.App(brokers={brokers!r}, store='sqlite:///app.db')\n"
        f"@app.listen({topic!r}, group='g')\ndef receive(record, db): ...\n"
    )
    (found,) = json.loads(in_process("check", "app.py", "--json").stdout)
    assert (found["group"], len(found["partitions"]), found["tables"]) == ("g", 2, [])
    assert not Path("app.db").exists()


@processes
def test_tallymark_toml_says_where_store_and_brokers_are(
    topics: Topics, brokers: str, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.setenv("PLACE", "there.db")
    (here / "tallymark.toml").write_text('store = "sqlite:///${PLACE}"\nbrokers = "' + brokers + '"\n')
    assert "sqlite:///there.db has no ledger" in said(in_process("status"))
    assert "sqlite:///env.db has no ledger" in said(in_process("status", TALLYMARK_STORE="sqlite:///env.db"))
    assert "sqlite:///option.db has no ledger" in said(in_process("status", "--store", "sqlite:///option.db"))
    topic = topics.create(1)
    topics.send_to(topic, 0, [b"hello"])
    (here / "more.txt").write_text("from a file")
    assert in_process("produce", topic, here / "more.txt").returncode == 0
    assert "from a file" in in_process("consume", topic).stdout
    found = {finding["about"] for finding in json.loads(in_process("doctor", "--json").stdout)}
    assert found >= {"cluster", "store"}

    monkeypatch.chdir("/")
    monkeypatch.setenv("TALLYMARK_CONFIG", str(here / "tallymark.toml"))
    assert "hello" in in_process("consume", topic).stdout
    monkeypatch.setenv("TALLYMARK_CONFIG", "none.toml")
    assert "TALLYMARK_CONFIG=none.toml: there is no such file" in said(in_process("consume", topic))


def test_a_password_of_tallymark_toml_does_not_go_to_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told.json"
    (tmp_path / "tallymark.toml").write_text(
        'brokers = "localhost:1"\ntls = false\n'
        'security = { mechanism = "PLAIN", username = "shop", password = "hush" }\n'
    )
    (tmp_path / "pipeline.py").write_text(
        "import json, os, pathlib, tallymark as tm\n"
        "security = tm.Kafka('localhost:1', 'orders').cluster.security\n"
        f"pathlib.Path({str(told)!r}).write_text(json.dumps([security.secret(), 'hush' in str(os.environ)]))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "defines no Pipeline" in in_process("check", "pipeline.py").stderr
    assert json.loads(told.read_text()) == ["hush", False]
    assert secrets.assumed == {}


def test_a_file_that_is_named_knows_better_than_the_environment_and_tallymark_toml(
    topics: Topics, shop: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tallymark.toml").write_text('store = "sqlite:///elsewhere.db"\nbrokers = "127.0.0.1:1"\n')
    file = shop(topics.create(1))
    assert "sqlite:///shop.db has no ledger" in said(in_process("status", "--file", file))
    monkeypatch.setenv("TALLYMARK_STORE", "sqlite:///exported.db")
    monkeypatch.setenv("TALLYMARK_BROKERS", "127.0.0.1:1")
    assert "sqlite:///shop.db has no ledger" in said(in_process("status", "--file", file))
    assert "sqlite:///shop.db has no ledger" in said(in_process("audit", "--file", file, "--deep"))
    assert "sqlite:///exported.db has no ledger" in said(in_process("status"))
    assert "sqlite:///option.db has no ledger" in said(
        in_process("status", "--file", file, "--store", "sqlite:///option.db")
    )


def test_letters_go_to_the_cluster_of_the_file_unless_another_is_named(
    shop: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    class PartitionCounts:
        letters = ("1",)

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def send(self, topic: str, cluster: Cluster | None, by: str) -> None:
            seen.append(cluster.brokers if cluster else None)
            raise BadInput("seen")

    monkeypatch.setenv("TALLYMARK_BROKERS", "127.0.0.1:1")
    monkeypatch.setattr("tallymark.cli.dead_letters.LetterReplay", PartitionCounts)
    for more in ((), ("--brokers", "127.0.0.1:2")):
        said(in_process("dead-letters", "replay", shop("x"), "--to-topic", "y", "--execute", *more))
    assert seen == [None, "127.0.0.1:2"], "None is the cluster of the file"


def test_whoever_only_looks_makes_no_file_and_changes_none(topics: Topics, shop: Callable[..., Path]) -> None:
    for command in (["status"], ["groups"], ["audit", "g"], ["members", "g"], ["journal", "g"], ["skips", "list"]):
        for url in ("sqlite:///typo.db", "sqlite+pysqlite:///typo.db"):
            assert f"{url} has no ledger: the file does not exist" in said(in_process(*command, "--store", url))
    assert not Path("typo.db").exists()
    with closing(sqlite3.connect("old.db")) as old:
        old.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY)")
    Path("app.py").write_text(
        f"import tallymark as tm\napp = tm.App(brokers={load_pipeline(shop('x')).setup.source.brokers!r}, "
        f"store='sqlite+pysqlite:///new.db')\n"
        f"@app.listen({topics.create(1)!r}, group='g')\ndef receive(record, db): ...\n"
    )
    assert in_process("check", "app.py").returncode == 0
    assert not Path("new.db").exists()
    Path("app.py").write_text(Path("app.py").read_text().replace("new.db", "old.db"))
    assert in_process("check", "app.py").returncode == 0
    with closing(sqlite3.connect("old.db")) as old:
        assert old.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_an_app_with_several_listeners_can_be_named(brokers: str) -> None:
    listeners = "".join(
        f"@app.listen({topic!r}, group={group!r})\ndef {topic}(record, db): ...\n"
        for topic, group in (("a", "one"), ("b", "one"), ("c", "two"))
    )
    Path("app.py").write_text(
        f"import tallymark as tm\napp = tm.App(brokers={brokers!r}, store='sqlite:///app.db')\n{listeners}"
    )
    assert "app.py: name one of its groups: one, two" in said(in_process("pause", "--file", "app.py"))
    with closing(open_store("sqlite:///app.db")) as store:
        store.create_ledger()
    assert "has no group one, two" in said(in_process("status", "--file", "app.py"))
    assert "has no group one" in said(in_process("status", "one", "--file", "app.py"))
    assert "no group has run into sqlite:///app.db yet" in in_process("groups", "--file", "app.py").stdout
    with closing(open_store("sqlite:///app.db")) as store:
        take(store, "one", "run", [Partition("a", 0)])
        shown = in_process("status", TALLYMARK_FILE="app.py", TALLYMARK_BROKERS="127.0.0.1:1")
        assert "one is unknown: run run on" in shown.stdout
        assert "group two has not run yet" in shown.stderr
        take(store, "two", "run", [Partition("c", 0)])
        take(store, "other", "run", [Partition("c", 0)])
    shown = in_process("status", "-f", "app.py", "--store", "sqlite:///app.db", "--json")
    assert [one["group"] for one in json.loads(shown.stdout)["groups"]] == ["one", "two"]
    shown = in_process("status", "--store", "sqlite:///app.db", "--json", TALLYMARK_FILE="app.py")
    assert len(json.loads(shown.stdout)["groups"]) == 3, "an option outranks TALLYMARK_FILE"
    assert setup_of(load(Path("app.py")), Path("app.py"), "one").source.topic_names == ("a", "b")


def test_tallymark_toml_says_how_to_get_in_and_nothing_stays_behind(
    brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def look(*_: object) -> None:
        seen.update(secrets.assumed)
        assert dict(os.environ) | {"COLUMNS": before["COLUMNS"]} == before, "children would inherit it"
        raise BadInput("seen")

    monkeypatch.setattr("tallymark.cli.consume.Look", look)
    Path("tallymark.toml").write_text(
        f'brokers = "{brokers}"\ntls = false\n[security]\nmechanism = "PLAIN"\nusername = "u"\npassword = "geheim"\n'
    )
    monkeypatch.setenv("COLUMNS", "80")
    before = dict(os.environ)
    assert in_process("consume", "x").stderr.endswith("error: seen\n")
    assert seen == {
        "TALLYMARK_SASL_MECHANISM": "PLAIN",
        "TALLYMARK_SASL_USERNAME": "u",
        "TALLYMARK_SASL_PASSWORD": "geheim",
        "TALLYMARK_TLS": "off",
    }
    assert dict(os.environ) == before


@processes
def test_mistakes_in_tallymark_toml_have_their_line() -> None:
    Path("tallymark.toml").write_text('store = "sqlite:///x.db"\nbroker = "localhost:9092"\n')
    sentence = said(in_process("status"))
    assert sentence == "error: tallymark.toml line 2: broker is not known; did you mean brokers?\n"
    Path("tallymark.toml").write_text('brokers = "${HOME}:x"\n')
    assert "tallymark.toml line 1: '${HOME}:x' is not a broker address" in said(in_process("consume", "x"))


def test_the_shell_completes_commands() -> None:
    asked = {"_TALLYMARK_COMPLETE": "complete_bash", "COMP_WORDS": "tallymark ch", "COMP_CWORD": "1"}
    done = subprocess.run([BINARY], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["check"]
