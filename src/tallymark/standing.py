"""Whether a producer still takes records, and what it says when it does not."""

from __future__ import annotations

from typing import Any

from tallymark.errors import BadInput, Fenced, ProducerStopped, RecordDropped, TallymarkError, UnknownPartition
from tallymark.reasons import Reasons


class Standing:
    """Of one producer. ``stops`` says whether its first record that finally fails ends it.

    ``halted``: it takes none now, because it is ``closed``, stopped by its ``failure``, or outside of a transaction.
    """

    def __init__(self, reasons: Reasons, *, stops: bool, halted: bool) -> None:
        self._reasons, self._stops = reasons, stops
        self.halted = halted
        self.closed = ""
        self.failure: TallymarkError | None = None
        self.fatal: TallymarkError | None = None
        self.first: TallymarkError | None = None

    def refusal(self) -> TallymarkError:
        if self.closed:
            return ProducerStopped(self.closed)
        if isinstance(self.failure, Fenced):
            return Fenced(str(self.failure))
        if self.failure is None:
            return BadInput("a producer with transactional_id= sends inside of `with producer.transaction():` only")
        return ProducerStopped(
            f"this producer stopped at its first failure, so that nothing overtakes it: {self.failure}; make a new one"
        )

    def close(self, why: str) -> None:
        self.halted, self.closed = True, why
        if self.failure is None:
            self._reasons.dropping = "the producer was closed"

    def stop(self, error: TallymarkError) -> None:
        if self.failure is None:
            self.failure = error
            self.halted = True
            self._reasons.dropping = f"it was queued behind a record that failed: {error}"

    def on_failure(self, error: TallymarkError) -> None:
        """A record failed. ``first`` has the reason of those that failed since a transaction began."""
        if not isinstance(error, RecordDropped):
            self.first = self.first or error
        # Nothing can overtake a record in a partition that does not exist.
        if (self._stops and not isinstance(error, UnknownPartition)) or self.fatal:
            self.stop(error)

    def on_fatal(self, error: Any, *, last: bool) -> None:
        """The client has ended for good. Unless it was the last, the records that it ended at are reported next."""
        self.fatal = self._reasons.of_failure(error)
        self._reasons.dropping = str(self.fatal)
        if last or isinstance(self.fatal, Fenced):
            self.stop(self.fatal)
