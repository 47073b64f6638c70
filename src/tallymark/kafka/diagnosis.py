"""What librdkafka says when it can't: as one sentence of ours, and remembered while somebody waits for an answer.

A wrong password never fails the call that waits: the client goes on trying until that has timed out. The reason comes
to its error callback, and is worth more than the timeout.
"""

from __future__ import annotations

import re
from typing import Any

from tallymark.cluster import Cluster
from tallymark.errors import AccessDenied, TallymarkError, Unreachable, Verdict, verdicts
from tallymark.knock import ENCRYPTED, diagnosis

SILENT = Verdict(Unreachable, "the brokers at {name} can't be reached ({words})")
"""Nobody answers. Why, is found out by knocking."""
MOVED = Verdict(Unreachable, "the brokers at {name} are changing leaders ({words}): try again")
"""The client knows the cluster as it was: it needs fresh metadata before the same call can succeed."""
BUSY = Verdict(Unreachable, "the brokers at {name} can't do that now ({words}): try again")
HANDOVER = Verdict(Unreachable, "the group at {name} is being rebalanced ({words}): try again")
UNAUTHENTICATED = Verdict(AccessDenied, "the brokers at {name}: {words}; check user and password")
UNAUTHORIZED = Verdict(AccessDenied, "the brokers at {name} refused {words}; give it the ACLs it needs")
FINAL = Verdict(TallymarkError, "the brokers at {name} answered: {words}")

# By the names that librdkafka has for its own codes, with an underscore, and for those of brokers.
KAFKA = verdicts(
    {
        SILENT: "_ALL_BROKERS_DOWN _RESOLVE _TIMED_OUT _TRANSPORT",
        MOVED: "_DESTROY_BROKER _NODE_UPDATE _NOENT _PARTIAL _UNKNOWN_BROKER _WAIT_CACHE BROKER_NOT_AVAILABLE "
        "COORDINATOR_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH INCONSISTENT_TOPIC_ID "
        "KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE LISTENER_NOT_FOUND NOT_CONTROLLER NOT_COORDINATOR "
        "NOT_LEADER_FOR_PARTITION PREFERRED_LEADER_NOT_AVAILABLE REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE "
        "STALE_BROKER_EPOCH STALE_CTRL_EPOCH UNKNOWN_CONTROLLER_ID UNKNOWN_LEADER_EPOCH UNKNOWN_TOPIC_ID",
        BUSY: "_FAIL _IN_PROGRESS _INTR _ISR_INSUFF _OUTDATED _PREV_IN_PROGRESS _QUEUE_FULL _RETRY _TIMED_OUT_QUEUE "
        "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH "
        "NETWORK_EXCEPTION NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND OFFSET_NOT_AVAILABLE "
        "REASSIGNMENT_IN_PROGRESS REQUEST_TIMED_OUT SHARE_SESSION_LIMIT_REACHED SHARE_SESSION_NOT_FOUND "
        "INVALID_SHARE_SESSION_EPOCH THROTTLING_QUOTA_EXCEEDED UNSTABLE_OFFSET_COMMIT",
        HANDOVER: "_ASSIGNMENT_LOST _WAIT_COORD FENCED_MEMBER_EPOCH ILLEGAL_GENERATION MEMBER_ID_REQUIRED "
        "REBALANCE_IN_PROGRESS STALE_MEMBER_EPOCH UNKNOWN_MEMBER_ID UNRELEASED_INSTANCE_ID",
        UNAUTHENTICATED: "_AUTHENTICATION _SSL DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_NOT_FOUND ILLEGAL_SASL_STATE "
        "SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM",
        UNAUTHORIZED: "CLUSTER_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED "
        "TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        # Positions, topics and settings that are wrong; bugs and limits; and what is no error of a broker at all.
        FINAL: "_APPLICATION _ASSIGN_PARTITIONS _AUTO_OFFSET_RESET _BAD_COMPRESSION _BAD_MSG _CONFLICT "
        "_CRIT_SYS_RESOURCE _DESTROY _EXISTING_SUBSCRIPTION _FATAL _FENCED _FS _GAPLESS_GUARANTEE _INCONSISTENT "
        "_INVALID_ARG _INVALID_DIFFERENT_RECORD _INVALID_TYPE _KEY_DESERIALIZATION _KEY_SERIALIZATION _LOG_TRUNCATION "
        "_MAX_POLL_EXCEEDED _MSG_TIMED_OUT _NOOP _NOT_CONFIGURED _NOT_IMPLEMENTED _NO_OFFSET _PARTITION_EOF "
        "_PURGE_INFLIGHT _PURGE_QUEUE _READ_ONLY _REVOKE_PARTITIONS _STATE _UNDERFLOW _UNKNOWN_GROUP "
        "_UNKNOWN_PARTITION _UNKNOWN_PROTOCOL _UNKNOWN_TOPIC _UNSUPPORTED_FEATURE _VALUE_DESERIALIZATION "
        "_VALUE_SERIALIZATION DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_OWNER_MISMATCH "
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DUPLICATE_RESOURCE DUPLICATE_SEQUENCE_NUMBER DUPLICATE_VOTER "
        "ELECTION_NOT_NEEDED FEATURE_UPDATE_FAILED FENCED_INSTANCE_ID FENCED_STATE_EPOCH GROUP_ID_NOT_FOUND "
        "GROUP_MAX_SIZE_REACHED GROUP_SUBSCRIBED_TO_TOPIC INCONSISTENT_GROUP_PROTOCOL INCONSISTENT_VOTER_SET "
        "INVALID_COMMIT_OFFSET_SIZE INVALID_CONFIG INVALID_GROUP_ID INVALID_MSG INVALID_MSG_SIZE INVALID_PARTITIONS "
        "INVALID_PRINCIPAL_TYPE INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_RECORD INVALID_RECORD_STATE "
        "INVALID_REGISTRATION INVALID_REGULAR_EXPRESSION INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT "
        "INVALID_REQUEST INVALID_REQUIRED_ACKS INVALID_SESSION_TIMEOUT INVALID_TIMESTAMP INVALID_TRANSACTION_TIMEOUT "
        "INVALID_TXN_STATE INVALID_UPDATE_VERSION INVALID_VOTER_KEY LOG_DIR_NOT_FOUND MISMATCHED_ENDPOINT_TYPE "
        "MSG_SIZE_TOO_LARGE NON_EMPTY_GROUP NO_ERROR NO_REASSIGNMENT_IN_PROGRESS OFFSET_METADATA_TOO_LARGE "
        "OFFSET_OUT_OF_RANGE OPERATION_NOT_ATTEMPTED OUT_OF_ORDER_SEQUENCE_NUMBER POLICY_VIOLATION "
        "PRINCIPAL_DESERIALIZATION_FAILURE PRODUCER_FENCED RECORD_LIST_TOO_LARGE RESOURCE_NOT_FOUND SECURITY_DISABLED "
        "STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED TELEMETRY_TOO_LARGE "
        "TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED TOPIC_EXCEPTION TRANSACTION_COORDINATOR_FENCED "
        "TRANSACTION_ABORTABLE UNACCEPTABLE_CREDENTIAL UNKNOWN UNKNOWN_PRODUCER_ID UNKNOWN_SUBSCRIPTION_ID "
        "UNKNOWN_TOPIC_OR_PART UNSUPPORTED_ASSIGNOR UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_ENDPOINT_TYPE "
        "UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_VERSION VOTER_NOT_FOUND",
    }
)


