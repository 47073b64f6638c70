"""Arrays are appended as text: elements keep their text, and the last ones stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.arrays import appended, joined, no_array
from tallymark.core.tables import OFFSET, PARTITION, TOPIC, TableSpec, check_unmerged, unusable_rows
from tallymark.errors import BadInput

space = st.text(" \t\n\r", max_size=2)
element = st.sampled_from(
    ["1.50", "-0", "1e400", "9" * 400, "null", "true", '""', '"a,]"', r'"\\"', r'"\","', r'"\\\","', r'"\ud800"', "[]"]
) | st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4).map(
    json.dumps
)
bounds = st.integers(1, 6)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, list[str]]:
    """An array, and the texts of its elements."""
    texts = draw(st.lists(element, max_size=8))
    inner = ",".join(f"{draw(space)}{text}{draw(space)}" for text in texts)
    return f"{draw(space)}[{inner or draw(space)}]{draw(space)}", texts


def exact(text: str) -> Any:
    """The elements with their numbers as they are written."""
    return json.loads(text, parse_int=lambda digits: ("number", digits), parse_float=lambda digits: ("number", digits))


def join(texts: Sequence[str | None], starts: Sequence[bool], bound: int) -> list[str | None]:
    """In several chunks, as rows arrive."""
    middle = len(texts) // 2
    chunks = [pa.array(part, pa.string()) for part in (texts[:middle], texts[middle:])]
    result: list[str | None] = joined(pa.chunked_array(chunks), np.array(starts), bound).to_pylist()
    return result


@given(st.lists(st.tuples(st.none() | arrays(), st.booleans()), min_size=1), bounds)
def test_the_last_elements_of_each_group_stay(rows: list[tuple[Any, bool]], bound: int) -> None:
    starts = [True, *(start for _, start in rows[1:])]
    groups: list[list[Any]] = []
    for (array, _), start in zip(rows, starts, strict=True):
        groups += [[]] if start else []
        groups[-1].append(array)
    found = join([array and array[0] for array, _ in rows], starts, bound)
    for group, text in zip(groups, found, strict=True):
        known = [texts for _, texts in filter(None, group)]
        kept = [each for texts in known for each in texts][-bound:]
        assert (text is None) == (not known)
        assert text is None or exact(text) == exact(f"[{','.join(kept)}]")
        assert text is None or all(each in text for each in kept)


@given(st.lists(arrays(), min_size=1), st.data(), bounds)
def test_the_result_does_not_depend_on_where_batches_begin(
    rows: list[tuple[str, list[str]]], data: st.DataObject, bound: int
) -> None:
    texts = [text for text, _ in rows]
    places = sorted(data.draw(st.sets(st.integers(1, max(1, len(texts) - 1)))))
    batches = [texts[start:stop] for start, stop in zip([0, *places], [*places, len(texts)], strict=True)]
    (whole,) = join(texts, [at == 0 for at in range(len(texts))], bound)
    parts = [join(batch, [at == 0 for at in range(len(batch))], bound)[0] or "" for batch in batches if batch]
    assert exact(reduce(lambda stored, part: appended(stored, part, bound), parts)) == exact(whole or "")


@pytest.mark.parametrize("stored", [None, 5, b"[]", "{}", '"[]"', "null", "1"])
def test_nothing_is_appended_to_a_value_that_is_no_array(stored: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        appended(stored, "[1]", 3)


def test_a_value_that_is_no_array_refuses_its_record() -> None:
    assert (
        no_array(pa.chunked_array([["[1]", " [", None, "{}", "1", '"["', "null"]])).to_pylist()
        == [False] * 3 + [True] * 4
    )
    wanted = TableSpec("t", ("k",), "merge", merge=(("log", "append(3)"),))
    rows = pa.table({"k": [1, 1, 1], "log": ["[1]", '{"a": 1}', None], TOPIC: ["t"] * 3, PARTITION: [0] * 3})
    (refused,) = unusable_rows(wanted, rows.append_column(OFFSET, pa.array([7, 8, 9])))
    assert (refused.offset, refused.error) == (8, "column log is no JSON array, as append needs it")


def test_merged_records_have_no_order_of_elements() -> None:
    wanted = TableSpec("t", ("k",), "merge", merge=(("log", "append(3)"),))
    words = "table t: its function merges records, so that nothing tells the order of the elements of log; return a row"
    with pytest.raises(BadInput, match=words):
        check_unmerged(wanted)
