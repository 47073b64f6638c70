"""Where the batches of a handler come from: claimed partitions (``service/claimed.py``), open skips or dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from tallymark.core.claims import Entry
from tallymark.core.records import DeadLetter
from tallymark.core.retry import PATIENCE
from tallymark.core.spans import Partition
from tallymark.core.tables import Refusal
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.fetch import Direct
from tallymark.kafka.source import Kafka
from tallymark.run.setup import Job
from tallymark.run.work import Task, Work
from tallymark.service.batch import Batch
from tallymark.service.records import Message, decoded


class ServiceWork(Work[Batch]):
    """Work that yields batches for a handler. All of it runs on the thread that iterates over the batches."""

    left = ""

    def letters(self, refusals: Sequence[Refusal]) -> list[DeadLetter]:  # noqa: ARG002
        """A handler names its dead records itself."""
        return []

    def verify(self) -> Callable[[], None]:
        """Called before each transaction: raises if the batch can't be committed any more.

        The returned function is called before the commit, and raises if the topics of the batch were recreated.
        """
        return lambda: None


class Redelivery(ServiceWork):
    """Open skips or dead letters as batches for a handler, read with one Kafka client."""

    def __init__(self, work: Work[Task], job: Job, source: Kafka, brokers: Brokers) -> None:
        self.verb, self.prefix, self.most = work.verb, work.prefix, work.most
        self._work = work
        self._client = Direct(source, brokers)
        self._decoders = source.decoders(
            None, brokers.stop, PATIENCE if job.patience is None else job.patience, finds=job.finds_drift
        )
        self._run, self._batches = job.owner.run, count(1)

    @property
    def finished(self) -> bool:
        return self._work.finished

    def next(self, most: int) -> Batch | None:
        task = self._work.next(most)
        if task is None:
            return None
        messages = self._messages(task)
        self._work.check()
        records, undecoded, unnamed = decoded(self._decoders, messages)
        by_partition: dict[Partition, list[Any]] = {}
        for message in messages:
            by_partition.setdefault(Partition(message.topic(), message.partition()), []).append(message)
        name = f"{self._run}-{self.prefix}{next(self._batches)}"
        letters = [*undecoded, *task.gone]
        more = task.skip, task.tried, task.behind, unnamed
        return Batch(name, task.plan.moves, by_partition, records, letters, *more)

    def _messages(self, task: Task) -> Sequence[Any]:
        if not task.tried:
            return self._client.read(task.plan.spans)
        return [
            Message(record) for record in sorted(task.records, key=lambda record: (record.partition, record.offset))
        ]

    def done(self, entry: Entry) -> None:
        self._work.done(entry)

    def refused(self, error: BaseException) -> bool:
        return self._work.refused(error)

    def leave(self) -> None:
        self._client.close()
