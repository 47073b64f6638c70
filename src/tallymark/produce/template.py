"""Senders for single topics in the framework-style API, which share a producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tallymark.errors import BadInput, BufferFull, ProducerStopped, RecordTooLarge, Retry, UnknownSchema, UnknownTopic
from tallymark.produce.delivery import WAIT_SECONDS, Delivery
from tallymark.produce.producer import Producer


class Lazy:
    """Creates a producer on first use, and again on the first use after it was closed."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    def get(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = self._make()
            return self._producer

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.__exit__(*raised)


class Template:
    """Sends to one topic: ``orders.send({"id": 42}, key="42")``. The arguments are those of ``Producer.send``.

    If the buffer is full or the producer has stopped, it raises ``Retry``: the handler's record is not at fault and
    must not become a dead letter. A value that can't be sent at all raises ``ValueError``, and the handler's record
    does become a dead letter.
    """

    def __init__(self, topic: str, producer: Lazy) -> None:
        self.topic = topic
        self._producer = producer

    def send(self, value: Any = None, **record: Any) -> Delivery:
        try:
            return self._producer.get().send(self.topic, value, **record)
        except (BufferFull, ProducerStopped) as error:
            raise Retry(str(error)) from error
        except (UnknownTopic, UnknownSchema):
            raise
        except (RecordTooLarge, BadInput) as error:
            raise ValueError(str(error)) from error

    def flush(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every record is delivered or has failed, and raise unreported failures."""
        self._producer.get().flush(timeout)
