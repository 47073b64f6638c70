"""The producer for services: by default it loses and reorders no records, and it reports every failure."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from tallymark.core.tls import Tls
from tallymark.errors import BadInput, BufferFull, NotDelivered, StillWaiting, TallymarkError
from tallymark.formats.value import Formatted
from tallymark.kafka.brokers import connect
from tallymark.kafka.cluster import Cluster, Sasl
from tallymark.produce.delivery import WAIT_SECONDS, Delivery, Interceptors, Metadata, OnDelivery, Reports, Statistics
from tallymark.produce.formats import FormattedRecords
from tallymark.produce.pump import FORKED, Pump, still_open
from tallymark.produce.settings import (
    NO_LOSS,
    PLAIN,
    Choice,
    Encode,
    Headers,
    Outgoing,
    Partitioner,
    Profile,
    check,
    check_encode,
    check_key,
    check_topic,
    choose,
    count_partitions,
    epoch_millis,
)
from tallymark.produce.state import ASK_SECONDS, ProducerState, Reasons
from tallymark.produce.transactions import Transactions

if TYPE_CHECKING:
    from typing import Self

log = logging.getLogger(__name__)

SERVED_EVERY = 64
"""A sender serves reports once for this many records."""


class Producer:
    """Writes records to Kafka. Threads may share it.

    >>> with Producer("localhost:9092") as producer:
    ...     producer.send("orders", {"id": 42}, key="42")                     # fire and forget
    ...     producer.send("orders", {"id": 43}, on_delivery=print)            # callback(metadata, error)
    ...     print(producer.send("orders", {"id": 44}).result(timeout=5))      # future

    ``profile`` is "no-loss" or "fast". With "no-loss" all in-sync replicas acknowledge, retries are unlimited, and
    order is kept; the first record that fails permanently stops the producer, and the records queued after it are
    dropped and reported. With "fast" only the leader acknowledges; records can be lost, repeated and reordered when it
    fails. With ``transactional_id`` records are sent in transactions. ``settings`` are librdkafka settings that
    override those of the profile.

    Values that are bytes, text or None are sent unchanged, others as JSON; ``value`` is a function that encodes all
    values except None instead, or a format: ``Avro(...)``, ``Protobuf(...)`` or ``Json(...)``. ``key`` is a format.
    ``partitioner`` is a function of (topic, key, partitions); the default is that of Java. ``interceptors``,
    ``on_success(metadata)`` and ``on_error(record, error)`` receive the outcome of every record, in any thread that
    sends or waits, or in the producer's own thread.

    A full buffer blocks ``send`` for up to ``buffer_seconds``. A failure that was not reported through
    ``on_delivery``, ``on_error`` or a future is raised by ``flush`` and ``close``. Process exit flushes open producers.
    """

    def __init__(
        self,
        brokers: str,
        *,
        profile: str | Profile = NO_LOSS,
        settings: Mapping[str, Any] | None = None,
        security: Sasl | None = None,
        tls: Tls | bool | None = None,
        transactional_id: str | None = None,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[Any] = (),
        on_success: Callable[[Metadata], Any] | None = None,
        on_error: Callable[[Outgoing, TallymarkError], Any] | None = None,
        value: Encode | Formatted | None = None,
        key: Formatted | None = None,
        buffer_seconds: float = WAIT_SECONDS,
    ) -> None:
        check(settings or {})
        chosen = choose(profile, transactional_id)
        self._encode, self._plain = check_encode(value)
        self._formats = FormattedRecords.of(key, value, patience=buffer_seconds)
        cluster = Cluster(brokers, security, tls)
        self._reasons = Reasons(cluster, transactional_id)
        own = {"error_cb": self._reasons.complaints.on_error}
        self.settings = chosen.effective(settings or {})
        self._client: Any = connect(Client, {**cluster.settings(), **self.settings, **own})
        self._state = ProducerState(self._reasons, stops=chosen.stops_on_failure, halted=transactional_id is not None)
        self._buffer_seconds = buffer_seconds
        self._interceptors = Interceptors(interceptors)
        count = partial(count_partitions, self._client, self._reasons.of_failure)
        self._choice = Choice(partitioner, count) if partitioner else None
        self._reports = Reports(
            self._reasons.of_failure, self._wait, self._interceptors, on_success, on_error, self._state.on_failure
        )
        self._closing = threading.RLock()
        self._ticks = itertools.count()
        self._topics: set[str] = set()
        self._pump = Pump(self._client, lambda error: self._state.on_fatal(error, last=self._idle()), self._drop_queued)
        self._transactions = (
            Transactions(self._client, self._pump, self._reasons, self._state, transactional_id, buffer_seconds)
            if transactional_id
            else None
        )
        still_open.add(self)

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: datetime | int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Queue a record; its outcome is reported later. Records of a partition keep their order.

        Keys are str, bytes or None, except with ``key=``, a format. Raises ``BufferFull`` if the buffer has no room in
        time, ``RecordTooLarge``, or ``ProducerStopped`` after a failure.
        """
        if self._state.halted:
            raise self._state.refusal()
        if self._interceptors.sending:
            topic, key, value, headers, partition, timestamp = self._interceptors.on_send(
                Outgoing(topic, key, value, headers, partition, timestamp)
            )
        if topic not in self._topics:
            self._topics.add(check_topic(topic))
        if self._formats is not None:
            key, value, headers = self._formats(topic, key, value, headers)
        if value.__class__ not in self._plain:
            value = self._encode(value)
        if key.__class__ not in PLAIN:
            key = check_key(key)
        if partition is None:
            partition = -1 if self._choice is None else self._choice(topic, key)
        delivery = Delivery(self._reports, on_delivery, headers)
        millis = 0 if timestamp is None else epoch_millis(timestamp)
        record = (topic, value, key, partition, delivery, None, millis, headers)
        try:
            self._client.produce(*record)
        except BufferError:
            self._wait_for_room(record)
        except (KafkaException, TypeError, ValueError, OverflowError) as error:
            raise self._refused(error, record) from error
        if self._state.closed:
            self._check_late(delivery)
        if not next(self._ticks) % SERVED_EVERY:
            self._pump.nudge()
        return delivery

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the records sent in the block visible together at its end, or never if the block raises.

        A producer has one transaction at a time, and records that other threads send with it are part of that
        transaction. Raises ``CommitRefused`` if the transaction was aborted, ``CommitUnknown`` if the commit was not
        confirmed, and ``Fenced`` if another producer uses the same transactional_id. After ``CommitUnknown`` and
        ``Fenced`` the producer is stopped.
        """
        self._pump.check_caller()
        if self._transactions is None:
            raise BadInput("this producer has no transactions; create it with a transactional_id= of its own")
        if self._state.closed or self._state.failure:
            raise self._state.refusal()
        try:
            with self._transactions.one():
                self._state.halted = False
                try:
                    yield
                finally:
                    self._state.halted = True
        finally:
            # The end of the block has reported the outcome: it committed, or it raised.
            self._reports.forget()

    def flush(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every record is delivered or has failed, and raise unreported failures."""
        self._empty(timeout)
        self._reports.raise_failures()

    def close(self, timeout: float = WAIT_SECONDS) -> None:
        """Flush and close. Records that are not delivered in time are dropped and reported."""
        self._pump.check_caller()
        with self._closing:
            if self._state.closed:
                return
            self._state.close("this producer is closed; create a new one")
            try:
                self._empty(timeout)
            except TallymarkError as error:
                self._reasons.dropping = f"the producer was closed: {error}"
            except BaseException as error:
                self._reasons.dropping = f"the producer was closed: {type(error).__name__} interrupted its flush"
                self._end()
                self._reports.log()
                raise
            self._end()
            self._reports.raise_failures()

    def detach(self) -> None:
        """Close in a forked child: the producer and its records belong to the parent process."""
        self._state.close(FORKED)
        self._closing = threading.RLock()
        self._pump.detach()

    def statistics(self) -> Statistics:
        # repr() is "count(7)". The counter is thread-safe without a lock, and has no other way to be read.
        sent = int(repr(self._ticks)[6:-1])
        delivered, failed = self._reports.delivered, self._reports.failed
        return Statistics(sent, delivered, failed, max(0, sent - delivered - failed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except TallymarkError as error:
            if kind is None:
                raise
            log.error("%s", error)  # the block's own exception takes precedence

    def _idle(self) -> bool:
        return len(self._client) == 0

    def _empty(self, seconds: float) -> None:
        with self._pump.hurrying():
            self._wait(self._idle, seconds)

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        def delivered() -> bool:
            if condition():
                return True
            if self._reports.delivered:
                self._reasons.complaints.clear()
            self._reasons.complaints.check()  # waiting does not help a client whose access was denied
            return False

        if not self._pump.wait_until(delivered, seconds):
            count = self.statistics().waiting
            waiting = f"{count:,} {'record is' if count == 1 else 'records are'} not delivered after {seconds:g} s"
            raise StillWaiting(f"{waiting}: {self._reasons.of_waiting(sorted(self._topics))}")

    def _wait_for_room(self, record: tuple[Any, ...]) -> None:
        def fits() -> bool:
            if self._state.halted:
                raise self._state.refusal()
            try:
                self._client.produce(*record)
            except BufferError:
                return False
            except KafkaException as error:
                raise self._refused(error, record) from error
            return True

        if self._pump.serves_here():
            raise BufferFull(
                "the buffer is full, and a callback can't wait for space; increase queue.buffering.max.messages or "
                "queue.buffering.max.kbytes"
            )
        if not self._pump.wait_until(fits, self._buffer_seconds):
            why = self._reasons.of_waiting([record[0], *sorted(self._topics - {record[0]})])
            raise BufferFull(f"the buffer was full for {self._buffer_seconds:g} s: {why}")

    def _refused(self, error: Exception, record: tuple[Any, ...]) -> TallymarkError:
        """Return why the client refused a record. This stops the producer only if the client has a fatal error."""
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code == KafkaError._STATE and self._transactions:
            first = f": {self._state.first}" if self._state.first else ""
            return NotDelivered(
                f"topic {record[0]}: the record was not sent, because its transaction has failed or ended{first}"
            )
        if code != KafkaError._FATAL:
            return self._reasons.of_refusal(error, record, self.settings.get("message.max.bytes", 1_000_000))
        with suppress(BadInput):  # a callback can't wait for the report, which has the reason
            self._pump.wait_until(lambda: self._state.failure is not None, ASK_SECONDS)
        self._state.stop(self._state.fatal or self._reasons.of_failure(error.args[0], record[0]))
        return self._state.refusal()

    def _drop_queued(self) -> None:
        """Drop queued records after a failure. Runs repeatedly, because records in flight can be queued again."""
        if self._state.failure is not None and not self._idle():
            with suppress(KafkaException):
                self._client.purge(in_flight=False, blocking=False)

    def _check_late(self, delivery: Delivery) -> None:
        """Handle a record sent while another thread closes the producer: it is delivered by that close, or dropped."""
        if self._pump.serves_here():
            return  # close() waits for this callback, and for its record
        with self._closing:
            self._drop_all()
        if delivery.place is None:
            self._reports.mark_reported(delivery)
            raise self._state.refusal()

    def _drop_all(self) -> None:
        if not self._idle():
            self._client.purge()
            self._pump.wait_until(self._idle, 1)

    def _end(self) -> None:
        self._drop_all()
        self._pump.close()
        self._interceptors.close()
        still_open.discard(self)
