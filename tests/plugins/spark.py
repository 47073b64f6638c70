"""Spark for tests: one session in each of two workers (``--dist loadgroup``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    # xdist reads the groups before any later hook could set them.
    if "spark" in getattr(item, "fixturenames", ()):
        first = item.path.stem.startswith(("test_spark", "test_secured"))
        item.add_marker(pytest.mark.xdist_group("spark" if first else "spark too"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tallymark.spark.session import session

    running = session({"spark.master": "local[2]"})
    yield running
    running.stop()
