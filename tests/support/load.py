"""A producer that sends while a test disturbs its brokers."""

from __future__ import annotations

import threading

import tallymark as tm


class Load:
    """Sends numbers steadily, without loss, in a separate thread."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.sent = 0
        self._brokers, self._topic = brokers, topic
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        with tm.Producer(self._brokers) as producer:
            while not self._enough.wait(0.004):
                producer.send(self._topic, {"id": self.sent, "number": self.sent}, key=str(self.sent % 100))
                self.sent += 1

    def stop(self) -> int:
        self._enough.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.sent
