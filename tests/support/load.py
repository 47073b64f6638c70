"""A producer that sends while a test disturbs its brokers."""

from __future__ import annotations

import threading

import tallymark as tm
from tests.support.background import Background


class Load(Background[int]):
    """Sends numbers steadily and without loss, from now on; ``stop`` returns how many."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.sent = 0
        self._brokers, self._topic = brokers, topic
        self._enough = threading.Event()
        super().__init__(self._send, self._enough.set)
        self.start()

    def _send(self) -> int:
        with tm.Producer(self._brokers) as producer:
            while not self._enough.wait(0.004):
                producer.send(self._topic, {"id": self.sent, "number": self.sent}, key=str(self.sent % 100))
                self.sent += 1
        return self.sent
