"""Hypothesis strategies for partitions, lags, logs and positions."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from tallymark.core.spans import Log, Partition, Position, Tally

TOPIC_ID, CLUSTER_ID = "topic-id", "cluster-id"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

partitions = st.builds(Partition, st.sampled_from(["orders", "clicks"]), st.integers(0, 9))
lags = st.dictionaries(partitions, st.integers(0, 10_000), max_size=12)


def log(partition: Partition, start: int, stop: int, end: int | None = None) -> Log:
    return Log(partition, TOPIC_ID, CLUSTER_ID, start, stop, stop if end is None else end)


def position(partition: Partition, next_offset: int = 7) -> Position:
    return Position(partition, next_offset, 0, TOPIC_ID, CLUSTER_ID, 1, None, Tally(), None, NOON)


@st.composite
def logs(draw: st.DrawFn) -> dict[Partition, Log]:
    """Partitions whose logs hold start <= stop <= end."""
    names = draw(st.lists(partitions, unique=True, max_size=6))
    return {name: log(name, *sorted(draw(st.tuples(*[st.integers(0, 500)] * 3)))) for name in names}
