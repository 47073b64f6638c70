"""Keys go to the partitions of Java's default partitioner: compared with results of the real Java client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.errors import BadInput
from tallymark.produce.settings import REFRESH_SECONDS, Choice, java_partition, murmur2

TESTS = Path(__file__).parent.parent
VECTORS: list[list[int | str]] = json.loads((TESTS / "data" / "murmur2.json").read_text())
"""A key in hex, its hash in Java, and its partition of 1, 7, 12 and 100."""
COUNTS = (1, 7, 12, 100)


def described(key: bytes) -> list[int | str]:
    unsigned = murmur2(key)
    return [key.hex(), unsigned - ((unsigned >> 31) << 32), *(java_partition(key, count) for count in COUNTS)]


def test_hashes_and_partitions_are_those_that_the_java_client_has_computed() -> None:
    assert len(VECTORS) > 180
    assert [described(bytes.fromhex(str(vector[0]))) for vector in VECTORS] == VECTORS


@given(st.binary(max_size=64), st.integers(1, 10_000))
def test_a_key_has_one_partition_and_it_exists(key: bytes, partitions: int) -> None:
    assert 0 <= murmur2(key) < 2**32
    assert 0 <= java_partition(key, partitions) < partitions
    assert java_partition(key, partitions) == java_partition(bytes(bytearray(key)), partitions)


@given(st.binary(min_size=1, max_size=64), st.data())
def test_any_change_of_a_single_bit_changes_the_hash(key: bytes, data: st.DataObject) -> None:
    at, bit = data.draw(st.integers(0, len(key) - 1)), data.draw(st.integers(0, 7))
    changed = key[:at] + bytes([key[at] ^ 1 << bit]) + key[at + 1 :]
    assert murmur2(changed) != murmur2(key)


def test_a_partitioner_gets_the_topic_the_bytes_of_the_key_and_the_number_of_partitions() -> None:
    asked: list[tuple[str, bytes | None, int]] = []
    choice = Choice(lambda *what: asked.append(what) or 2, lambda _: 3)  # type: ignore[func-returns-value]
    assert [choice("orders", key) for key in ("é", b"\xff", None)] == [2, 2, 2]
    assert asked == [("orders", "é".encode(), 3), ("orders", b"\xff", 3), ("orders", None, 3)]


@pytest.mark.parametrize("wrong", [3, -1, None, "1", 1.0])
def test_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    with pytest.raises(BadInput, match=r"the partitioner returned .* for topic orders; return a number from 0 to 2"):
        Choice(lambda *_: wrong, lambda _: 3)("orders", "key")


def test_the_number_of_partitions_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, counts = [0.0], iter([3, 4])
    monkeypatch.setattr("tallymark.produce.settings.monotonic", lambda: now[0])
    choice = Choice(lambda _topic, _key, partitions: partitions - 1, lambda _: next(counts))
    now[0] = 1.0
    assert [choice("orders", "key") for _ in range(3)] == [2, 2, 2]
    now[0] = 1.0 + REFRESH_SECONDS
    assert choice("orders", "key") == 3
