"""What becomes of each record: delivered, with its place in the log, or failed, with a reason that somebody hears."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from tallymark.errors import NotDelivered, TallymarkError
from tallymark.interceptors import Interceptors, guarded
from tallymark.outgoing import Headers, Outgoing
from tallymark.times import moment

log = logging.getLogger(__name__)

WAIT_SECONDS = 60.0
"""How long anybody waits for the brokers who says nothing else."""


class Metadata(NamedTuple):
    """Where a record is now. ``timestamp`` is the one that the log has; None if no calendar has it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None


class Statistics(NamedTuple):
    """Records since the producer was made."""

    sent: int
    delivered: int
    failed: int
    waiting: int


OnDelivery = Callable[["Metadata | None", "TallymarkError | None"], Any]
"""``callback(metadata, error)``: one of them is None."""


class Delivery:
    """One record that was sent: a future that is light enough to make one for each."""

    __slots__ = ("_reports", "error", "headers", "on_delivery", "place", "unheard")

    def __init__(self, reports: Reports, on_delivery: OnDelivery | None, headers: Headers | None) -> None:
        self._reports = reports
        self.on_delivery = on_delivery
        self.headers = headers
        self.place: tuple[Any, ...] | None = None
        self.error: TallymarkError | None = None
        self.unheard = 0

    def __call__(self, error: Any, message: Any) -> None:
        """The client reports."""
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
        """Where the record is, as soon as it is there. Raises why it failed, or what it waits for."""
        if (error := self.exception(timeout)) is not None:
            raise error
        return self.metadata()

    def exception(self, timeout: float = WAIT_SECONDS) -> TallymarkError | None:
        """Why the record failed, or None when it is delivered. Raises what it waits for."""
        if self.place is None:
            self._reports.wait(self.done, timeout)
        if self.error is not None:
            self._reports.heard(self)
        return self.error

    def metadata(self) -> Metadata:
        assert self.place is not None, "of delivered records only"
        topic, partition, offset, when = self.place
        return Metadata(topic, partition, offset, moment(*when))


class Reports:
    """The reports of one producer: counts, who listens, and the failures that nobody has heard of yet.

    ``wait`` waits for a condition, that many seconds, and raises what is waited for when they were not enough.
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
        """``on_failure`` is told of every record that failed, before its listeners are."""
        self._explain, self.wait = explain, wait
        self._interceptors, self._on_success, self._on_error = interceptors, on_success, on_error
        self._on_failure = on_failure
        self.listens = bool(interceptors.acknowledging or on_success)
        self.delivered = self.failed = 0
        self._lock = threading.Lock()
        # Failures are counted until somebody is told of all of them; what is heard of an earlier count is told already.
        self._count, self._tellings = 0, 1
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

    def heard(self, delivery: Delivery) -> None:
        """Its failure, if it failed, was told."""
        with self._lock:
            if delivery.unheard == self._tellings:
                self._count -= 1
                self._first = self._first if self._count else None
            delivery.unheard = 0

    def tell(self) -> None:
        """Raise the failures that nobody has heard of."""
        with self._lock:
            count, first = self._count, self._first
            self._count, self._first = 0, None
            self._tellings += 1
        if count:
            records = "1 record was" if count == 1 else f"{count:,} records were"
            raise NotDelivered(f"{records} not delivered; the first: {first}") from first

    def log(self) -> None:
        """Log them, where something else is raised."""
        try:
            self.tell()
        except NotDelivered as error:
            log.error("%s", error)

    def forget(self) -> None:
        """Failures were told in another way."""
        with suppress(NotDelivered):
            self.tell()

    def _note(self, delivery: Delivery, error: TallymarkError) -> None:
        with self._lock:
            self._count += 1
            self._first = self._first or error
            delivery.unheard = self._tellings


def _outgoing(message: Any, headers: Headers | None) -> Outgoing:
    """A record that failed, as it was sent."""
    kind, millis = message.timestamp()
    when = millis if kind != TIMESTAMP_NOT_AVAILABLE else None
    return Outgoing(message.topic(), message.key(), message.value(), headers, message.partition(), when)