def judged(error: Any) -> Verdict:
    """The verdict on an error of librdkafka. A code that the table does not know is final."""
    return KAFKA.get(error.name(), FINAL)


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
        if judged(error) is UNAUTHENTICATED or any(mark in error.str() for mark in _HANDSHAKE):
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
        words, verdict = _clean(error.str()), judged(error)
        if verdict.error is Unreachable:
            self.check()
        if verdict is UNAUTHENTICATED:
            return self._unauthenticated(error)
        if verdict is UNAUTHORIZED:
            user = self._cluster.security.username if self._cluster.security else "this client"
            words = f"{user} for topic {topic}: {words}" if topic else f"{user}: {words}"
        said = verdict.on(self._cluster.brokers, words)
        return self._unanswered(str(said)) if verdict is SILENT else said

    def _unanswered(self, said: str) -> TallymarkError:
        hint = diagnosis(self._cluster)
        # Waiting does not help a client that speaks another protocol.
        kind = AccessDenied if hint == ENCRYPTED else SILENT.error
        return kind(f"{said}: {hint}")

    def _unauthenticated(self, error: Any) -> TallymarkError:
        words = _clean(error.str())
        if "SASL" in words:
            return UNAUTHENTICATED.on(self._cluster.brokers, words)
        return AccessDenied(f"the brokers at {self._cluster.brokers} can't be entered: {diagnosis(self._cluster)}")


def _clean(words: str) -> str:
    """Without what the client adds for its own developers."""
    return _STATE.sub("", _WHERE.sub("", words))[:_WORDS].rstrip(". ")
