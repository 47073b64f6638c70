"""Framework style, the way out: a topic to send to, and one producer behind all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tallymark.delivery import WAIT_SECONDS, Delivery
from tallymark.errors import BadInput, BufferFull, ProducerStopped, RecordTooLarge, Retry, UnknownTopic
from tallymark.producer import Producer


class Lazy:
    """A producer that is made when it is needed, and again when it is needed after it was closed."""

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

    When there is no room, or the producer has stopped, it raises ``Retry``: the record that a handler works on is not
    at fault, and must not become a dead letter. What can't be sent at all raises ``ValueError``, and does become one.
    """

    def __init__(self, topic: str, producer: Lazy) -> None:
        self.topic = topic
        self._producer = producer

    def send(self, value: Any = None, **record: Any) -> Delivery:
        try:
            return self._producer.get().send(self.topic, value, **record)
        except (BufferFull, ProducerStopped) as error:
            raise Retry(str(error)) from error
        except UnknownTopic:
            raise
        except (RecordTooLarge, BadInput) as error:
            raise ValueError(str(error)) from error

    def flush(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until what was sent is delivered, and raise failures that nobody has heard of."""
        self._producer.get().flush(timeout)
