"""The framework-style API: an app whose decorated functions are listeners, and whose templates send records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from tallymark.core.journal import LetterQuery
from tallymark.core.progress import OnStep, ignore
from tallymark.core.retry import Background
from tallymark.core.spans import Tally
from tallymark.core.tls import Tls
from tallymark.errors import BadInput
from tallymark.formats.value import Bytes, Format
from tallymark.kafka.cluster import Cluster, Sasl
from tallymark.kafka.source import Kafka
from tallymark.produce.producer import Producer
from tallymark.produce.template import Lazy, Template
from tallymark.run.observe import serving
from tallymark.run.setup import Setup
from tallymark.run.until import Until, leaving_on_signals
from tallymark.service.handler import Handler
from tallymark.service.listener import Listener, Listening
from tallymark.service.workers import Order

if TYPE_CHECKING:
    from typing import Unpack

    from tallymark.run.setup import Settings

BYTES = Bytes()
Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """Listeners that share brokers and a store.

    >>> app = App(brokers="localhost:9092", store="postgresql://localhost/shop")
    >>> @app.listen("app-log", group="log-to-db", threads=3)
    ... def receive(record, db):
    ...     db.execute("INSERT INTO log (line) VALUES (:line)", {"line": record.value.decode()})
    >>> app.run()

    ``kafka`` holds librdkafka settings by their own names. All other settings are those of ``Pipeline``; they apply to
    every listener, and a listener can override them.
    """

    def __init__(
        self,
        *,
        brokers: str,
        store: str,
        kafka: Mapping[str, Any] | None = None,
        security: Sasl | None = None,
        tls: Tls | bool | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._cluster = Cluster(brokers, security, tls)
        self._store = store
        self._kafka = dict(kafka or {})
        self._settings = settings
        self._listeners: list[Listener] = []
        self._running: list[Listening] = []
        self._stop = threading.Event()
        self._producers = [Lazy(self._producer)]

    @property
    def listeners(self) -> Sequence[Listener]:
        return tuple(self._listeners)

    def listen(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        value: Format = BYTES,
        key: Format = BYTES,
        threads: int = 1,
        workers: int = 1,
        order: Order = "partition",
        batch: bool = False,
        max_records: int = 500,
        kafka: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> Callable[[Function], Function]:
        """Call the decorated function for every record of these topics, with the open transaction.

        ``threads`` is the number of consumers, each a member of the group. ``workers`` is the number of threads that
        handle the records of each consumer, and ``order`` is what they keep in order: the records of a "partition",
        those of a "key", or "none". ``batch=True`` passes all records of a transaction in one call. The function may be
        async. It receives the transaction if it has a second positional parameter without a default.

        If the function raises ``Retry``, ``ConnectionError`` or ``TimeoutError``, the whole batch is tried again. If it
        raises anything else, the record becomes a dead letter, and the other records are applied.
        """

        def register(function: Function) -> Function:
            named = {**self._kafka, **(kafka or {})}
            cluster = self._cluster
            source = Kafka(cluster.brokers, topics, value, named, cluster.security, cluster.tls, key)
            merged: Settings = {**self._settings, **settings}
            setup = Setup(group, source, self._store, **merged)
            handler = Handler(function, takes_batches=batch)
            self._listeners.append(Listener(setup, handler, threads, workers, order, max_records))
            return function

        return register

    def template(self, topic: str, **settings: Any) -> Template:
        """Return a sender for one topic: ``orders = app.template("orders"); orders.send({"id": 42}, key="42")``.

        All templates share one producer, except those with their own ``Producer`` settings. Producers are flushed and
        closed when ``run`` ends. Records that a handler sends are not part of its transaction: a retry sends them
        again, and a crash after the commit can lose unacknowledged records, unless the handler waits for ``result()``.
        """
        if settings:
            self._producers.append(Lazy(partial(self._producer, **settings)))
        return Template(topic, self._producers[-1 if settings else 0])

    def _producer(self, **settings: Any) -> Producer:
        return Producer(self._cluster.brokers, security=self._cluster.security, tls=self._cluster.tls, **settings)

    def change(self, **settings: Unpack[Settings]) -> None:
        """Override these settings in all listeners."""
        self._listeners = [replace(listener, setup=replace(listener.setup, **settings)) for listener in self._listeners]

    def run(self, until: Until = "stopped", *, on_step: OnStep = ignore) -> Tally:
        """Run all listeners until stopped, or ``until="caught-up"``. Returns their total tally.

        Ctrl-C and SIGTERM stop after the batches in flight; a second signal ends the process at once. If a listener
        fails, all listeners stop, and its error is raised.
        """
        if until not in get_args(Until):
            raise BadInput(f"until={until!r} is not known; write {' or '.join(get_args(Until))}")
        return self._run(lambda running: running.run(until), on_step, threads=True)

    def backfill(self, *, topic: str | None = None, partition: int | None = None, on_step: OnStep = ignore) -> Tally:
        """Fill open skips: the functions get records that are older than those applied since."""
        return self._run(lambda running: running.backfill(topic, partition), on_step, threads=False)

    def replay(self, letters: LetterQuery | None = None, *, on_step: OnStep = ignore) -> Tally:
        """Replay the open dead letters that ``letters`` selects (default: all), and settle those that are applied.

        Returns how many were applied, and how many died again.
        """
        query = letters or LetterQuery()
        groups = sorted({listener.setup.group for listener in self._listeners})
        if query.group is not None and query.group not in groups:
            raise BadInput(f"the app has no listener of group {query.group}; its groups are {', '.join(groups)}")
        return self._run(lambda running: running.replay(query), on_step, threads=False)

    def _run(self, work: Callable[[Listening], None], on_step: OnStep, *, threads: bool) -> Tally:
        if not self._listeners:
            raise BadInput("the app has no listener; decorate a function with @app.listen('topic', group='name')")
        self._running = [
            Listening(listener, on_step, n)
            for listener in self._listeners
            for n in range(listener.threads if threads else 1)
        ]
        with ExitStack() as stack:
            stack.callback(self._stop.clear)
            for producer in self._producers:
                stack.enter_context(producer)
            stack.enter_context(leaving_on_signals(self.stop))
            # A backfill or replay runs beside the service, which already uses the port.
            for listener in self._listeners if threads else ():
                stack.enter_context(serving(listener.setup))
            self._wait([_start(partial(work, running)) for running in self._running])
        return Tally.sum(running.total for running in self._running)

    def stop(self) -> None:
        """Stop after the batches in flight."""
        self._stop.set()

    def _wait(self, futures: Sequence[Future[None]]) -> None:
        left = set(futures)
        while left:
            # The timeout is short because signals are handled only between two waits.
            done, left = wait(left, timeout=0.1, return_when=FIRST_EXCEPTION)
            if self._stop.is_set() or any(future.exception() for future in done):
                for running in self._running:
                    running.stop()
        for future in futures:
            future.result()


def _start(work: Callable[[], None]) -> Future[None]:
    background = Background("tallymark-listener")
    future = background.submit(work)
    background.close()
    return future
