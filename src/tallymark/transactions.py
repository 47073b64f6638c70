"""Kafka's own transactions: what a producer sends in one becomes visible at once, or never."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from tallymark.errors import BadInput, CommitRefused, TallymarkError
from tallymark.pump import Pump
from tallymark.reasons import FENCED, Reasons

log = logging.getLogger(__name__)


class Transactions:
    """One after the other. ``seconds`` bound each request to the coordinator, with its retries."""

    def __init__(self, client: Any, pump: Pump, reasons: Reasons, name: str, seconds: float) -> None:
        self._client, self._pump, self._reasons = client, pump, reasons
        self._name, self._seconds = name, seconds
        self._ready = False
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Commit at the end of the block, abort when it raises."""
        if not self._one_at_a_time.acquire(blocking=False):
            raise BadInput("this producer is in a transaction already; make another one, with an id of its own")
        try:
            self._begin()
            try:
                yield
            except BaseException as error:
                self._abort(f"its block raised {type(error).__name__}")
                raise
            self._commit()
        finally:
            self._one_at_a_time.release()

    def _begin(self) -> None:
        if not self._ready:
            self._request(self._client.init_transactions, "start")
            self._ready = True
        self._request(lambda _: self._client.begin_transaction(), "start")

    def _commit(self) -> None:
        try:
            self._request(self._client.commit_transaction, "commit")
        except _Abortable as error:
            self._abort("a record of it failed")
            words = f"the transaction of {self._name} was aborted, and nothing of it is visible: {error}"
            raise CommitRefused(words) from error

    def _abort(self, why: str) -> None:
        self._reasons.dropping = f"its transaction was aborted: {why}"
        try:
            self._request(self._client.abort_transaction, "abort")
        except TallymarkError as error:
            # The coordinator aborts it by itself, after transaction.timeout.ms or when the id is used again.
            log.warning("transaction=%s could not be aborted: %s", self._name, error)

    def _request(self, call: Callable[[float], None], what: str) -> None:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                with self._pump.alone():
                    return call(max(0.1, deadline - time.monotonic()))
            except KafkaException as raised:
                error = raised.args[0]
                if error.code() not in FENCED and error.txn_requires_abort():
                    raise _Abortable(str(self._reasons.of_failure(error))) from raised
                if error.code() in FENCED or not error.retriable():
                    raise self._reasons.of_failure(error) from raised
                if time.monotonic() >= deadline:
                    raise CommitRefused(
                        f"the {what} of the transaction of {self._name} did not come through in {self._seconds:g} s: "
                        f"{self._reasons.of_waiting(())}"
                    ) from raised


class _Abortable(TallymarkError):
    """The transaction can't be committed any more; the producer can go on after an abort."""
