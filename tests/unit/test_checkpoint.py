"""Offsets read from the directory of a Structured Streaming checkpoint, and batches that were not committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallymark.core.spans import Partition, Span
from tallymark.errors import BadInput
from tallymark.operate.takeover import read_checkpoint

ZERO, ONE = Partition("orders", 0), Partition("orders", 1)


def write(folder: Path, batch: int, *sources: Any, done: bool = True, version: str = "v1") -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    lines = [version, '{"batchWatermarkMs":0}', *(one if isinstance(one, str) else json.dumps(one) for one in sources)]
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))
    (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    if done:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_the_last_committed_batch_counts(tmp_path: Path) -> None:
    for batch in (8, 9, 10):
        write(tmp_path, batch, {"orders": {"0": batch * 10, "1": batch}})
    found = read_checkpoint(str(tmp_path))
    assert (found.batch, found.offsets(), found.unsure()) == (10, {ZERO: 100, ONE: 10}, [])
    assert read_checkpoint(f"file://{tmp_path}") == read_checkpoint(f"file:{tmp_path}") == found


def test_a_batch_that_was_begun_is_told(tmp_path: Path) -> None:
    write(tmp_path, 0, {"orders": {"0": 10}})
    write(tmp_path, 1, {"orders": {"0": 15, "1": 3}}, done=False)
    found = read_checkpoint(str(tmp_path))
    assert (found.offsets(), found.begun) == ({ZERO: 10}, 1)
    assert found.unsure() == [Span(ZERO, 10, 15), Span(ONE, 0, 3)]


def test_sources_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, 0, {"orders": {"0": 10}}, {"logOffset": 5}, "17", "-", {"orders": {"0": 11, "1": 2}})
    found = read_checkpoint(str(tmp_path))
    assert (found.offsets(0), found.offsets(3), found.offsets(4)) == ({ZERO: 10}, {}, {ZERO: 11, ONE: 2})
    with pytest.raises(BadInput, match="two of its sources read orders; choose one with --source"):
        found.offsets()
    with pytest.raises(BadInput, match="source 1 is not from Kafka"):
        found.offsets(1)
    with pytest.raises(BadInput, match=r"has no source 7; its sources are 0\.\.4"):
        found.offsets(7)


@pytest.mark.parametrize("place", ["s3a://bucket/checkpoint", "hdfs://host/checkpoint", "dbfs:/checkpoint"])
def test_only_folders_of_this_machine_are_read(place: str) -> None:
    with pytest.raises(BadInput, match="only a local folder can be read; copy"):
        read_checkpoint(place)


def test_what_is_no_checkpoint_gets_one_sentence(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(BadInput, match="is not a checkpoint of Structured Streaming"):
            read_checkpoint(str(folder))
    write(tmp_path, 0, {"orders": {"0": 10}}, done=False)
    with pytest.raises(BadInput, match="no batch was committed"):
        read_checkpoint(str(tmp_path))
    write(tmp_path, 0, {"orders": {"0": 10}}, version="v2")
    with pytest.raises(BadInput, match="has format v2; only v1"):
        read_checkpoint(str(tmp_path))
    write(tmp_path, 0, {"orders": {"0": -2}})
    with pytest.raises(BadInput, match="negative offset"):
        read_checkpoint(str(tmp_path))
