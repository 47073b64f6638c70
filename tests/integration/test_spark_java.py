"""The Java classes are loaded on machines without a cache, and a driver that can't load them says what helps."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark import Json
from tallymark.core.records import PartitionCounts
from tallymark.core.spans import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LOAD = """
from pyspark.sql import SparkSession
from tallymark import Json
from tallymark.errors import BadInput
from tallymark.formats.decoders import Decoders
from tallymark.spark.decode import SparkDecoder

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
thread = spark._jvm.java.lang.Thread.currentThread()
usual = thread.getContextClassLoader()
thread.setContextClassLoader(spark._jvm.java.lang.ClassLoader.getSystemClassLoader())
try:
    SparkDecoder(spark, Decoders.of(Json("id BIGINT")))
except BadInput as refused:
    print("refused:", refused)
thread.setContextClassLoader(usual)
SparkDecoder(spark, Decoders.of(Json("id BIGINT")))
print("loaded")
spark.stop()
"""


def test_without_a_cache_they_are_compiled_and_leave_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TALLYMARK_CACHE": "/dev/null/none", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    refused, loaded = done.stdout.splitlines() or ("", done.stderr)
    assert refused.startswith("refused: this Spark driver can't load tallymark-")
    assert "start it with --jars /" in refused
    assert loaded == "loaded"
    assert list(tmp_path.glob("tallymark-*")) == []


def of_orders(spark: SparkSession, offsets: range) -> DataFrame:
    """Records of one partition in one task; every fifth can't be decoded."""
    from tallymark.spark.scan import RAW_RECORDS

    rows = [(None, b"{}" if n % 5 else b"no", "orders", 0, n, NOON, None) for n in offsets]
    return spark.createDataFrame(rows, RAW_RECORDS).coalesce(1)


def test_records_are_counted_and_what_is_counted_twice_is_noticed(spark: SparkSession) -> None:
    from tallymark.formats.decoders import Decoders
    from tallymark.spark.counting import counted
    from tallymark.spark.decode import SparkDecoder

    decode = SparkDecoder(spark, Decoders.of(Json("id BIGINT")))
    first, second = of_orders(spark, range(10)), of_orders(spark, range(10, 15))
    decode(first).toArrow()
    found = counted(decode.counts)
    assert found is not None
    assert found.seen == {Partition("orders", 0): PartitionCounts(10, 2, NOON)}
    assert found.dead == [(Partition("orders", 0), 0), (Partition("orders", 0), 5)]
    # The same partition in another task, even with other offsets: a part of it may be there twice.
    decode(second).toArrow()
    assert counted(decode.counts) is None
    decode.counts.reset()
    decode(first.union(second).coalesce(1)).toArrow()
    assert counted(decode.counts) is not None
    decode.counts.reset()
    decode(second.union(first).coalesce(1)).toArrow()
    assert counted(decode.counts) is None, "an offset after a higher one was read before"
