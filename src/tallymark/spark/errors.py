"""Translates Spark's errors to tallymark's: a failure of a user's function, of the brokers, or of Spark itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tallymark.errors import AccessDenied, BadInput, BatchTooLarge, ReadFailed, TallymarkError, Unreachable, Verdict

TOO_MUCH = Verdict(
    BatchTooLarge,
    "the batch does not fit the memory of Spark's driver: {words}; increase spark.driver.memory, or reduce "
    "limits.memory",
)
DENIED = Verdict(AccessDenied, "the brokers at {name} refused Spark's client: {words}")
AWAY = Verdict(Unreachable, "Spark could not read from the brokers at {name}: {words}")
FAILED = Verdict(ReadFailed, "Spark failed to read a batch: {words}")

# Spark has no error codes: the first verdict with a substring in the message applies.
SPARK: Mapping[Verdict, tuple[str, ...]] = {
    TOO_MUCH: ("is bigger than spark.driver.maxResultSize", "java.lang.OutOfMemoryError"),
    DENIED: (
        "org.apache.kafka.common.errors.SaslAuthenticationException",
        "org.apache.kafka.common.errors.SslAuthenticationException",
        "org.apache.kafka.common.errors.TopicAuthorizationException",
        "org.apache.kafka.common.errors.GroupAuthorizationException",
        "org.apache.kafka.common.errors.ClusterAuthorizationException",
    ),
    AWAY: (
        "org.apache.kafka.common.errors.TimeoutException",
        "org.apache.kafka.common.errors.DisconnectException",
        "org.apache.kafka.common.errors.NetworkException",
        "org.apache.kafka.common.errors.BrokerNotAvailableException",
        "org.apache.kafka.common.errors.CoordinatorNotAvailableException",
        "org.apache.kafka.common.errors.FencedLeaderEpochException",
        "org.apache.kafka.common.errors.KafkaStorageException",
        "org.apache.kafka.common.errors.LeaderNotAvailableException",
        "org.apache.kafka.common.errors.NotLeaderOrFollowerException",
        "org.apache.kafka.common.errors.OffsetNotAvailableException",
        "org.apache.kafka.common.errors.ReplicaNotAvailableException",
        "org.apache.kafka.common.errors.UnknownLeaderEpochException",
        # A broker that has just started does not know all topics yet; the next plan detects a deleted topic.
        "org.apache.kafka.common.errors.UnknownTopicIdException",
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException",
        "Cannot fetch record for offset",
        "Failed to construct kafka consumer",
        # The log changed during the read: the next plan detects whether records are lost.
        "OffsetOutOfRangeException",
        "LogTruncationException",
        "Some data may have been lost",
        "Partition's offset was changed",
    ),
}
_TRACEBACK = "Traceback (most recent call last)"
_BAD_VALUE = "SQLSTATE: 22"


class FunctionFailed(BadInput):
    """A table's function failed on the data, not on the schema."""

    def __init__(self, table: str, words: str) -> None:
        super().__init__(f"table {table}: its function failed on the data: {words}")
        self.table = table
        self.words = words


@contextmanager
def explained(brokers: str, table: str | None = None) -> Iterator[None]:
    """Raise Spark's errors inside the block as tallymark's, naming the table whose function was running."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _explain(error, brokers, table) from error


@contextmanager
def while_java_lives(spark: SparkSession) -> Iterator[None]:
    """Raise ``ReadFailed`` if Java has ended: calls to it then fail with various exceptions."""
    try:
        yield
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        if not _is_over(spark):
            raise
        raise ReadFailed(
            "Spark's JVM has ended, perhaps because it ran out of memory; no record is lost: run again with a larger "
            "spark.driver.memory, or with smaller batches (limits.records, limits.memory)"
        ) from error


def _is_over(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    try:
        jvm.System.nanoTime()
    except (Py4JError, OSError):
        return True
    return False


def _explain(error: Exception, brokers: str, table: str | None) -> TallymarkError:
    everything = f"{error}\n{_root_cause(error)}"
    if table is not None and (_TRACEBACK in everything or _BAD_VALUE in everything):
        # Checked first: such errors quote values, which may contain the substrings that are searched below.
        return FunctionFailed(table, _user_words(error))
    verdict = next((one for one, marks in SPARK.items() if any(mark in everything for mark in marks)), FAILED)
    if verdict is FAILED and table is not None:
        return FunctionFailed(table, _user_words(error))
    return verdict.on(brokers, _root_cause(error))


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split("\n\n")[0].split("JVM stacktrace")[0].split())[:300].rstrip(".")


def _user_words(error: Exception) -> str:
    """The last line of a Python traceback from a worker, else the root cause."""
    text = str(error)
    if _TRACEBACK in text:
        traceback = text.split(_TRACEBACK)[-1].split("\n\n")[0]
        lines = [line.strip() for line in traceback.splitlines() if line and not line.startswith((" ", "\t"))]
        return lines[-1] if lines else first_line(error)
    return _root_cause(error)


def _root_cause(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        return _deepest(error.java_exception)
    return first_line(error)


def _deepest(exception: Any) -> str:
    while exception.getCause() is not None:
        exception = exception.getCause()
    return " ".join(str(exception.toString()).split("\n")[0].split())[:300].rstrip(".")
