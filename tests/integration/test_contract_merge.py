"""The contract of every store for ``write="merge"``, against an oracle written from docs/reference/merging.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, getcontext
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tallymark.core.newest import finish
from tallymark.core.spans import Partition
from tallymark.core.tables import OFFSET, PARTITION, TIMESTAMP, TOPIC, TableSpec, unusable_rows
from tallymark.errors import BadInput, TallymarkError
from tallymark.stores.arrow import JSON_MARK
from tallymark.stores.contract import RowsRefused, Store
from tallymark.stores.opening import open_store
from tallymark.stores.sql import mysql
from tests.support.databases import KINDS, execute
from tests.support.truth import rows

few = settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
numbers = count()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=[*KINDS, "mariadb-many", "redis"])
def url(request: pytest.FixtureRequest, database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    kind, _, other = request.param.partition("-")
    monkeypatch.setattr(mysql, "MANY", 1 if other == "many" else 1_000)
    return database(kind)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    yield made
    made.close()


SCHEMA = pa.schema(
    [
        ("shop", pa.string()),
        ("day", pa.int32()),
        ("orders", pa.int64()),
        ("seen", pa.int32()),
        ("revenue", pa.decimal128(20, 2)),
        ("weight", pa.float64()),
        ("least", pa.decimal128(10, 3)),
        ("largest", pa.int64()),
        ("word", pa.string()),
        ("first_at", pa.timestamp("us", "UTC")),
        ("state", pa.string()),
        ("at", pa.int64()),
        ("kept", pa.string()),
        pa.field("log", pa.string(), metadata={JSON_MARK: b"1"}),
    ]
)
KEY = ("shop", "day")
MERGE: dict[str, Any] = {
    "orders": "sum",
    "seen": "count",
    "revenue": "sum",
    "weight": "sum",
    "least": "min",
    "largest": "max",
    "word": "max",
    "first_at": "min",
    "state": "newest",
    "kept": "first",
    "log": "append(4)",
}


def spec(*, version: str | None = "at", **changes: Any) -> TableSpec:
    merge = {**MERGE, **changes}
    return TableSpec(f"t{next(numbers)}", KEY, "merge", version, merge=tuple(merge.items()))


words = st.none() | st.sampled_from(["", "a", "B", "b", "ä", "𝄞", "￿"])
row = st.fixed_dictionaries(
    {
        "shop": st.sampled_from(["x", "X", "x "]),
        "day": st.integers(-1, 0),
        "orders": st.none() | st.integers(-(2**53) - 2, 2**53 + 2),
        "seen": st.none() | st.integers(0, 5),
        "revenue": st.none() | st.decimals(-(10**12), 10**12, places=2),
        # Sums of these are exact, in any order.
        "weight": st.none() | st.integers(-1000, 1000).map(lambda number: number / 8),
        "least": st.none() | st.decimals(-20, 20, places=3),
        "largest": st.none() | st.sampled_from([-(2**63), -1, 0, 9, 10, 2**53, 2**53 + 1, 2**63 - 1]),
        "word": words,
        "first_at": st.none() | st.integers(-5, 5).map(lambda seconds: NOON + timedelta(seconds=seconds * 1.000001)),
        "state": words,
        "at": st.none() | st.integers(-3, 3),
        "kept": words,
        "log": st.none()
        | st.lists(st.integers(-1, 9) | words | st.just({"a": [1, "],["]}), max_size=6).map(json.dumps),
    }
)
batches = st.lists(st.lists(row, max_size=5), min_size=1, max_size=5)
Row = dict[str, Any]


def total(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def bytewise(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def best(choose: Callable[..., Any], values: Sequence[Any]) -> Any:
    return choose((value for value in values if value is not None), key=bytewise, default=None)


def last(arrays: Sequence[str | None], most: int) -> list[Any] | None:
    """The last elements of the arrays, one after the other. NULL adds nothing."""
    known = [json.loads(array) for array in arrays if array is not None]
    return [element for array in known for element in array][-most:] if known else None


def by_version(rows: Sequence[Row], column: str, *, newest: bool) -> Any:
    """The value of the row with the highest or lowest version: of equal ones the last or the first row."""
    known = [each for each in rows if each["at"] is not None]
    if not known:
        return rows[-1 if newest else 0][column]
    edge = (max if newest else min)(each["at"] for each in known)
    return [each for each in known if each["at"] == edge][-1 if newest else 0][column]


def expected(wanted: TableSpec, all_rows: Sequence[Row]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What docs/reference/merging.md promises of these rows, whatever batches they were in."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for each in all_rows:
        groups.setdefault((each["shop"], each["day"]), []).append(each)
    merge, found = dict(wanted.merge), {}
    for key, group in groups.items():
        values = {name: [each[name] for each in group] for name in SCHEMA.names}
        cells: Row = {}
        for name in SCHEMA.names[2:]:
            function = merge.get(name) or ("min" if "oldest" in merge.values() else "max")
            if function in ("sum", "count"):
                cells[name] = total(values[name])
                if function == "count":
                    cells[name] = cells[name] or 0
            elif function in ("min", "max"):
                cells[name] = best(min if function == "min" else max, values[name])
            elif function == "append(4)":
                cells[name] = last(values[name], 4)
            elif function == "first":
                cells[name] = next((value for value in values[name] if value is not None), None)
            else:
                cells[name] = by_version(group, name, newest=function == "newest")
        found[key] = tuple(cells[name] for name in SCHEMA.names[2:])
    return found


def table_of(batch: Sequence[Row], first: int = 0, schema: pa.Schema = SCHEMA) -> pa.Table:
    made = pa.Table.from_pylist(list(batch), schema)
    for name, kind, value in (
        (TOPIC, pa.string(), "t"),
        (PARTITION, pa.int32(), 0),
        (TIMESTAMP, SCHEMA.field("first_at").type, NOON),
    ):
        made = made.append_column(name, pa.array([value] * len(batch), kind))
    return made.append_column(OFFSET, pa.array(range(first, first + len(batch)), pa.int64()))


def put(store: Store, wanted: TableSpec, batch: pa.Table, schema: pa.Schema = SCHEMA) -> None:
    store.create_tables([wanted], {wanted.name: schema})
    store.apply([finish(wanted, batch, "batch")], None)


def typed(name: str, value: Any) -> Any:
    """A cell as its column's type: SQLite stores times and decimals as text, Redis everything."""
    kind = SCHEMA.field(name).type
    if name == "log":
        return json.loads(value) if isinstance(value, str) else value
    if value is None or pa.types.is_string(kind):
        return value if value is None else str(value)
    if pa.types.is_timestamp(kind):
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time
    convert = Decimal if pa.types.is_decimal(kind) else float if pa.types.is_floating(kind) else int
    return convert(str(value))


