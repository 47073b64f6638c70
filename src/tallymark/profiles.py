"""What a producer promises, as settings of librdkafka: a few profiles, and what can't be changed in each.

Settings are known by one name here, whichever of its names a user writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallymark.cluster import check_settings
from tallymark.errors import BadInput

ALIASES = {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
}
"""Second names of settings, and the one that is used here."""
WITHOUT_END = 2_147_483_647
REFUSED = {
    "bootstrap.servers": "the brokers are the first argument of Producer()",
    "metadata.broker.list": "the brokers are the first argument of Producer()",
    "transactional.id": "it is transactional_id=",
    "default.topic.config": "write its settings beside the others",
    "delivery.report.only.error": "every record's report is needed to know what became of it",
    "on_delivery": "it is on_delivery= of send(), or on_success= and on_error=",
    "dr_cb": "it is on_delivery= of send(), or on_success= and on_error=",
    "error_cb": "errors are explained to whoever waits",
    "stats_cb": "what it raises would hit whoever sends; see statistics()",
    "throttle_cb": "what it raises would hit whoever sends; the brokers' own metrics tell of it",
}
"""Settings that have their own place, or that would hide what becomes of a record, and why."""
BASE = {
    "partitioner": "murmur2_random",
    # A broker that is back shall be noticed soon: the default is 10 s.
    "reconnect.backoff.max.ms": 1000,
    # librdkafka would write to stderr by itself; what matters comes back as an error.
    "log_level": 0,
}
"""What every profile has: keys go where Java's default partitioner puts them."""
_ALL, _YES = ("all", "-1"), ("true", "1")
_IDEMPOTENT = {
    "acks": (_ALL, "all replicas in sync acknowledge, or a broker that dies takes records with it"),
    "enable.idempotence": (_YES, "a retry would repeat records and change their order"),
    "retries": ((str(WITHOUT_END),), "it retries without end; buffer_seconds= and timeouts bound who waits"),
    "max.in.flight.requests.per.connection": (
        tuple("12345"),
        "with more than 5 requests under way brokers can't keep the order",
    ),
    "queuing.strategy": (("fifo",), "records would change their order"),
}


@dataclass(frozen=True)
class Profile:
    """Settings by librdkafka's names, and what a user may not change: the values allowed, and the reason.

    ``stops_on_failure``: the first record that finally fails stops the producer, so that nothing later overtakes it.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    stops_on_failure: bool = False

    def effective(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the client gets: the profile, and a user's own settings on top of it, if they don't contradict it."""
        own = _renamed(settings)
        for name, value in own.items():
            allowed, why = self.fixed.get(name, ((), ""))
            if why and str(value).lower() not in allowed:
                raise BadInput(f"profile {self.name} with {name}={value} is a contradiction: {why}")
        return {**BASE, **_renamed(self.settings), **own}


NO_LOSS = Profile(
    "no-loss",
    {
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "retries": WITHOUT_END,
        "max.in.flight.requests.per.connection": 5,
        "message.timeout.ms": 0,
    },
    {
        **_IDEMPOTENT,
        "message.timeout.ms": (
            ("0",),
            "a record that is given up is lost; buffer_seconds= and timeouts bound who waits",
        ),
        # Without it the client has sent what comes after a refused batch before anybody hears of the refusal.
        "enable.gapless.guarantee": (_YES, "what comes after a failed record would overtake it"),
    },
    stops_on_failure=True,
)
FAST = Profile("fast", {"acks": 1, "compression.type": "lz4", "linger.ms": 20})
PROFILES = {profile.name: profile for profile in (NO_LOSS, FAST)}


def transactional(transactional_id: str) -> Profile:
    """A failure ends the transaction, not the producer: what was sent in it is aborted, all or nothing."""
    settings = {"acks": "all", "enable.idempotence": True, "transactional.id": transactional_id}
    return Profile("transactional", settings, _IDEMPOTENT)


def choose(profile: str | Profile, transactional_id: str | None) -> Profile:
    """The profile that a user has named."""
    if isinstance(profile, str) and profile not in PROFILES:
        raise BadInput(f"profile={profile!r} is not known; write {' or '.join(PROFILES)}")
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    check(chosen.settings, f"Profile({chosen.name!r})")
    if transactional_id is None:
        return chosen
    if chosen is not NO_LOSS:
        raise BadInput(f"transactional_id= and profile {chosen.name} are a contradiction: leave profile= out")
    return transactional(transactional_id)


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        known = ALIASES.get(name, name)
        if known in found:
            raise BadInput(f"Producer(settings=...): {name} and {known} are the same setting; write one of them")
        found[known] = value
    return found


def check(settings: Mapping[str, Any], where: str = "Producer(settings=...)") -> None:
    """Refuse what has its own place."""
    check_settings(settings, REFUSED, where)
