"""The batch loop as a member of a group, like one of several Spark drivers of a pipeline."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from tallymark.core.progress import OnStep, ignore
from tallymark.errors import TallymarkError
from tallymark.kafka.brokers import Brokers
from tallymark.kafka.member import Member
from tallymark.kafka.membership import Group
from tallymark.kafka.source import Kafka
from tallymark.run.commit import Destination
from tallymark.run.loop import Loop
from tallymark.stores.opening import open_store
from tests.support.crash import Run, make_loop
from tests.support.reader import PlainReader
from tests.support.storm_member import PROCESSES, QUICK, TIMEOUT


class SharedLoop:
    """A loop in a separate thread, which shares the partitions of its group."""

    def __init__(self, run: Run, on_step: OnStep = ignore, **changes: Any) -> None:
        self.store, self.reader = open_store(run.store), PlainReader(run.brokers)
        job = replace(make_loop(run, self.store, self.reader).job, **changes)
        member = Member(run.group, Kafka(run.brokers, run.topic, settings=QUICK), Group(), job.owner.run)
        destination = Destination(self.store, self.store)
        self.loop = Loop(job, Brokers(run.brokers), destination, self.reader, on_step, member)
        self.owner = job.owner.run
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except TallymarkError as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.loop.stop()
        self.wait()
        self.reader.close()
        self.store.close()


def start_loop(run: Run) -> Any:
    """The same in a child process, to be killed; returns the process."""
    process = PROCESSES.Process(target=_process, args=(run,), daemon=True)
    process.start()
    return process


def _process(run: Run) -> None:
    shared = SharedLoop(run)
    shared._thread.join()
    raise SystemExit(str(shared.error))
