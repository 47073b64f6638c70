"""Reports the outcome of each record, delivered or failed, to futures, callbacks and interceptors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from tallymark.core.times import moment
from tallymark.errors import NotDelivered, TallymarkError
from tallymark.produce.settings import Headers, Outgoing

if TYPE_CHECKING:
    from tallymark.errors import TallymarkError

log = logging.getLogger(__name__)


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function and log what it raises: an observer must not make a record fail."""
    try:
        return function(*arguments)
    except Exception:
        log.exception("callback raised, ignored function=%r", function)
        return None


class Interceptors:
    """Objects with any of ``on_send(record) -> record``, ``on_acknowledgement(metadata, error)`` and ``close()``."""

    def __init__(self, interceptors: Sequence[Any]) -> None:
        self.sending = _methods(interceptors, "on_send")
        self.acknowledging = _methods(interceptors, "on_acknowledgement")
        self._closing = _methods(interceptors, "close")

    def on_send(self, record: Outgoing) -> Outgoing:
        """Pass the record through all interceptors in order; each receives the result of the previous interceptor."""
        for function in self.sending:
            record = guarded(function, record) or record
        return record

    def on_acknowledgement(self, metadata: Metadata | None, error: TallymarkError | None) -> None:
        for function in self.acknowledging:
            guarded(function, metadata, error)

    def close(self) -> None:
        for function in self._closing:
            guarded(function)


def _methods(interceptors: Sequence[Any], name: str) -> list[Callable[..., Any]]:
    return [getattr(interceptor, name) for interceptor in interceptors if hasattr(interceptor, name)]


WAIT_SECONDS = 60.0
"""Default timeout of calls that wait for the brokers."""


class Metadata(NamedTuple):
    """Where a record is stored. ``timestamp`` is that of the log; None if ``datetime`` can't represent it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None


class Statistics(NamedTuple):
    """Numbers of records since the producer was created."""

    sent: int
    delivered: int
    failed: int
    waiting: int


OnDelivery = Callable[["Metadata | None", "TallymarkError | None"], Any]
"""``callback(metadata, error)``, of which either is None."""


class Delivery:
    """The future of a sent record, light enough to be created for every record."""

    __slots__ = ("_reports", "error", "headers", "on_delivery", "place", "unreported")

    def __init__(self, reports: Reports, on_delivery: OnDelivery | None, headers: Headers | None) -> None:
        self._reports = reports
        self.on_delivery = on_delivery
        self.headers = headers
        self.place: tuple[Any, ...] | None = None
        self.error: TallymarkError | None = None
        self.unreported = 0

    def __call__(self, error: Any, message: Any) -> None:
        """Handle the client's delivery report."""
        if error is not None:
            self._reports.fail(self, error, message)
            return
        self.place = message.topic(), message.partition(), message.offset(), message.timestamp()
        self._reports.delivered += 1
        if self.on_delivery is not None or self._reports.listens:
            self._reports.succeed(self)

    def done(self) -> bool:
        return self.place is not None or self.error is not None

    def result(self, timeout: float = WAIT_SECONDS) -> Metadata:
        """Wait until the record is delivered, and return where. Raises why it failed, or on timeout why it waits."""
        if (error := self.exception(timeout)) is not None:
            raise error
        return self.metadata()

    def exception(self, timeout: float = WAIT_SECONDS) -> TallymarkError | None:
        """Wait, and return why the record failed, or None if it is delivered. Raises on timeout why it waits."""
        if self.place is None:
            self._reports.wait(self.done, timeout)
        if self.error is not None:
            self._reports.mark_reported(self)
        return self.error

    def metadata(self) -> Metadata:
        assert self.place is not None, "of delivered records only"
        topic, partition, offset, when = self.place
        return Metadata(topic, partition, offset, moment(*when))


class Reports:
    """The delivery reports of one producer: counts, callbacks, and failures that are not reported yet.

    ``wait(condition, seconds)`` waits for a condition, and raises the reason of the wait on timeout.
    """

    def __init__(
        self,
        explain: Callable[[Any, str, int], TallymarkError],
        wait: Callable[[Callable[[], bool], float], None],
        interceptors: Interceptors,
        on_success: Callable[[Metadata], Any] | None,
        on_error: Callable[[Outgoing, TallymarkError], Any] | None,
        on_failure: Callable[[TallymarkError], None],
    ) -> None:
        """``on_failure`` is called for every failed record, before the other callbacks."""
        self._explain, self.wait = explain, wait
        self._interceptors, self._on_success, self._on_error = interceptors, on_success, on_error
        self._on_failure = on_failure
        self.listens = bool(interceptors.acknowledging or on_success)
        self.delivered = self.failed = 0
        self._lock = threading.Lock()
        # raise_failures() reports all counted failures and begins a round; deliveries of earlier rounds are reported.
        self._count, self._round = 0, 1
        self._first: TallymarkError | None = None

    def succeed(self, delivery: Delivery) -> None:
        metadata = delivery.metadata()
        if self._interceptors.acknowledging:
            self._interceptors.on_acknowledgement(metadata, None)
        if self._on_success is not None:
            guarded(self._on_success, metadata)
        if delivery.on_delivery is not None:
            guarded(delivery.on_delivery, metadata, None)

    def fail(self, delivery: Delivery, cause: Any, message: Any) -> None:
        error = self._explain(cause, message.topic(), message.partition())
        self._on_failure(error)
        self.failed += 1
        if delivery.on_delivery is None and self._on_error is None:
            self._note(delivery, error)
        delivery.error = error
        self._interceptors.on_acknowledgement(None, error)
        if self._on_error is not None:
            guarded(self._on_error, _outgoing(message, delivery.headers), error)
        if delivery.on_delivery is not None:
            guarded(delivery.on_delivery, None, error)

    def mark_reported(self, delivery: Delivery) -> None:
        """Mark the failure of a delivery as reported, if it failed."""
        with self._lock:
            if delivery.unreported == self._round:
                self._count -= 1
                self._first = self._first if self._count else None
            delivery.unreported = 0

    def raise_failures(self) -> None:
        """Raise the unreported failures."""
        with self._lock:
            count, first = self._count, self._first
            self._count, self._first = 0, None
            self._round += 1
        if count:
            records = "1 record was" if count == 1 else f"{count:,} records were"
            raise NotDelivered(f"{records} not delivered; the first: {first}") from first

    def log(self) -> None:
        """Log the unreported failures, for callers that raise another exception."""
        try:
            self.raise_failures()
        except NotDelivered as error:
            log.error("%s", error)

    def forget(self) -> None:
        """Mark all failures as reported."""
        with suppress(NotDelivered):
            self.raise_failures()

    def _note(self, delivery: Delivery, error: TallymarkError) -> None:
        with self._lock:
            self._count += 1
            self._first = self._first or error
            delivery.unreported = self._round


def _outgoing(message: Any, headers: Headers | None) -> Outgoing:
    """Return a failed record as it was sent."""
    kind, millis = message.timestamp()
    when = millis if kind != TIMESTAMP_NOT_AVAILABLE else None
    return Outgoing(message.topic(), message.key(), message.value(), headers, message.partition(), when)
