"""OpenTelemetry spans for every batch and its stages. The application's SDK configuration decides where they go."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version

from tallymark.core.progress import Progress, Step
from tallymark.errors import BadInput, described
from tallymark.run.observe.stages import TOTAL, StageTime, Stopwatch

try:
    from opentelemetry import trace
except ModuleNotFoundError as error:
    raise BadInput(f"tracing needs {error.name}, which is not installed: pip install 'tallymark[tracing]'") from None


class Tracing:
    """The OpenTelemetry spans of one run. A batch that is retried gets a new span."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._tracer = trace.get_tracer("tallymark", version("tallymark"))
        self._open: dict[str, trace.Span] = {}
        self._stopwatch = Stopwatch()

    def __enter__(self) -> Tracing:
        return self

    def __exit__(self, *_: object) -> None:
        """End the spans of batches that were read but not committed."""
        # The reading thread may still report steps, so iterate over a copy.
        for span in list(self._open.values()):
            span.end()

    def __call__(self, step: Step, progress: Progress) -> None:
        span = self._open.get(progress.batch) or self._begin(progress)
        for lap in self._stopwatch.laps(step, progress):
            if lap.stage != TOTAL:
                self._stage(span, lap)
        if step is Step.COMMITTED:
            span.set_attributes({f"tallymark.{name}": count for name, count in asdict(progress.tally).items()})
        elif step is Step.UNKNOWN:
            span.add_event("commit outcome unknown")
        elif step is Step.DROPPED:
            self._drop(span, progress.error)
        if step in (Step.DONE, Step.DROPPED):
            self._open.pop(progress.batch).end()

    def _begin(self, progress: Progress) -> trace.Span:
        attributes: dict[str, str | int] = {
            "tallymark.group": self._group,
            "tallymark.batch": progress.batch,
            "tallymark.records": progress.offsets,
        }
        span = self._tracer.start_span("tallymark.batch", start_time=_at(progress.since), attributes=attributes)
        self._open[progress.batch] = span
        return span

    def _stage(self, batch: trace.Span, lap: StageTime) -> None:
        context = trace.set_span_in_context(batch)
        self._tracer.start_span(f"tallymark.{lap.stage}", context, start_time=_at(lap.start)).end(_at(lap.stop))

    def _drop(self, span: trace.Span, error: BaseException | None) -> None:
        if error is None:
            span.add_event("abandoned: partitions no longer owned")
            return
        # record_exception formats the error, which may raise.
        with suppress(Exception):
            span.record_exception(error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, described(error)))


def _at(monotonic: float) -> int:
    """Convert a monotonic time to nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - monotonic) * 1e9)
