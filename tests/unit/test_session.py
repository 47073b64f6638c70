"""The Spark versions that fit the locked Kafka connector."""

from __future__ import annotations

import re

import pytest

from tallymark.errors import BadInput
from tallymark.spark.session import check_version, locked_connector, series
from tests.support.command import REPOSITORY


def test_releases_of_the_connectors_series_fit() -> None:
    check_version("4.0.0")
    check_version("4.0.5")


@pytest.mark.parametrize("version", ["3.5.9", "4.1.0", "4.3.0"])
def test_a_spark_of_another_series_is_refused_with_both_ways_out(version: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_version(version)
    said = str(refused.value)
    assert said.startswith(f"pyspark {version} does not match the Kafka connector 4.0.0; pip install 'pyspark==4.0.*'")
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}" in said


def test_the_extra_allows_no_spark_that_would_be_refused() -> None:
    wanted = re.search(r'"pyspark\[sql\]>=(\S+),<(\S+)"', (REPOSITORY / "pyproject.toml").read_text())
    assert wanted is not None
    major, minor = map(int, series(locked_connector()[0]).split("."))
    assert (wanted[1], wanted[2]) == (f"{major}.{minor}", f"{major}.{minor + 1}")
