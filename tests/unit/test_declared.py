"""A TOML file configures a pipeline; every mistake in it is reported with its line and a way out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tallymark import Group, Json, Limits, Retention, SkipAhead, Standalone
from tallymark.cli.toml.build import load_pipeline
from tallymark.cli.toml.document import filled, find_lines
from tallymark.cli.toml.model import PipelineFile, Table
from tallymark.core.budget import Budget
from tallymark.core.tls import Tls
from tallymark.errors import BadInput
from tallymark.formats.registry_server import Registry
from tallymark.formats.value import Bytes, Protobuf
from tallymark.run.setup import Settings
from tallymark.spark.pipeline import Pipeline

MINIMAL = """\
group = "orders-to-shop"
store = "sqlite:///shop.db"
[source]
brokers = "localhost:9092"
topics = "orders"
format = { json = "id BIGINT" }
[tables.orders]
sql = "SELECT value.* FROM records"
"""
CANARY = "geheim-4711"

Load = Callable[[str], Pipeline]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a text as a file that messages call shop.toml."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Pipeline:
        Path("shop.toml").write_text(text)
        return load_pipeline(Path("shop.toml"))

    return write


def refusal(load: Load, text: str) -> list[str]:
    with pytest.raises(BadInput) as refused:
        load(text)
    assert refused.value.__cause__ is None
    return str(refused.value).split("\n")


def test_a_short_file_has_the_defaults_of_a_pipeline(load: Load) -> None:
    pipeline = load(MINIMAL)
    assert pipeline.group == "orders-to-shop"
    assert (pipeline.setup.store, pipeline.setup.ledger, pipeline.setup.delivery) == (
        "sqlite:///shop.db",
        None,
        "exactly-once",
    )
    assert (pipeline.setup.source.topic_names, pipeline.setup.source.value) == (("orders",), Json("id BIGINT"))
    assert (pipeline.limits, pipeline.setup.membership, pipeline.setup.budget) == (Limits(), Group(), Budget())
    (spec,) = pipeline.specs
    assert (spec.name, spec.write, spec.key) == ("orders", "append", ())


@pytest.mark.parametrize(
    ("format", "found"),
    [
        ('"http://registry:8081"', Protobuf("http://registry:8081")),
        (
            '{ registry = { url = "http://registry:8081" }, message = "shop.Order", ids = "headers" }',
            Protobuf(Registry("http://registry:8081"), message="shop.Order", ids="headers"),
        ),
    ],
)
def test_values_and_keys_may_be_protobuf(load: Load, format: str, found: Protobuf) -> None:
    protobuf = f"{{ protobuf = {format} }}"
    source = load(MINIMAL.replace('{ json = "id BIGINT" }', f"{protobuf}\nkey = {protobuf}")).setup.source
    assert (source.value, source.key) == (found, found)


def test_a_file_can_merge_rows(load: Load) -> None:
    merge = 'key = "shop"\nwrite = "merge"\nmerge = { orders = "count", revenue = "sum" }\nsql = "SELECT'
    (spec,) = load(MINIMAL.replace('sql = "SELECT', merge)).specs
    assert (spec.write, spec.functions) == ("merge", {"orders": "count", "revenue": "sum"})
    (spec,) = load(MINIMAL.replace('sql = "SELECT', merge.replace('"sum"', '"append(20)"'))).specs
    assert (spec.functions["revenue"], spec.bounds) == ("append", {"revenue": 20})
    for written, words in (("average", "is not known; write sum, count,"), ("append", "say how many elements stay")):
        (sentence,) = refusal(load, MINIMAL.replace('sql = "SELECT', merge.replace('"count"', f'"{written}"')))
        assert "shop.toml line 7: table orders: merge={'orders': " in sentence
        assert words in sentence
    assert not spec.inexact
    (inexact,) = load(MINIMAL.replace('sql = "SELECT', f"inexact = true\n{merge}")).specs
    assert inexact.inexact


def test_a_file_can_say_all_that_a_pipeline_can_be_told(load: Load) -> None:
    pipeline = load("""
        group = "g"
        store = "sqlite:///a.db"
        ledger = { url = "sqlite:///b.db" }
        delivery = "at-least-once"
        start = "latest"
        on_loss = "record"
        on_drift = "fail"
        patience = "5s"
        road = "driver"
        [source]
        brokers = "localhost:9092"
        topics = ["b", "^a-.*"]
        format = "bytes"
        tls = true
        settings.session.timeout.ms = 10000
        [source.security]
        mechanism = "PLAIN"
        username = "shop"
        password = "x"
        [tables."the orders"]
        sql = "SELECT value FROM records"
        key = ["a", "b"]
        write = "upsert"
        version = "v"
        delete = "tombstone"
        provenance = true
        create = false
        evolve = true
        per_batch = true
        [limits]
        records = 10
        seconds = 1
        [budget]
        max_dead_ratio = 0.5
        max_dead_ratio_per_batch = 1
        window = "1h30m"
        [retention]
        batches = "30d"
        settled_letters = "1h30m"
        [catch_up]
        when_behind = "1h"
        keep = "5m"
        [membership]
        instance = "worker-7"
        [spark]
        spark.master = "local[1]"
        spark.ui.enabled = false
    """)
    setup = pipeline.setup
    assert (setup.ledger, setup.delivery, setup.on_loss, setup.patience) == (
        "sqlite:///b.db",
        "at-least-once",
        "record",
        5.0,
    )
    assert setup.on_drift == "fail"
    assert (setup.starts.kind, setup.starts.prefer_saved, pipeline.road) == ("latest", False, "driver")
    assert (setup.source.topic_names, setup.source.value) == (("^a-.*", "b"), Bytes())
    assert (setup.source.settings, setup.source.cluster.protocol) == ({"session.timeout.ms": 10000}, "SASL_SSL")
    (spec,) = pipeline.specs
    assert (spec.name, spec.key, spec.version, spec.deletes) == ("the orders", ("a", "b"), "v", "value IS NULL")
    assert (spec.provenance, spec.create, spec.evolve, spec.per_batch) == (True, False, True, True)
    assert pipeline.limits == Limits(records=10, seconds=1)
    assert setup.budget == Budget(max_dead_ratio=0.5, window=timedelta(minutes=90), max_dead_ratio_per_batch=1)
    assert setup.retention == Retention(batches="30d", settled_letters="1h30m")
    assert setup.catch_up == SkipAhead(when_behind="1h", keep="5m")
    assert setup.membership == Group(instance="worker-7")
    assert pipeline.spark == {"spark.master": "local[1]", "spark.ui.enabled": "false"}


def test_there_is_a_key_for_every_setting() -> None:
    keys = PipelineFile.model_fields.keys()
    assert keys >= Settings.__annotations__.keys()
    assert keys >= inspect.signature(Pipeline.__init__).parameters.keys() - {"self", "settings"}
    told = inspect.signature(Pipeline.table).parameters.keys() - {"self", "name"}
    assert Table.model_fields.keys() == told | {"sql"}


def test_a_pipeline_can_read_alone(load: Load) -> None:
    assert load(f"standalone = true\n{MINIMAL}").setup.membership == Standalone()
    alone = load(f"{MINIMAL}[standalone]\norders = [0, 2]\n").setup.membership
    assert alone == Standalone({"orders": [0, 2]})
    both = refusal(load, f"{MINIMAL}[standalone]\norders = [0]\n[membership]\ndrain = 3\n")
    assert both == ["shop.toml line 9: standalone reads without a group; leave out standalone, or [membership]"]


@pytest.mark.parametrize(
    ("change", "to", "said"),
    [
        ("[tables.orders]", '[tables.orders]\nwrite = "upser"',
         'shop.toml line 8: tables.orders.write must be append, upsert, ignore, merge or replica, not "upser"'),
        ("topics =", "topcs =", "shop.toml line 5: source.topcs is not known; did you mean topics?"),
        ("[source]", "[zebra]\n[source]", "shop.toml line 3: zebra is not known; known here are group, store"),
        ('sql = "', 'key = 3\nsql = "', "line 8: tables.orders.key must be text or a list, not a whole number"),
        ("group =", "patience = true\ngroup =", "patience must be a time or text or a number, not true or false"),
        ("group =", "patience = 'soon'\ngroup =", "shop.toml line 1: patience='soon' is not a duration"),
        ('brokers = "localhost:9092"\n', "", "shop.toml line 3: source.brokers is missing"),
        ("[source]", "[limits]\nrecords = 0\n[source]", "shop.toml line 3: limits must be positive"),
        ("[source]", "[limits]\nrecord = 1\n[source]", "line 4: limits.record is not known; did you mean records?"),
        ("[source]", "[catch_up]\nkeep = 1.5\n[source]",
         "line 4: catch_up.keep must be a whole number or a time or text, not a number"),
        ("[source]", '[retention]\nruns = "5 days"\n[source]', "line 3: Retention: runs='5 days' is not a duration"),
        ("[source]", '[budget]\nwindow = "9d"\n[source]', "keeps commits for 7 days, 0:00:00; set retention="),
        ("[source]", '[budget]\nwindow = "soon"\n[source]', "line 3: Budget: window='soon' is not a duration"),
        ("[source]", '[source.tls]\nca = "/none.pem"\n[source]', "line 3: Tls(ca='/none.pem'): the file can't be read"),
        ("[source]", "[source.tls]\nca = 1\n[source]", "line 4: source.tls.ca must be text, not a whole number"),
        ("group =", 'start = "tomorrow"\ngroup =', "line 1: start='tomorrow' is not a first-poll strategy"),
        ('"orders-to-shop"', '""', "shop.toml line 1: group= must be a name"),
        ("[tables.orders]", '[tables.orders]\nevolve = "later"',
         'shop.toml line 8: tables.orders.evolve must be true or false or follow, not "later"'),
        ("[tables.orders]", '[tables.orders]\nevolve = "follow"',
         "shop.toml line 7: table orders: evolve='follow' needs records whose schemas are in a registry"),
        ("[tables.orders]", '[tables.orders]\nwrite = "upsert"', "line 7: table orders: upsert needs key="),
        ('{ json = "id BIGINT" }', "{}", "shop.toml line 6: source.format must have one format"),
        ('{ json = "id BIGINT" }', '{ protobuf = { message = "shop.Order" } }',
         "shop.toml line 6: Protobuf() needs registry= or schema="),
        ('{ json = "id BIGINT" }', '{ protobuf = { registry = "http://r", mesage = "shop.Order" } }',
         "source.format.protobuf.mesage is not known; did you mean message?"),
        ('{ json = "id BIGINT" }', '"avro"', 'shop.toml line 6: source.format must be bytes, not "avro"'),
        ("[source]", '[source.settings]\ngroup.id = "x"\n[source]', "Kafka(settings=...): group.id can't be set"),
        ("[tables.orders]", "[tables.orders]\nwrite =", "shop.toml line 8: this is not TOML: "),
        ('"sqlite:///shop.db"', "5", "shop.toml line 2: store must be text or a table, not a whole number"),
        ("[source]", "on_loss = 'fail'\nmetrics_port = 70000\n[source]", "line 4: metrics_port=70000 is not a port"),
        ("[source]", "standalone = true\nmirror = true\n[source]", "shop.toml line 4: mirror=True writes to a Kafka"),
        ("[source]", "[membership]\nprotocol = 'consumer'\n[source]\nsettings.session.timeout.ms = 10000",
         "line 3: Kafka(settings=...): Group(protocol='consumer') takes session.timeout.ms from"),
        ("localhost:9092", "localhost:x", "shop.toml line 4: 'localhost:x' is not a broker address"),
        ('"orders"', '"^orders-["', "shop.toml line 5: Kafka(): topic pattern '^orders-[' is not a regular expression"),
        ("format =", 'settings.group.id = "x"\nformat =', "line 6: Kafka(settings=...): group.id can't be set"),
        ("[source]", "patience = nan\n[source]", "shop.toml line 3: patience is nan; write a number"),
        ("[source]", "[limits]\nseconds = nan\n[source]", "line 4: limits.seconds is nan; write a number"),
        ('[tables.orders]\nsql = "SELECT value.* FROM records"', "[tables]",
         "shop.toml line 7: tables has none; add one, such as [tables.orders] with sql"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_a_line_a_key_and_a_way_out(load: Load, change: str, to: str, said: str) -> None:
    assert change in MINIMAL
    (sentence,) = refusal(load, MINIMAL.replace(change, to, 1))
    assert said in sentence


def test_every_mistake_is_told_at_once(load: Load) -> None:
    text = MINIMAL.replace("topics", "topic").replace("group", "grup").replace("brokers =", "# brokers =")
    assert refusal(load, text) == [
        "shop.toml line 1: grup is not known; did you mean group?",
        "shop.toml line 3: source.brokers is missing",
        "shop.toml line 5: source.topic is not known; did you mean topics?",
    ]


def test_the_environment_fills_in_texts_and_is_asked_for_by_name(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_GROUP", "g7")
    monkeypatch.setenv("EMPTY", "")
    assert load(MINIMAL.replace("orders-to-shop", "${SHOP_GROUP}-${EMPTY:-x}")).group == "g7-x"
    assert filled("$${HOME} $x $$ ${EMPTY:-}") == "${HOME} $x $$ "
    text = MINIMAL.replace("orders-to-shop", "${EMPTY}").replace("value.*", "${no var}")
    assert refusal(load, text) == [
        "shop.toml line 1: group needs the variable EMPTY, which is not set; set it, or write ${EMPTY:-default}",
        "shop.toml line 8: tables.orders.sql has a ${ that names no variable; write ${NAME}, ${NAME:-default}, "
        "or $${ for the text ${",
    ]


def test_a_password_is_kept_apart_from_its_url(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p@ss/word")
    place = '{ url = "postgresql://shop@localhost/shop", password = "${SHOP_PASSWORD}" }'
    assert load(MINIMAL.replace('"sqlite:///shop.db"', place)).setup.store == (
        "postgresql://shop:p%40ss%2Fword@localhost/shop"
    )
    place = '{ url = "postgresql://shop@localhost/shop?tls=verify", password_file = "/run/secrets/shop" }'
    assert load(MINIMAL.replace('"sqlite:///shop.db"', place)).setup.store == (
        "postgresql://shop@localhost/shop?password_file=%2Frun%2Fsecrets%2Fshop&tls=verify"
    )


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("group", "grup"),
        ("topics", "topcs"),
        ("[tables.orders]", '[tables.orders]\nwrite = "${CANARY}"'),
        ('"sqlite:///shop.db"', '{ ur = "postgresql://shop:${CANARY}@h/x" }'),
        ('"sqlite:///shop.db"', '{ url = "postgresql://h/x", password = ["${CANARY}"] }'),
        ('"sqlite:///shop.db"', '["postgresql://shop:${CANARY}@h/x"]'),
        ("[tables", '[source.security]\nmechanism = "PLAIN"\npasword = "${CANARY}"\n[tables'),
        ("[tables", '[source.security]\nmechanism = "NONE"\nusername = "u"\npassword = "${CANARY}"\n[tables'),
        ("[tables", '[source.security]\nmechanism = "PLAIN"\nusername = 5\npassword = "${CANARY}"\n[tables'),
        ("[tables", '[spark]\n"spark.x" = "${CANARY}"\n[tabels.x]\n[tables'),
        ("localhost:9092", "kafka://user:${CANARY}@host:9092"),
        ("localhost:9092", "a:1, ${ADDRESSES}"),
        ('"orders"', '"^${CANARY}["'),
        ("[source]", 'start = "${CANARY}"\n[source]'),
        ("[source]", '[budget]\nwindow = "${CANARY}"\n[source]'),
        ("[source]", '[source.tls]\nca = "/${CANARY}"\n[source]'),
        ("[source]", '[catch_up]\nkeep = "${CANARY}"\n[source]'),
    ],
)
def test_no_error_shows_a_secret(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str, to: str
) -> None:
    monkeypatch.setenv("CANARY", CANARY)
    monkeypatch.setenv("ADDRESSES", f"b:2,kafka://user:{CANARY}@host:9092")
    text = (
        MINIMAL.replace('"sqlite:///shop.db"', '"postgresql://shop:${CANARY}@h/x"')
        if "sqlite" not in change
        else MINIMAL
    )
    with pytest.raises(BadInput) as refused:
        load(text.replace(change, to, 1))
    assert CANARY not in f"{refused.getrepr(showlocals=False)} {refused.value!r} {caplog.text}"
    error: BaseException | None = refused.value
    while error is not None:
        assert CANARY not in f"{error} {error!r}"
        error = error.__context__


def test_an_error_shows_what_stands_in_the_file(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "x1")
    monkeypatch.setenv("QUOTED", "it's\\")
    (said,) = refusal(load, MINIMAL.replace("localhost:9092", "localhost:${PORT},b:2"))
    assert said == "shop.toml line 4: 'localhost:${PORT}' is not a broker address; write host:port"
    (said,) = refusal(load, MINIMAL.replace('"orders"', '"^[${QUOTED}"'))
    assert 'line 5: Kafka(): topic pattern "^[${QUOTED}" is not' in said


def test_lines_are_those_of_the_keys_whatever_strings_and_comments_hold() -> None:
    text = '''
# a = 1
[a."b.c"]     # [x]
one = """
two = 2
[three]
""" # four = 4
five = [
  "six = 6",
]
'seven' = {eight = 8}
[[nine]]
ten.eleven = '"""'
twelve = 12
'''
    assert find_lines(text) == {
        ("a", "b.c"): 3,
        ("a", "b.c", "one"): 4,
        ("a", "b.c", "five"): 8,
        ("a", "b.c", "seven"): 11,
        ("nine",): 12,
        ("nine", "ten"): 13,
        ("nine", "ten", "eleven"): 13,
        ("nine", "twelve"): 14,
    }


def test_tls_may_be_a_table(load: Load, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    pipeline = load(f'{MINIMAL}[source.tls]\nca = "{authority}"\n')
    assert pipeline.setup.source.cluster.tls == Tls(ca=str(authority))
