"""Merge functions: what is refused before anything runs, and what becomes of the rows of one batch."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tallymark.core.merging import unfit
from tallymark.core.newest import finish, sendable
from tallymark.core.tables import OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec
from tallymark.errors import BadInput, DataRefused
from tallymark.kafka.source import Kafka
from tallymark.run.setup import Job, Setup, new_owner


def spec(version: str | None = None, key: tuple[str, ...] = ("k",), **merge: Any) -> TableSpec:
    return TableSpec("t", key, "merge", version, merge=tuple(merge.items()))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"write": "merge", "key": ("k",)}, "merge needs merge=, which says how each column is combined"),
        ({"write": "merge", "merge": (("n", "sum"),)}, "merge needs key="),
        ({"write": "upsert", "key": ("k",), "merge": (("n", "sum"),)}, "merge= needs write='merge'"),
        ({"write": "merge", "key": ("k",), "merge": (("n", "avg"),)}, r"merge=\{'n': 'avg'\} is not known; write sum"),
        *(
            (
                {"write": "merge", "key": ("k",), "merge": (("n", function),)},
                rf"merge=\{{'n': '{re.escape(function)}'\}}: say how many elements stay, 1 to 10,000: append\(100\)",
            )
            for function in (
                "append",
                "append()",
                "append(0)",
                "append(10001)",
                "append(-1)",
                "append(x)",
                "append(1) ",
            )
        ),
        ({"write": "merge", "key": ("k",), "merge": (("n", 5),)}, r"merge=\{'n': 5\} is not known"),
        ({"write": "merge", "key": ("k",), "merge": (("k", "sum"),)}, "column k is in key= and in merge="),
        ({"version": "v", "merge": (("n", "sum"),)}, "version= needs a column that is merged by newest or oldest"),
        ({"version": "v", "merge": (("a", "newest"), ("b", "oldest"))}, "version= decides newest or oldest, "),
        ({"version": "v", "merge": (("a", "newest"), ("v", "min"))}, "version='v' is merged by max"),
        ({"delete": "tombstone", "merge": (("n", "sum"),)}, "delete= needs write='upsert'"),
        ({"provenance": True, "merge": (("n", "sum"),)}, "provenance= can't be kept by merge"),
        ({"per_batch": True, "merge": (("n", "sum"),)}, "per_batch= needs write='upsert' or 'ignore'"),
        ({"write": "upsert", "key": ("k",), "inexact": True}, "inexact=True needs write='merge'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=f"table t: {words}"):
        TableSpec("t", **{"key": ("k",), "write": "merge", **settings} if "write" not in settings else settings)


def job(spec: TableSpec, **settings: Any) -> Job:
    return Setup("g", Kafka("nowhere:1", "t"), "sqlite://", **settings).job(new_owner(), [spec])


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_totals_that_a_crash_makes_wrong_are_allowed_by_name(delivery: Any) -> None:
    exact = spec(n="sum")
    with pytest.raises(
        BadInput, match="would make wrong totals of it; set delivery='exactly-once', or inexact=True if"
    ):
        job(exact, delivery=delivery)
    inexact = replace(exact, inexact=True)
    assert list(job(inexact, delivery=delivery).tables) == [inexact]


@pytest.mark.parametrize("start", ["earliest", "timestamp=2026-01-31T00:00:00Z", 'offsets={"t": {"0": 1}}'])
def test_totals_that_every_run_adds_again_are_refused(start: str) -> None:
    for each in (spec(n="sum"), replace(spec(n="sum"), inexact=True)):
        with pytest.raises(BadInput, match="every run would add all records again; set start='uncommitted-"):
            job(each, start=start)
        assert job(each, start=f"uncommitted-{start}").start.prefer_saved
        assert not job(each, start="latest").start.prefer_saved
    assert not job(TableSpec("t"), start=start).start.prefer_saved


@pytest.mark.parametrize(
    ("schema", "merge", "words"),
    [
        ({"k": pa.int64()}, {"n": "sum"}, "does not return column n of merge="),
        (
            {"k": pa.int64(), "n": pa.int64(), "o": pa.int64()},
            {"n": "sum"},
            "column o is neither in key= nor in merge=",
        ),
        ({"k": pa.int64(), "n": pa.string()}, {"n": "sum"}, "column n is string, and sum needs a number"),
        ({"k": pa.int64(), "n": pa.float64()}, {"n": "count"}, "column n is double, and count needs an integer"),
        ({"k": pa.int64(), "n": pa.list_(pa.int64())}, {"n": "max"}, "has no order for max"),
        ({"k": pa.int64(), "n": pa.string()}, {"n": "append"}, "column n is string, and append needs an array"),
    ],
)
def test_columns_that_do_not_fit_are_named(schema: dict[str, Any], merge: Any, words: str) -> None:
    assert words in (unfit(merge, pa.schema(list(schema.items())), ["k"]) or "")


def sent(wanted: TableSpec, rows: list[dict[str, Any]], kinds: dict[str, Any]) -> list[dict[str, Any]]:
    table = pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
    for name, value in ((TOPIC, "t"), (PARTITION, 0), (TIMESTAMP, None)):
        kind = pa.timestamp("us", "UTC") if value is None else None
        table = table.append_column(name, pa.array([value] * len(rows), kind))
    table = table.append_column(OFFSET, pa.array(range(len(rows))))
    found: list[dict[str, Any]] = sendable(wanted, finish(wanted, table, "batch").puts).to_pylist()
    return found


def test_rows_of_a_key_become_one() -> None:
    wanted = spec("v", n="sum", c="count", a="min", z="max", s="newest", f="first")
    kinds = {"k": pa.int64(), "n": pa.int64(), "c": pa.int64(), "a": pa.string(), "z": pa.string()}
    kinds |= {"s": pa.string(), "f": pa.string(), "v": pa.int64()}
    rows: list[dict[str, Any]] = [
        {"k": 2, "n": 1, "c": None, "a": "b", "z": "b", "s": "two", "f": None, "v": 2},
        {"k": 1, "n": None, "c": None, "a": None, "z": None, "s": "none", "f": None, "v": None},
        {"k": 2, "n": 2, "c": 1, "a": "B", "z": "ä", "s": "one", "f": "x", "v": 1},
        {"k": 2, "n": None, "c": 1, "a": None, "z": None, "s": None, "f": "y", "v": 2},
    ]
    assert sent(wanted, rows, kinds) == [
        {"k": 1, "n": None, "c": 0, "a": None, "z": None, "s": "none", "f": None, "v": None},
        {"k": 2, "n": 3, "c": 2, "a": "B", "z": "ä", "s": None, "f": "x", "v": 2},
    ]


def test_a_missing_count_is_0_also_if_every_key_has_one_row() -> None:
    rows: list[dict[str, Any]] = [{"k": 1, "c": None}, {"k": 2, "c": 3}]
    kinds = {"k": pa.int64(), "c": pa.int64()}
    assert sent(spec(c="count"), rows, kinds) == [{"k": 1, "c": 0}, {"k": 2, "c": 3}]


def test_sums_never_wrap() -> None:
    most = 2**63 - 1
    kinds = {"k": pa.int64(), "n": pa.int64()}
    assert sent(spec(n="sum"), [{"k": 1, "n": n} for n in (most, most, -most)], kinds) == [{"k": 1, "n": most}]
    with pytest.raises(DataRefused, match="column n: the sum does not fit int64"):
        sent(spec(n="sum"), [{"k": 1, "n": most}, {"k": 1, "n": 1}], kinds)
    wide = Decimal(10**38 - 1)
    with pytest.raises(DataRefused, match="the sum does not fit decimal128"):
        sent(spec(n="sum"), [{"k": 1, "n": wide}] * 3, kinds | {"n": pa.decimal128(38, 0)})
