"""What librdkafka says when it can't: as one sentence of ours, and remembered while somebody waits for an answer.

A wrong password never fails the call that waits: the client goes on trying until that has timed out. The reason comes
to its error callback, and is worth more than the timeout.
"""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import KafkaError

from tallymark.cluster import Cluster
from tallymark.errors import AccessDenied, TallymarkError, Unreachable
from tallymark.knock import ENCRYPTED, diagnosis

SILENT = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
UNREACHABLE = SILENT | {
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
UNAUTHENTICATED = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
UNAUTHORIZED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_HANDSHAKE = ("ssl/tls alert", "certificate verify failed")
"""What a failed handshake says; its code may be that of a broken connection."""
_WORDS = 200
_WHERE = re.compile(r"^[\w+]+://\S+: ")
_STATE = re.compile(r"\s*\(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


class Complaints:
    """Errors of the clients of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._refused: TallymarkError | None = None

    def on_error(self, error: Any) -> None:
        """The client's error callback."""
        if error.code() in UNAUTHENTICATED or any(mark in error.str() for mark in _HANDSHAKE):
            self._refused = self._unauthenticated(error)

    def clear(self) -> None:
        """The cluster has answered."""
        self._refused = None

    def check(self) -> None:
        """Raise what makes waiting useless."""
        if self._refused is not None:
            raise self._refused

    def explain(self, error: Any, topic: str | None = None) -> TallymarkError:
        """An error of a client as one of ours."""
        words, brokers = _clean(error.str()), self._cluster.brokers
        if error.code() in UNREACHABLE:
            self.check()
            hint = diagnosis(self._cluster) if error.code() in SILENT else "try again"
            # Waiting does not help whoever speaks another language.
            kind = AccessDenied if hint == ENCRYPTED else Unreachable
            return kind(f"the brokers at {brokers} can't be reached ({words}): {hint}")
        if error.code() in UNAUTHENTICATED:
            return self._unauthenticated(error)
        if error.code() in UNAUTHORIZED:
            user = self._cluster.security.username if self._cluster.security else "this client"
            of = f" for topic {topic}" if topic else ""
            return AccessDenied(f"the brokers at {brokers} refused {user}{of}: {words}; give it the ACLs it needs")
        return TallymarkError(f"the brokers at {brokers} answered: {words}")

    def _unauthenticated(self, error: Any) -> TallymarkError:
        words = _clean(error.str())
        if "SASL" in words:
            return AccessDenied(f"the brokers at {self._cluster.brokers}: {words}; check user and password")
        return AccessDenied(f"the brokers at {self._cluster.brokers} can't be entered: {diagnosis(self._cluster)}")


def _clean(words: str) -> str:
    """Without what the client adds for its own developers."""
    return _STATE.sub("", _WHERE.sub("", words))[:_WORDS].rstrip(". ")
