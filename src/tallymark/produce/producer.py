"""The producer that a service writes with: nothing is lost or overtaken, and no failure stays unheard."""

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

from tallymark.brokers import connect
from tallymark.cluster import Cluster, Sasl, Tls
from tallymark.delivery import WAIT_SECONDS, Delivery, Metadata, OnDelivery, Reports, Statistics
from tallymark.errors import BadInput, BufferFull, NotDelivered, StillWaiting, TallymarkError
from tallymark.interceptors import Interceptors
from tallymark.lifetime import still_open
from tallymark.outgoing import NOTHING, PLAIN, Encode, Headers, Outgoing, check_key, check_topic, encode, epoch_millis
from tallymark.partitioner import Choice, Partitioner, count_partitions
from tallymark.profiles import NO_LOSS, Profile, check, choose
from tallymark.pump import FORKED, Pump
from tallymark.reasons import ASK_SECONDS, Reasons
from tallymark.standing import Standing
from tallymark.transactions import Transactions

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

SERVED_EVERY = 64
"""Records after which a sender looks for reports: often enough, and not for each."""


class Producer:
    """Writes records to Kafka. Threads may share it.

    >>> with Producer("localhost:9092") as producer:
    ...     producer.send("orders", {"id": 42}, key="42")                     # fire and forget
    ...     producer.send("orders", {"id": 43}, on_delivery=print)            # callback(metadata, error)
    ...     print(producer.send("orders", {"id": 44}).result(timeout=5))      # future

    ``profile`` is "no-loss" (all replicas acknowledge, retries without end, order kept; the first record that finally
    fails stops the producer, and what is queued behind it is dropped and reported) or "fast" (the leader alone
    acknowledges; records can be lost, repeated and reordered when it dies). With ``transactional_id`` records are sent
    in transactions. ``settings`` are librdkafka's own, by its names, on top of the profile.

    Values are sent as they are when they are bytes, text or None, and as JSON otherwise; ``value`` is a function that
    encodes all but None instead. ``partitioner`` is a function of (topic, key, partitions); without it keys go where
    Java's default partitioner puts them. ``interceptors``, ``on_success(metadata)`` and ``on_error(record, error)``
    hear what becomes of every record, in whichever thread sends or waits at that time.

    A full buffer blocks ``send`` for ``buffer_seconds``. A failure that nobody has heard of, by ``on_delivery``,
    ``on_error`` or a future, is raised by ``flush`` and ``close``. The end of the process flushes what is still open.
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
        value: Encode | None = None,
        buffer_seconds: float = WAIT_SECONDS,
    ) -> None:
        check(settings or {})
        chosen = choose(profile, transactional_id)
        cluster = Cluster(brokers, security, tls)
        self._reasons = Reasons(cluster, transactional_id)
        own = {"error_cb": self._reasons.complaints.on_error}
        self.settings = chosen.effective(settings or {})
        self._client: Any = connect(Client, {**cluster.settings(), **self.settings, **own})
        self._standing = Standing(self._reasons, stops=chosen.stops_on_failure, halted=transactional_id is not None)
        self._buffer_seconds = buffer_seconds
        self._interceptors = Interceptors(interceptors)
        self._encode: Encode = value or encode
        self._plain = PLAIN if value is None else NOTHING
        count = partial(count_partitions, self._client, self._reasons.of_failure)
        self._choice = Choice(partitioner, count) if partitioner else None
        self._reports = Reports(
            self._reasons.of_failure, self._wait, self._interceptors, on_success, on_error, self._standing.on_failure
        )
        self._closing = threading.RLock()
        self._ticks = itertools.count()
        self._topics: set[str] = set()
        self._pump = Pump(
            self._client, lambda error: self._standing.on_fatal(error, last=self._idle()), self._drop_queued
        )
        self._transactions = (
            Transactions(self._client, self._pump, self._reasons, self._standing, transactional_id, buffer_seconds)
            if transactional_id
            else None
        )
        still_open.add(self)

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: datetime | int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Hand over a record; what becomes of it is told later. Records of a partition keep their order.

        Raises ``BufferFull`` when there is no room in time, ``RecordTooLarge``, ``ProducerStopped`` after a failure.
        """
        if self._standing.halted:
            raise self._standing.refusal()
        if self._interceptors.sending:
            topic, key, value, headers, partition, timestamp = self._interceptors.on_send(
                Outgoing(topic, key, value, headers, partition, timestamp)
            )
        if topic not in self._topics:
            self._topics.add(check_topic(topic))
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
        if self._standing.closed:
            self._check_late(delivery)
        if not next(self._ticks) % SERVED_EVERY:
            self._pump.nudge()
        return delivery

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is sent in the block becomes visible at its end; when it raises, never.

        One at a time. What other threads send meanwhile with this producer belongs to it too. Raises ``CommitRefused``
        when it had to be aborted, ``CommitUnknown`` when nobody can say whether it was, and ``Fenced`` when another
        producer came with the same transactional_id. After the latter two the producer has ended.
        """
        self._pump.check_caller()
        if self._transactions is None:
            raise BadInput("this producer has no transactions; make it with transactional_id='a-name-of-its-own'")
        if self._standing.closed or self._standing.failure:
            raise self._standing.refusal()
        try:
            with self._transactions.one():
                self._standing.halted = False
                try:
                    yield
                finally:
                    self._standing.halted = True
        finally:
            # Whoever leaves the block was told: it committed, or it raised.
            self._reports.forget()

    def flush(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every record is delivered or has failed, and raise failures that nobody has heard of."""
        self._empty(timeout)
        self._reports.tell()

    def close(self, timeout: float = WAIT_SECONDS) -> None:
        """Flush, and end. What is not delivered in time is dropped and reported."""
        self._pump.check_caller()
        with self._closing:
            if self._standing.closed:
                return
            self._standing.close("this producer is closed; make a new one")
            try:
                self._empty(timeout)
            except TallymarkError as error:
                self._reasons.dropping = f"the producer was closed: {error}"
            except BaseException as error:
                self._reasons.dropping = f"the producer was closed: {type(error).__name__} cut its flush short"
                self._end()
                self._reports.log()
                raise
            self._end()
            self._reports.tell()

    def disown(self) -> None:
        """In a forked child: the producer, and what it holds, is its parent's."""
        self._standing.close(FORKED)
        self._closing = threading.RLock()
        self._pump.disown()

    def statistics(self) -> Statistics:
        # "count(7)": a counter that threads advance together without a lock, and no other way to read it.
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
            log.error("%s", error)  # what the block raised comes first

    def _idle(self) -> bool:
        return len(self._client) == 0

    def _empty(self, seconds: float) -> None:
        with self._pump.hurrying():
            self._wait(self._idle, seconds)

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        def settled() -> bool:
            if condition():
                return True
            if self._reports.delivered:
                self._reasons.complaints.clear()
            self._reasons.complaints.check()  # who was never let in won't be by waiting
            return False

        if not self._pump.wait_until(settled, seconds):
            count = self.statistics().waiting
            waiting = f"{count:,} {'record waits' if count == 1 else 'records wait'} after {seconds:g} s"
            raise StillWaiting(f"{waiting}: {self._reasons.of_waiting(sorted(self._topics))}")

    def _wait_for_room(self, record: tuple[Any, ...]) -> None:
        def fits() -> bool:
            if self._standing.halted:
                raise self._standing.refusal()
            try:
                self._client.produce(*record)
            except BufferError:
                return False
            except KafkaException as error:
                raise self._refused(error, record) from error
            return True

        if self._pump.serves_here():
            raise BufferFull("the buffer is full of records, and a callback can't wait for room; make it larger")
        if not self._pump.wait_until(fits, self._buffer_seconds):
            why = self._reasons.of_waiting([record[0], *sorted(self._topics - {record[0]})])
            raise BufferFull(f"the buffer was full of records for {self._buffer_seconds:g} s: {why}")

    def _refused(self, error: Exception, record: tuple[Any, ...]) -> TallymarkError:
        """Why the client did not take a record: it fails alone and stops nothing, unless the client has ended."""
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code == KafkaError._STATE and self._transactions:
            first = f": {self._standing.first}" if self._standing.first else ""
            return NotDelivered(f"topic {record[0]}: not sent, because its transaction has failed or ended{first}")
        if code != KafkaError._FATAL:
            return self._reasons.of_refusal(error, record, self.settings.get("message.max.bytes", 1_000_000))
        with suppress(BadInput):  # a callback can't wait for the report that says more
            self._pump.wait_until(lambda: self._standing.failure is not None, ASK_SECONDS)
        self._standing.stop(self._standing.fatal or self._reasons.of_failure(error.args[0], record[0]))
        return self._standing.refusal()

    def _drop_queued(self) -> None:
        """After a failure, again and again: what was under way at that time may be queued once more."""
        if self._standing.failure is not None and not self._idle():
            with suppress(KafkaException):
                self._client.purge(in_flight=False, blocking=False)

    def _check_late(self, delivery: Delivery) -> None:
        """It was handed over while another thread closed the producer: delivered by that, or dropped now."""
        if self._pump.serves_here():
            return  # whoever closes waits for this callback, and for its record
        with self._closing:
            self._drop_all()
        if delivery.place is None:
            self._reports.heard(delivery)
            raise self._standing.refusal()

    def _drop_all(self) -> None:
        if not self._idle():
            self._client.purge()
            self._pump.wait_until(self._idle, 1)

    def _end(self) -> None:
        self._drop_all()
        self._pump.close()
        self._interceptors.close()
        still_open.discard(self)
