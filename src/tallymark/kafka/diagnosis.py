"""Explains why a broker does not answer or refuses a client: by librdkafka's error codes, and with a plain socket.

librdkafka reports only in its log whether a broker requires TLS or is down, and does not distinguish a wrong host name
from an unknown certificate authority.

A wrong password does not fail the waiting call: the client retries until the call times out. The reason is passed to
the error callback, and is more useful than the timeout.
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import Any

from tallymark.core.tls import Tls
from tallymark.errors import AccessDenied, TallymarkError, Unreachable, Verdict, verdicts
from tallymark.kafka.cluster import Cluster

ENCRYPTED = "the broker requires TLS: set tls=Tls(...)"
REFUSED = "the broker requires a client certificate: set Tls(cert=..., key=...)"
NO_ANSWER = "the port accepts connections, but does not answer; check that it is Kafka"
CUT = "the connection was closed; check the port, and that it uses TLS"
SECONDS = 2.0
ALERT_SECONDS = 0.5


def diagnosis(cluster: Cluster) -> str:
    """Describe the problem with the first address that accepts a connection, or with the last, and the remedy."""
    problem = ""
    for host, port in cluster.addresses:
        try:
            with socket.create_connection((host, port), SECONDS) as line:
                return _greet(line, host, cluster)
        except socket.gaierror:
            problem = f"host {host} can't be resolved; correct its name"
        except (OSError, OverflowError):
            problem = "nothing listens there; check address and port"
    return problem


def _greet(line: socket.socket, host: str, cluster: Cluster) -> str:
    try:
        with _context(cluster.line).wrap_socket(line, server_hostname=host) as secure:
            return _after_handshake(secure, cluster)
    except ssl.SSLCertVerificationError as error:
        if "match" in error.verify_message:
            return f"the certificate is not for {host}: use its host name, or set Tls(verify_hostname=False)"
        return f"the certificate is not trusted ({error.verify_message}): set its authority with Tls(ca=...)"
    except OSError as error:
        if "ALERT" in (getattr(error, "reason", None) or ""):
            return REFUSED if cluster.line else ENCRYPTED
        return CUT if cluster.line else NO_ANSWER


def _after_handshake(secure: ssl.SSLSocket, cluster: Cluster) -> str:
    if cluster.line is None:
        return ENCRYPTED
    secure.settimeout(ALERT_SECONDS)
    try:
        secure.recv(1)
    except ssl.SSLError:
        return REFUSED
    except OSError:
        pass
    return "check user and password" if cluster.security else "the broker may require a login: set security=Sasl(...)"


def _context(tls: Tls | None) -> ssl.SSLContext:
    if tls:
        return tls.context()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


SILENT = Verdict(Unreachable, "the brokers at {name} can't be reached ({words})")
"""No broker answers; ``diagnosis`` finds the reason."""
MOVED = Verdict(Unreachable, "the brokers at {name} are changing leaders ({words}): try again")
"""The client's metadata is stale and must be refreshed before the same call can succeed."""
BUSY = Verdict(Unreachable, "the brokers at {name} can't process the request now ({words}): try again")
HANDOVER = Verdict(Unreachable, "the group at {name} is being rebalanced ({words}): try again")
UNAUTHENTICATED = Verdict(AccessDenied, "the brokers at {name}: {words}; check user and password")
UNAUTHORIZED = Verdict(AccessDenied, "the brokers at {name} denied access for {words}; grant the missing ACLs")
FINAL = Verdict(TallymarkError, "the brokers at {name} answered: {words}")

# By librdkafka's names of error codes; those with a leading underscore are its own, the others come from brokers.
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
        # Wrong positions, topics and settings; bugs and limits; and codes that are not errors of a broker.
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
    """Return the verdict on an error of librdkafka. An unknown code is final."""
    return KAFKA.get(error.name(), FINAL)


_HANDSHAKE = ("ssl/tls alert", "certificate verify failed")
"""Messages of a failed TLS handshake; its error code may be that of a broken connection."""
_WORDS = 200
_WHERE = re.compile(r"^[\w+]+://\S+: ")
_STATE = re.compile(r"\s*\(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


class Complaints:
    """Collects and explains the errors of the clients of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._refused: TallymarkError | None = None

    def on_error(self, error: Any) -> None:
        """The client's error callback."""
        if judged(error) is UNAUTHENTICATED or any(mark in error.str() for mark in _HANDSHAKE):
            self._refused = self._unauthenticated(error)

    def clear(self) -> None:
        """Discard the recorded error, because the cluster has answered."""
        self._refused = None

    def check(self) -> None:
        """Raise the recorded error, if any: waiting does not help."""
        if self._refused is not None:
            raise self._refused

    def explain(self, error: Any, topic: str | None = None) -> TallymarkError:
        """Convert an error of a client to a ``TallymarkError``."""
        words, verdict = _clean(error.str()), judged(error)
        if verdict.error is Unreachable:
            self.check()
        if verdict is UNAUTHENTICATED:
            return self._unauthenticated(error)
        if verdict is UNAUTHORIZED:
            user = self._cluster.security.username if self._cluster.security else "this client"
            words = f"{user} to topic {topic}: {words}" if topic else f"{user}: {words}"
        explained = verdict.on(self._cluster.brokers, words)
        return self._unanswered(str(explained)) if verdict is SILENT else explained

    def _unanswered(self, message: str) -> TallymarkError:
        hint = diagnosis(self._cluster)
        # Retrying does not help a client that uses the wrong protocol.
        kind = AccessDenied if hint == ENCRYPTED else SILENT.error
        return kind(f"{message}: {hint}")

    def _unauthenticated(self, error: Any) -> TallymarkError:
        words = _clean(error.str())
        if "SASL" in words:
            return UNAUTHENTICATED.on(self._cluster.brokers, words)
        return AccessDenied(
            f"the brokers at {self._cluster.brokers}: the connection failed: {diagnosis(self._cluster)}"
        )


def _clean(words: str) -> str:
    """Remove the debugging details that librdkafka adds."""
    return _STATE.sub("", _WHERE.sub("", words))[:_WORDS].rstrip(". ")
