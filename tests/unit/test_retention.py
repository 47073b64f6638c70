"""How long history is kept: durations as users write them, and never less than what others need."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tallymark.core.budget import Budget
from tallymark.core.retention import Retention
from tallymark.errors import BadInput
from tallymark.kafka.source import Kafka
from tallymark.run.setup import Setup

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def test_commits_are_kept_for_a_week_and_other_history_without_an_age() -> None:
    assert Retention().cutoffs(NOW) == {"batches": NOW - timedelta(days=7), "deletions": NOW - timedelta(days=30)}


def test_each_kind_of_history_has_its_own_age() -> None:
    kept = Retention(batches="1d", runs=timedelta(hours=36), rebalances="1h30m", settled_letters="P2D", deletions="90d")
    assert kept.cutoffs(NOW) == {
        "batches": NOW - timedelta(days=1),
        "runs": NOW - timedelta(hours=36),
        "rebalances": NOW - timedelta(minutes=90),
        "settled_letters": NOW - timedelta(days=2),
        "deletions": NOW - timedelta(days=90),
    }
    same = Retention.of(timedelta(days=3)).cutoffs(NOW)
    assert set(same.values()) == {NOW - timedelta(days=3)}
    assert "deletions" not in same, "forgetting one could bring a row back"


def test_an_age_beyond_all_times_keeps_everything() -> None:
    assert Retention(batches="36500d").cutoffs(NOW)["batches"].year == 1970


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batches": None}, "batches=None is not a duration"),
        ({"batches": 7}, "batches=7 is too short"),
        ({"runs": "7 days"}, "runs='7 days' is not a duration; write one such as 1h30m"),
        ({"settled_letters": "59m"}, "settled_letters=59m is too short"),
        ({"rebalances": timedelta(0)}, "rebalances=0:00:00 is too short"),
    ],
)
def test_what_is_no_age_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Retention(**settings)  # type: ignore[arg-type]


def test_the_window_of_a_budget_has_to_be_kept() -> None:
    source, budget = Kafka("localhost:9", "orders"), Budget(window=timedelta(days=8))
    with pytest.raises(BadInput, match=r"over 8 days.* keeps commits for 7 days.*; set retention="):
        Setup("orders-to-shop", source, "sqlite:///shop.db", budget=budget)
    Setup("orders-to-shop", source, "sqlite:///shop.db", budget=budget, retention=Retention(batches="8d"))