def found(url: str, wanted: TableSpec) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    # Drivers return some JSON as lists, which can't be counted.
    log = "log" if url.startswith("redis") else f"CAST(log AS {'CHAR' if url.startswith('mysql') else 'TEXT'})"
    cells = [tuple(map(typed, SCHEMA.names, each)) for each in rows(url, wanted.name, *SCHEMA.names[:-1], log)]
    return {each[:2]: each[2:] for each in cells}


@few
@given(batches=batches)
@pytest.mark.parametrize("choice", ["newest", "oldest"])
def test_merged_rows_are_what_all_records_make_together(
    choice: str, store: Store, url: str, batches: list[list[Row]]
) -> None:
    wanted, offset = spec(state=choice), 0
    for batch in batches:
        put(store, wanted, table_of(batch, offset))
        offset += len(batch)
    every = [each for batch in batches for each in batch]
    assert found(url, wanted) == expected(wanted, every)


def small(*given: tuple[Any, ...], schema: pa.Schema) -> pa.Table:
    names = [name for name in schema.names if name not in KEY]
    return table_of([{"shop": "x", "day": 0} | dict(zip(names, each, strict=True)) for each in given], schema=schema)


@pytest.mark.parametrize(
    ("function", "kind", "most"),
    [
        ("sum", pa.int32(), 2**31 - 1),
        ("sum", pa.int64(), 2**63 - 1),
        ("count", pa.int64(), 2**63 - 1),
        ("sum", pa.decimal128(38, 0), Decimal(10**38 - 1)),
        ("sum", pa.decimal128(5, 2), Decimal("999.99")),
    ],
    ids=str,
)
def test_a_sum_that_does_not_fit_refuses_the_record_at_fault_and_nothing_is_written(
    function: Any, kind: pa.DataType, most: Any, store: Store, url: str
) -> None:
    getcontext().prec = 60
    one = most - most + 1
    schema = pa.schema([SCHEMA.field("shop"), SCHEMA.field("day"), ("n", kind)])
    wanted = TableSpec(f"t{next(numbers)}", KEY, "merge", merge=(("n", function),))
    sqlite_int = url.startswith("sqlite") and kind == pa.int32()
    for start in (most - one, -most + one):
        put(store, wanted, small((start - start,), schema=schema), schema)
        step = one if start > 0 else -one
        put(store, wanted, small((start,), (None,), schema=schema), schema)
        if sqlite_int:
            # A column of SQLite holds 64 bits; only what one batch sums up is checked.
            for more in (2 * step, -start, -2 * step):
                put(store, wanted, small((more,), schema=schema), schema)
            assert list(rows(url, wanted.name, "n")) == [(0,)]
            continue
        with pytest.raises(RowsRefused) as refused:
            put(store, wanted, small((step,), (3 * step,), (-step,), schema=schema), schema)
        assert [refusal.record for refusal in refused.value.refusals] == [(Partition("t", 0), 1)]
        put(store, wanted, small((step,), schema=schema), schema)
        [(total_now, _)] = rows(url, wanted.name, "n").items()
        assert Decimal(str(total_now[0])) == Decimal(start + step)
        put(store, wanted, small((-start - step,), schema=schema), schema)


