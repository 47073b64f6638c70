"""All errors, as a tree, and whether a retry may succeed.

    TallymarkError
    ├── BadInput                  invalid settings, schema string, table function or command
    │   ├── UnknownTopic
    │   ├── UnknownPartition
    │   ├── UnknownSchema         a schema registry has no schema that a record can be written with
    │   └── TableMismatch         an existing table can't hold the rows
    ├── DataRefused               a database refused a value
    │   └── TransactionUndone     and rolled back the whole transaction
    ├── TableChanged              a table was dropped or altered while a pipeline ran
    ├── Drifted                   a record has a field that the schema does not name, and on_drift="fail"
    ├── TooManyDead               a batch has more dead records than its budget allows; no position moved
    ├── BatchTooLarge             a batch exceeds its limits and has to be split
    ├── GroupPaused               the group is paused, by hand or by its budget
    ├── Unreachable               transient: the broker or the store did not answer
    ├── Retry                     transient: raised by a handler to retry its batch
    ├── AccessDenied              the broker or the store refused the credentials or permissions
    ├── PositionRefused           continuing at the stored position would lose or repeat records
    │   ├── RecordsLost           the log starts after the position: retention deleted unread records
    │   ├── BeyondEnd             the position is past the end of the log
    │   ├── LogTruncated          applied records are no longer in the log, and others have their offsets
    │   ├── TopicRecreated        the topic was deleted and created again
    │   └── ForeignCluster        the position belongs to another cluster
    ├── CommitRefused             the transaction was rolled back, nothing was written
    │   ├── Fenced                another owner has claimed the partition, or the transactional id
    │   └── PositionMoved         same owner, but the stored position is not where the batch started
    ├── NotDelivered              a record was not written to Kafka, or is not known to be
    │   ├── BufferFull            the buffer stayed full
    │   ├── StillWaiting          its delivery takes longer than the caller waits
    │   ├── RecordTooLarge
    │   ├── RecordDropped         it followed a failed record, its transaction was aborted, or the producer closed
    │   ├── ProducerStopped       the producer has failed or was closed
    │   └── CommitUnknown         the commit of its transaction is unconfirmed: the record may be visible or not
    ├── ReadFailed                Spark failed to read a batch
    └── SandboxError              a local test server could not be fetched, started or stopped

The message is one sentence that names the thing and the way out. It never holds a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tallymark.core.spans import Truncation


class TallymarkError(Exception):
    """Base of all errors raised on purpose. ``transient`` says whether the same call may succeed later."""

    transient = False


class BadInput(TallymarkError):
    pass


class UnknownTopic(BadInput):
    pass


class UnknownPartition(BadInput):
    pass


class UnknownSchema(BadInput):
    pass


class TableMismatch(BadInput):
    pass


class DataRefused(TallymarkError):
    pass


class TransactionUndone(DataRefused):
    pass


class TableChanged(TallymarkError):
    pass


class Drifted(TallymarkError):
    pass


class TooManyDead(TallymarkError):
    pass


class BatchTooLarge(TallymarkError):
    """``share`` is the part of the batch that is expected to fit."""

    def __init__(self, words: str, share: float = 0.5) -> None:
        super().__init__(words)
        self.share = share


class GroupPaused(TallymarkError):
    pass


class Unreachable(TallymarkError):
    transient = True


class Retry(TallymarkError):
    """Raise it in a handler for a transient problem: the batch is rolled back and retried for ``patience`` seconds."""

    transient = True


class AccessDenied(TallymarkError):
    pass


class PositionRefused(TallymarkError):
    pass


class RecordsLost(PositionRefused):
    pass


class BeyondEnd(PositionRefused):
    pass


class LogTruncated(PositionRefused):
    """``found`` are the truncations."""

    def __init__(self, words: str, found: Sequence[Truncation]) -> None:
        super().__init__(words)
        self.found = tuple(found)


class TopicRecreated(PositionRefused):
    pass


class ForeignCluster(PositionRefused):
    pass


class CommitRefused(TallymarkError):
    pass


class Fenced(CommitRefused):
    pass


class PositionMoved(CommitRefused):
    pass


class NotDelivered(TallymarkError):
    pass


class BufferFull(NotDelivered):
    pass


class StillWaiting(NotDelivered):
    pass


class RecordTooLarge(NotDelivered):
    pass


class RecordDropped(NotDelivered):
    pass


class ProducerStopped(NotDelivered):
    pass


class CommitUnknown(NotDelivered):
    pass


class ReadFailed(TallymarkError):
    pass


class SandboxError(TallymarkError):
    pass


class Verdict(NamedTuple):
    """The error to raise for an error code of Kafka, Spark or a store, and its message.

    In the message, ``{name}`` is the server and ``{words}`` is its own message.
    """

    error: type[TallymarkError]
    sentence: str

    def on(self, name: str, words: str) -> TallymarkError:
        return self.error(self.sentence.format(name=name, words=words))


def verdicts(table: Mapping[Verdict, str]) -> dict[str, Verdict]:
    """Invert a table that lists the codes of each verdict. A code has one verdict."""
    by_code: dict[str, Verdict] = {}
    for verdict, codes in table.items():
        for code in codes.split():
            assert code not in by_code, f"{code} has two verdicts"
            by_code[code] = verdict
    return by_code


def described(error: BaseException) -> str:
    """Return the name and the message of an error for logs and dead letters, even if ``str(error)`` raises."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"{name}, whose message can't be read: {type(other).__name__}"
    return f"{name}: {text}" if text else name
