"""Calls the user's function: plain or async, for a record or for a batch, with or without the transaction.

Its exceptions fall into three classes. A transient error rolls the batch back, and the batch is tried again. An error
of tallymark itself, such as wrong use of the library, ends the run. Any other error makes the record a dead letter.
"""

from __future__ import annotations

import asyncio
import inspect
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from pathlib import Path
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from sqlalchemy.exc import DBAPIError

from tallymark.errors import BadInput, DataRefused, Retry, TallymarkError, TransactionUndone, described
from tallymark.service.records import Record, Records
from tallymark.stores.sql.errors import translated

NOT_DONE = (GeneratorType, AsyncGeneratorType, map, filter)
"""Lazy types. A function that returns an object of these types has not done its work yet."""

FRAMES = 3
"""Number of source lines that a dead letter names."""
INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
OTHERS_CODE = (str(Path(__file__).parents[1]), *INSTALLED, "<")


class RecordFailed(Exception):
    """A handler failed on a record, permanently."""


class Handler:
    """Gives every kind of user function the same interface."""

    def __init__(self, function: Callable[..., Any], *, takes_batches: bool) -> None:
        self.name = getattr(function, "__name__", str(function))
        self.takes_batches = takes_batches
        self._function = function
        self._takes_db = _takes_transaction(function, self.name)
        self._loops = threading.local()
        if any(map(_is_generator, (function, type(function).__call__))):
            raise BadInput(f"listener {self.name} is a generator function, so a call does not run it; remove its yield")

    def __call__(self, records: Records, db: Any) -> None:
        """Call the function with these records, one by one or as a batch."""
        if self.takes_batches:
            self._call(records, db)
            return
        for record in records:
            self._call(record, db)

    def one(self, record: Record, db: Any) -> None:
        self._call(record, db)

    def _call(self, argument: Record | Records, db: Any) -> None:
        with classified():
            returned = self._function(argument, db) if self._takes_db else self._function(argument)
            # Check the result, not the function: a decorator can hide that a function is async.
            if inspect.isawaitable(returned):
                self._loop().run_until_complete(returned)
            elif isinstance(returned, Future):
                returned.result()
            elif isinstance(returned, NOT_DONE):
                raise BadInput(
                    f"listener {self.name} returned a {type(returned).__name__}, which is never run; do the work in "
                    "the function itself, or make it async"
                )

    def _loop(self) -> asyncio.AbstractEventLoop:
        """Return this thread's own event loop, so that no thread waits for another."""
        if not hasattr(self._loops, "loop"):
            self._loops.loop = asyncio.new_event_loop()
        loop: asyncio.AbstractEventLoop = self._loops.loop
        return loop


@contextmanager
def classified() -> Iterator[None]:
    """Translate exceptions of a handler to ``Retry``, another ``TallymarkError`` or ``RecordFailed``."""
    try:
        yield
    except BaseException as error:
        meaning = _meaning(error)
        if meaning is error:
            raise
        if isinstance(meaning, RecordFailed):
            meaning = RecordFailed(f"{meaning}{_where(error)}")
        raise meaning from error


def _where(error: BaseException) -> str:
    """Return the innermost traceback lines of the user's own code: `` (orders.py:14 in receive)``."""
    own_frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OTHERS_CODE)
    ]
    places = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in own_frames[-FRAMES:]]
    return f" ({', '.join(places)})" if places else ""


def _meaning(error: BaseException) -> BaseException:
    if isinstance(several := getattr(error, "exceptions", None), tuple | list) and several:
        return _meaning_of_several([_meaning(inner) for inner in several])
    try:
        with translated("the store"):
            raise error
    except TransactionUndone as known:
        # The transaction is gone: the other records have to be handled again, too.
        return known
    except DataRefused as refused:
        return RecordFailed(str(refused))
    except TallymarkError as known:
        # An error of SQLAlchemy itself, such as a missing row, is about the record.
        ends_run = known is error or known.transient or isinstance(error, DBAPIError)
        return known if ends_run else RecordFailed(described(error))
    except (ConnectionError, TimeoutError, FutureTimeout):
        return Retry(described(error))
    except RecordFailed:
        return error
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the dead letter records it
        return RecordFailed(described(error))
    except BaseException:  # noqa: BLE001 - the caller raises it
        return error


def _meaning_of_several(errors: list[BaseException]) -> BaseException:
    """Return the most severe error: what ends the process or the run, else a transient error, else all failures."""
    failed = [error for error in errors if isinstance(error, RecordFailed)]
    others = [error for error in errors if not isinstance(error, RecordFailed)]
    if not others:
        return RecordFailed("; ".join(map(str, failed)))
    return min(others, key=lambda error: (isinstance(error, TallymarkError), getattr(error, "transient", False)))


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _takes_transaction(function: Callable[..., Any], name: str) -> bool:
    """Whether the function has a second required parameter. A parameter with a default is for the user's own use."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        parameters = []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in by_position]
    needed = [parameter for parameter in positional if parameter.default is inspect.Parameter.empty]
    named = [
        parameter
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if not positional or len(needed) > 2 or named:
        raise BadInput(
            f"listener {name} must take a record, or a record and the transaction: def {name}(record, db); "
            "use functools.wraps in a decorator to keep the parameters of its function"
        )
    return len(needed) > 1
