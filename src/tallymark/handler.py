"""Calling the function that a user wrote: plain or async, for a record or for a batch, with or without the transaction.

What it raises is one of three things. It may pass: the batch is tried again, and nothing has happened. It is about our
own rules: the run ends. Anything else is about the record, which becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tallymark.errors import BadInput, DataRefused, Retry, TallymarkError
from tallymark.records import Record, Records
from tallymark.stores.failures import translated


class RecordFailed(Exception):
    """A handler could not do its work on a record, and never will."""


class Handler:
    """A user's function, called the same way whatever it looks like."""

    def __init__(self, function: Callable[..., Any], *, takes_batches: bool) -> None:
        self.name = getattr(function, "__name__", str(function))
        self.takes_batches = takes_batches
        self._function = function
        self._asynchronous = inspect.iscoroutinefunction(function)
        self._takes_db = _parameters(function, self.name) > 1
        self._loops = threading.local()

    def __call__(self, records: Records, db: Any) -> None:
        """Hand over these records, one by one or together."""
        if self.takes_batches:
            self._call(records, db)
            return
        for record in records:
            self._call(record, db)

    def one(self, record: Record, db: Any) -> None:
        self._call(record, db)

    def _call(self, given: Record | Records, db: Any) -> None:
        with told_apart():
            called = self._function(given, db) if self._takes_db else self._function(given)
            if self._asynchronous:
                self._loop().run_until_complete(called)

    def _loop(self) -> asyncio.AbstractEventLoop:
        """Each thread has one of its own: while it waits for the database, the others go on."""
        if not hasattr(self._loops, "loop"):
            self._loops.loop = asyncio.new_event_loop()
        loop: asyncio.AbstractEventLoop = self._loops.loop
        return loop


@contextmanager
def told_apart() -> Iterator[None]:
    """What a handler raises, as ``Retry``, one of our own errors, or ``RecordFailed``."""
    try:
        with translated("the store"):
            yield
    except DataRefused as error:
        raise RecordFailed(str(error)) from error
    except (TallymarkError, RecordFailed):
        raise
    except (ConnectionError, TimeoutError, asyncio.TimeoutError) as error:
        raise Retry(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise RecordFailed(f"{type(error).__name__}: {error}") from error


def _parameters(function: Callable[..., Any], name: str) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [one for one in inspect.signature(function).parameters.values() if one.kind in kinds]
    needed = [one for one in found if one.default is inspect.Parameter.empty]
    if not found or len(needed) > 2:
        raise BadInput(f"listener {name} must take a record, or a record and the transaction: def {name}(record, db)")
    return min(2, len(found))
