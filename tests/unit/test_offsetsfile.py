"""Files of offsets, in both formats that Kafka's own tool writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.core.spans import Partition
from tallymark.errors import BadInput
from tallymark.operate.takeover import read_offsets, write_offsets

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=40)


@given(st.dictionaries(st.builds(Partition, TOPICS, st.integers(0, 999)), st.integers(0, 2**63 - 1), min_size=1))
def test_what_is_written_reads_the_same(offsets: dict[Partition, int]) -> None:
    assert read_offsets(write_offsets(offsets).splitlines(), "g", "file") == offsets


def test_both_forms_are_read_and_other_groups_left_out() -> None:
    lines = ["orders,0,17", "", 'g,"a-topic-with-a-long-name-indeed",1,40', "other,orders,1,99", " g , orders , 2 , 3 "]
    assert read_offsets(lines, "g", "file") == {
        Partition("orders", 0): 17,
        Partition("a-topic-with-a-long-name-indeed", 1): 40,
        Partition("orders", 2): 3,
    }


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["orders,0"], "file line 1: 'orders,0' is not topic,partition,offset"),
        (["orders,0,1", "orders,x,1"], "file line 2"),
        (["orders,0,-1"], "is not topic,partition,offset"),
        (["a,g,orders,0,1"], "is not topic,partition,offset"),
        (["orders,0,1", "orders,0,2"], r"file line 2: orders\[0\] appears twice, with 1 and 2"),
        (["other,orders,0,1"], "file has no offsets of group g"),
        ([], "file has no offsets of group g"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(lines: list[str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_offsets(lines, "g", "file")