def test_sums_within_a_batch_are_exact_and_checked(store: Store, url: str) -> None:
    schema = pa.schema([SCHEMA.field("shop"), SCHEMA.field("day"), ("n", pa.int64())])
    wanted = TableSpec(f"t{next(numbers)}", KEY, "merge", merge=(("n", "sum"),))
    put(store, wanted, small((2**63 - 1,), (-(2**63),), (2**62,), schema=schema), schema)
    assert list(rows(url, wanted.name, "n")) == [(2**62 - 1,)]
    with pytest.raises(RowsRefused) as refused:
        put(store, wanted, small((2**62,), (2**62,), schema=schema), schema)
    assert len(refused.value.refusals) == 1
    assert list(rows(url, wanted.name, "n")) == [(2**62 - 1,)]
    most, schema = 10**38 - 1, schema.set(2, pa.field("n", pa.decimal128(38, 0)))
    wanted = TableSpec(f"t{next(numbers)}", KEY, "merge", merge=(("n", "sum"),))
    with pytest.raises(RowsRefused):
        put(store, wanted, small((most,), (most,), (most,), schema=schema), schema)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused_and_never_poisons_a_sum(store: Store, wrong: float) -> None:
    schema = pa.schema([SCHEMA.field("shop"), SCHEMA.field("day"), ("n", pa.float64())])
    wanted = TableSpec("t", KEY, "merge", merge=(("n", "sum"),))
    refused = unusable_rows(wanted, small((1.0,), (wrong,), schema=schema))
    assert [(refusal.offset, refusal.error) for refusal in refused] == [(1, "column n is not finite, as sum needs it")]


