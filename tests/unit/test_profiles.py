"""The client settings of each profile, and the settings that a user can't change."""

from __future__ import annotations

from typing import Any

import pytest

from tallymark.errors import BadInput
from tallymark.produce.settings import FAST, NO_LOSS, Profile, check, choose, transactional

EVERYWHERE = {"partitioner": "murmur2_random", "reconnect.backoff.max.ms": 1000, "log_level": 0}


def test_no_loss_is_idempotent_waits_for_all_replicas_retries_without_end_and_leaves_no_gap() -> None:
    assert NO_LOSS.effective({}) == {
        **EVERYWHERE,
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "retries": 2_147_483_647,
        "max.in.flight.requests.per.connection": 5,
        "message.timeout.ms": 0,
    }
    assert NO_LOSS.stops_on_failure


def test_fast_waits_for_the_leader_alone_and_for_fuller_batches() -> None:
    assert FAST.effective({}) == {**EVERYWHERE, "acks": 1, "compression.type": "lz4", "linger.ms": 20}
    assert not FAST.stops_on_failure


def test_transactional_is_idempotent_and_a_failure_ends_the_transaction_only() -> None:
    profile = choose(NO_LOSS, "shop-1")
    assert profile.effective({}) == {
        **EVERYWHERE,
        "acks": "all",
        "enable.idempotence": True,
        "transactional.id": "shop-1",
    }
    assert not profile.stops_on_failure


@pytest.mark.parametrize(
    ("own", "known"),
    [
        ({"linger.ms": 50}, {"linger.ms": 50}),
        ({"queue.buffering.max.ms": 50}, {"linger.ms": 50}),
        ({"compression.codec": "zstd"}, {"compression.type": "zstd"}),
        ({"acks": -1}, {"acks": -1}),
        ({"request.required.acks": "all"}, {"acks": "all"}),
        ({"enable.idempotence": "true"}, {"enable.idempotence": "true"}),
        ({"max.in.flight": 1}, {"max.in.flight.requests.per.connection": 1}),
        ({"delivery.timeout.ms": 0}, {"message.timeout.ms": 0}),
        ({"partitioner": "consistent"}, {"partitioner": "consistent"}),
    ],
)
def test_own_settings_come_on_top_by_any_of_their_names(own: dict[str, Any], known: dict[str, Any]) -> None:
    assert NO_LOSS.effective(own) == {**NO_LOSS.effective({}), **known}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"acks": 1}, "acks=1: without .* all in-sync replicas"),
        ({"acks": "0"}, "acks=0:"),
        ({"request.required.acks": 1}, "acks=1:"),
        ({"enable.idempotence": False}, "enable.idempotence=False: .* repeat"),
        ({"retries": 3}, "retries=3: .* unlimited"),
        ({"message.send.max.retries": 3}, "retries=3:"),
        ({"max.in.flight": 6}, "max.in.flight.requests.per.connection=6: .* order"),
        ({"max.in.flight.requests.per.connection": 1000}, "max.in.flight.requests.per.connection=1000:"),
        ({"queuing.strategy": "lifo"}, "queuing.strategy=lifo: .* reorder"),
    ],
)
@pytest.mark.parametrize("profile", [NO_LOSS, transactional("id")], ids=lambda profile: profile.name)
def test_a_contradiction_is_refused_by_name(profile: Profile, own: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=f"profile {profile.name} does not allow {said}"):
        profile.effective(own)


@pytest.mark.parametrize(
    "own",
    [{"message.timeout.ms": 300_000}, {"delivery.timeout.ms": 1}, {"enable.gapless.guarantee": False}],
    ids=lambda own: next(iter(own)),
)
def test_no_loss_gives_nothing_up_and_lets_nothing_overtake(own: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"profile no-loss does not allow"):
        NO_LOSS.effective(own)
    assert FAST.effective(own)


def test_a_setting_under_two_names_is_refused() -> None:
    with pytest.raises(BadInput, match=r"linger.ms are the same setting"):
        FAST.effective({"linger.ms": 1, "queue.buffering.max.ms": 2})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bootstrap.servers", "first argument"),
        ("metadata.broker.list", "first argument"),
        ("transactional.id", "transactional_id="),
        ("default.topic.config", "directly in settings="),
        ("delivery.report.only.error", "the report of every record"),
        ("dr_cb", "on_delivery="),
        ("stats_cb", "raised by send"),
        ("throttle_cb", "raised by send"),
        ("sasl.password", "security=Sasl"),
        ("plugin.library.paths", "loads code"),
    ],
)
def test_what_has_its_own_place_is_refused(name: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"{name} can't be set: .*{said}"):
        check({name: "x"})
    with pytest.raises(BadInput, match=rf"Profile\('mine'\): {name} can't be set: .*{said}"):
        choose(Profile("mine", {name: "x"}), None)


def test_profiles_are_chosen_by_name_and_an_own_one_is_taken() -> None:
    own = Profile("mine", {"acks": 1})
    assert (choose("no-loss", None), choose("fast", None), choose(own, None)) == (NO_LOSS, FAST, own)
    with pytest.raises(BadInput, match="profile='quick' is not known; write no-loss or fast"):
        choose("quick", None)
    with pytest.raises(BadInput, match="transactional_id= and profile fast exclude each other"):
        choose("fast", "id")
