"""Failures of Spark as tallymark explains them."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tallymark.errors import TallymarkError
from tallymark.spark.errors import explained


def explain(words: str, table: str | None = None) -> TallymarkError:
    """What a failure of Spark with these words becomes while the function of this table runs."""
    with pytest.raises(TallymarkError) as caught, explained("b:1", table):
        raise PySparkException(words)
    return caught.value