def test_handlers_merge_by_dicts_and_by_arrow(store: Store, url: str) -> None:
    name = f"t{next(numbers)}"
    for _ in range(2):
        with store.begin(lambda: None) as db:
            for n in (1, 2, None):
                row = {"shop": "x", "n": n, "top": n}
                db.write(name, row, key="shop", write="merge", merge={"n": "sum", "top": "max"})
            with suppress(ZeroDivisionError), db.savepoint():
                db.write(
                    name, {"shop": "x", "n": 100, "top": 1}, key="shop", write="merge", merge={"n": "sum", "top": "max"}
                )
                raise ZeroDivisionError
            given = pa.table({"shop": ["x", "y"], "n": [10, 20], "top": [0, 0]})
            db.write(name, given, key="shop", write="merge", merge={"n": "sum", "top": "max"})
    assert set(rows(url, name, "shop", "n", "top")) == {("x", 26, 2), ("y", 40, 0)}


def test_the_decimals_of_one_batch_of_dicts_do_not_limit_the_total(store: Store, url: str) -> None:
    name = f"t{next(numbers)}"
    for prices in (["60.00", "70.00"], ["1.5"], ["99.99"], ["0.001"]):
        with store.begin(lambda: None) as db:
            given = [{"shop": "x", "n": Decimal(price), "least": Decimal(price)} for price in prices]
            db.write(name, given, key="shop", write="merge", merge={"n": "sum", "least": "min"})
    assert [Decimal(str(n)) for (n,) in rows(url, name, "n")] == [Decimal("231.491")]
    assert [Decimal(str(n)) for (n,) in rows(url, name, "least")] == [Decimal("0.001")]


def test_decimals_with_other_digits_after_the_point_are_compared_exactly(store: Store, url: str) -> None:
    name = f"t{next(numbers)}"
    for price in ("9007199254740993.25", "9007199254740993.5", "-9007199254740993.25", "-9007199254740993.5"):
        with store.begin(lambda: None) as db:
            row = {"shop": "x", "most": Decimal(price), "least": Decimal(price)}
            db.write(name, row, key="shop", write="merge", merge={"most": "max", "least": "min"})
    [(found, _)] = rows(url, name, "most", "least").items()
    assert [Decimal(str(price)) for price in found] == [Decimal("9007199254740993.5"), Decimal("-9007199254740993.5")]


def test_dicts_may_have_columns_that_are_always_null(store: Store, url: str) -> None:
    name = f"t{next(numbers)}"
    merge: dict[str, Any] = {"n": "sum", "price": "sum", "seen": "count", "word": "max", "at": "min", "state": "newest"}
    known = {"n": 1, "price": Decimal("0.50"), "seen": 2, "word": "b", "at": NOON, "state": "new"}
    for row in (known, dict.fromkeys(known), known):
        with store.begin(lambda: None) as db:
            db.write(name, {"shop": "x", **row}, key="shop", write="merge", merge=merge)
    [(found, _)] = rows(url, name, "n", "price", "seen", "word", "state").items()
    assert (found[0], Decimal(str(found[1])), *found[2:]) == (2, 1, 4, "b", "new")


def test_a_column_without_a_function_is_refused_before_anything_is_written(store: Store) -> None:
    refused = pytest.raises(BadInput, match="column other is neither in key= nor in merge=")
    with refused, store.begin(lambda: None) as db:
        db.write("t", {"shop": "x", "n": 1, "other": 2}, key="shop", write="merge", merge={"n": "sum"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "merge", "value"),
    [("DOUBLE PRECISION", "sum", 1), ("VARCHAR(20)", "max", 1), ("NUMERIC(20, 2)", "sum", 1.5)],
    ids=["integers as doubles", "numbers as text", "doubles as decimals"],
)
def test_a_column_in_which_totals_would_be_wrong_is_refused(
    kind: str, column: str, merge: Any, value: Any, database: Callable[[str], str]
) -> None:
    url = database(kind)
    execute(url, f"CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, n {column})")
    store = open_store(url)
    rows_given = pa.table({"id": pa.array([1], pa.int32()), "n": [value]})
    with pytest.raises(TallymarkError, match="column n"), store.begin(lambda: None) as db:
        db.write("t", rows_given, key="id", write="merge", merge={"n": merge})
    assert rows(url, "t", "id") == Counter()
    store.close()
