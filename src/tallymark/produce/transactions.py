"""Kafka transactions of a producer: the records sent in a transaction become visible together, or never."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from tallymark.errors import BadInput, CommitRefused, CommitUnknown, Fenced, TallymarkError
from tallymark.produce.pump import Pump
from tallymark.produce.state import FENCED, ProducerState, Reasons

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.05


class Transactions:
    """The transactions of one producer, one at a time. ``seconds`` limits each coordinator request with its retries."""

    def __init__(
        self, client: Any, pump: Pump, reasons: Reasons, state: ProducerState, name: str, seconds: float
    ) -> None:
        self._client, self._pump, self._reasons = client, pump, reasons
        self._state, self._name, self._seconds = state, name, seconds
        self._ready = False
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Commit at the end of the block, or abort if it raises."""
        if not self._one_at_a_time.acquire(blocking=False):
            raise BadInput(
                "this producer is already in a transaction; create another producer with its own transactional_id="
            )
        try:
            self._begin()
            try:
                yield
            except BaseException as error:
                self._abort(f"the block raised {type(error).__name__}")
                raise
            self._commit()
        finally:
            self._one_at_a_time.release()

    def _begin(self) -> None:
        if not self._ready:
            self._request(self._client.init_transactions, "start")
            self._ready = True
        self._state.first = None
        self._request(lambda _: self._client.begin_transaction(), "start")

    def _commit(self) -> None:
        try:
            self._finish(self._client.commit_transaction, "commit")
        except _Abortable as error:
            self._abort("one of its records failed")
            words = f"the transaction of {self._name} was aborted; none of its records is visible"
            raise CommitRefused(f"{words}: {self._state.first or error}") from error

    def _abort(self, why: str) -> None:
        self._reasons.dropping = f"its transaction was aborted: {why}"
        try:
            self._finish(self._client.abort_transaction, "abort")
        except TallymarkError as error:
            # The coordinator aborts it after transaction.timeout.ms, or when the id is used again.
            log.warning("transaction not aborted transaction=%s error=%s", self._name, error)

    def _finish(self, call: Callable[[float], None], what: str) -> None:
        """Commit or abort. If this fails, stop the producer: its client can't leave the transaction."""
        try:
            self._request(call, what)
        except _Abortable:
            raise
        except TallymarkError as error:
            self._state.stop(error)
            raise
        except BaseException as error:
            self._state.stop(self._unfinished(what, type(error).__name__))
            raise

    def _request(self, call: Callable[[float], None], what: str) -> None:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                with self._pump.alone():
                    return call(max(0.1, deadline - time.monotonic()))
            except KafkaException as raised:
                error = raised.args[0]
                if error.code() in FENCED or error.txn_requires_abort() or not error.retriable():
                    raise self._refusal(error, what) from raised
                if time.monotonic() >= deadline:
                    why = f"no answer within {self._seconds:g} s: {self._reasons.of_waiting(())}"
                    raise self._unfinished(what, why) from raised
            time.sleep(RETRY_SECONDS)

    def _refusal(self, error: Any, what: str) -> TallymarkError:
        """Return the error for a request that failed permanently."""
        known = self._reasons.of_failure(error)
        if isinstance(known, Fenced):
            self._state.stop(known)
        if what != "commit" or isinstance(known, Fenced):
            return known
        return _Abortable(str(known)) if error.txn_requires_abort() else self._unfinished(what, str(known))

    def _unfinished(self, what: str, why: str) -> TallymarkError:
        if what == "commit":
            return CommitUnknown(
                f"the commit of the transaction of {self._name} was not confirmed: {why}; its records may or may not "
                "be visible: check the topic before you send them again"
            )
        return CommitRefused(f"the {what} of the transaction of {self._name} failed: {why}")


class _Abortable(TallymarkError):
    """The transaction can no longer be committed; the producer can continue after an abort."""
