"""Every error a user can meet, and whether trying again can help.

    TallymarkError
    ├── BadInput                  what the user wrote can't work: settings, schema string, table function
    │   ├── UnknownTopic
    │   ├── UnknownPartition
    │   └── TableMismatch         an existing table can't take the rows
    ├── DataRefused               a database refused a value: the rows are at fault, not the connection
    │   └── TransactionUndone     and it has rolled back all that the transaction had done before
    ├── TableChanged              a table was dropped or altered under a running pipeline
    ├── TooManyDead               a batch has more dead records than its budget allows: nothing moved
    ├── BatchTooLarge             a batch does not fit the memory it may use: a smaller one will
    ├── GroupPaused               the group is paused, by hand or by its budget
    ├── Unreachable               transient: the broker or the store did not answer
    ├── Retry                     transient: raised by a handler, whose work may succeed later
    ├── AccessDenied              the broker or the store said no: credentials, permissions
    ├── PositionRefused           reading on from the stored position would lose or repeat records
    │   ├── RecordsLost           the log starts after the position: retention deleted unread records
    │   ├── BeyondEnd             the position is past the end of the log
    │   ├── LogTruncated          records that were applied are gone from the log, and others took their offsets
    │   ├── TopicRecreated        same name, another topic
    │   └── ForeignCluster        same topic name, another cluster
    ├── CommitRefused             the transaction was rolled back, nothing was written
    │   ├── Fenced                another owner has claimed the partition, or the transactional id
    │   └── PositionMoved         same owner, but the stored position is not where the batch started
    ├── NotDelivered              a record was not written to Kafka, or is not known to be
    │   ├── BufferFull            there was no room for it in time
    │   ├── StillWaiting          it is on its way, for longer than its sender waits
    │   ├── RecordTooLarge
    │   ├── RecordDropped         it was behind one that failed, in an aborted transaction, or left at close
    │   ├── ProducerStopped       the producer has ended, by a failure or because it was closed
    │   └── CommitUnknown         a transaction whose commit nobody has confirmed: visible or not
    ├── ReadFailed                Spark failed to deliver a batch, for a reason of its own
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


class TableMismatch(BadInput):
    pass


class DataRefused(TallymarkError):
    pass


class TransactionUndone(DataRefused):
    pass


class TableChanged(TallymarkError):
    pass


class TooManyDead(TallymarkError):
    pass


class BatchTooLarge(TallymarkError):
    pass


class GroupPaused(TallymarkError):
    pass


class Unreachable(TallymarkError):
    transient = True


class Retry(TallymarkError):
    """Raise it in a handler for what may pass: the batch is rolled back and tried again, for ``patience`` seconds."""

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
    """``found`` has every truncation that it is about."""

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
    """What an answer of Kafka, Spark or a store means: the error that it becomes, and the sentence of that error.

    ``{name}`` in the sentence is the server, ``{words}`` is what it said.
    """

    error: type[TallymarkError]
    sentence: str

    def on(self, name: str, words: str) -> TallymarkError:
        return self.error(self.sentence.format(name=name, words=words))


def verdicts(table: Mapping[Verdict, str]) -> dict[str, Verdict]:
    """The verdict on each code of a table that lists the codes of each verdict. A code has one verdict."""
    found: dict[str, Verdict] = {}
    for verdict, listed in table.items():
        for code in listed.split():
            assert code not in found, f"{code} has two verdicts"
            found[code] = verdict
    return found


def described(error: BaseException) -> str:
    """The name of an error and its text, in one line for logs and dead letters, whatever the error does when asked."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"{name}, whose text can't be read: {type(other).__name__}"
    return f"{name}: {text}" if text else name
