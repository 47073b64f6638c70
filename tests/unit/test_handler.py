"""Any kind of function can be a listener; its exceptions decide between retry and dead letter."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import IntegrityError, NoResultFound, PendingRollbackError

from tallymark.errors import BadInput, Retry, TallymarkError, Unreachable
from tallymark.service.handler import Handler, RecordFailed
from tallymark.service.records import Record, Records

RECORD = Record("t", 0, 0, None, None, b"", ())
RECORDS = Records([], pa.nulls(0, pa.binary()))
PartitionCounts = list[tuple[Any, Any]]


def call(function: Callable[..., Any], db: Any = None, *, batch: bool = False) -> None:
    handler = Handler(function, takes_batches=batch)
    if batch:
        handler(RECORDS, db)
    else:
        handler.one(RECORD, db)


# Async functions, also hidden ones


def plainly_decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


def disguises(seen: PartitionCounts) -> dict[str, Callable[..., Any]]:
    async def receive(record: Any, db: Any) -> None:
        await asyncio.sleep(0)
        seen.append((record, db))

    class Called:
        async def __call__(self, record: Any, db: Any) -> None:
            await receive(record, db)

    class Awaited:
        def __init__(self, record: Any, db: Any) -> None:
            self._work = receive(record, db)

        def __await__(self) -> Any:
            return self._work.__await__()

    def returns(record: Any, db: Any) -> Awaitable[None]:
        return receive(record, db)

    async def with_more(extra: str, record: Any, db: Any) -> None:
        assert extra == "more"
        await receive(record, db)

    return {
        "async": receive,
        "behind a plain decorator": plainly_decorated(receive),
        "async __call__": Called(),
        "a bound method": Called().__call__,
        "a partial": functools.partial(with_more, "more"),
        "a lambda": lambda record, db: receive(record, db),
        "returned": returns,
        "an awaitable": Awaited,
    }


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("disguise", disguises([]))
def test_an_async_function_runs_however_it_is_hidden(disguise: str, batch: bool) -> None:
    seen: PartitionCounts = []
    call(disguises(seen)[disguise], "db", batch=batch)
    assert seen == [(RECORDS if batch else RECORD, "db")]


def test_work_that_was_given_to_a_pool_is_waited_for() -> None:
    began, seen = threading.Event(), list[Any]()

    def work(record: Any, db: Any) -> None:
        began.wait(5)
        seen.append((record, db))
        if db is None:
            raise KeyError("x")

    with ThreadPoolExecutor() as pool:
        threading.Timer(0.05, began.set).start()
        call(lambda record, db: pool.submit(work, record, db), "db")
        assert seen == [(RECORD, "db")]
        with pytest.raises(RecordFailed, match="KeyError: 'x'"):
            call(lambda record, db: pool.submit(work, record, db))


def generator(record: Any, db: Any) -> Iterator[None]:
    db.execute("INSERT")
    yield


async def async_generator(record: Any, db: Any) -> AsyncIterator[None]:
    db.execute("INSERT")
    yield


class CalledGenerator:
    def __call__(self, record: Any, db: Any) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "function",
    [generator, async_generator, functools.partial(generator, db=None), CalledGenerator(), CalledGenerator().__call__],
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_generator_is_refused_at_registration(function: Callable[..., Any], batch: bool) -> None:
    with pytest.raises(BadInput, match=r"is a generator function, so a call does not run it; remove its yield"):
        Handler(function, takes_batches=batch)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        plainly_decorated(generator),
        lambda record, db: async_generator(record, db),
        lambda record, _db: (one for one in [record]),
        lambda record, _db: map(print, [record]),
    ],
)
def test_work_that_was_only_returned_ends_the_run(function: Callable[..., Any], batch: bool) -> None:
    with pytest.raises(BadInput, match=r"returned an? \w+, which is never run; do the work"):
        call(function, None, batch=batch)


def test_what_else_a_function_returns_is_nobodys_business() -> None:
    values: list[Any] = [None, 3, [1], "text", iter([])]
    for returned in values:
        call(lambda _record, returned=returned: returned)


# The parameter for the transaction


def test_the_transaction_is_the_second_parameter_without_a_default() -> None:
    seen: list[Any] = []

    def alone(record: Any) -> None:
        seen.append("alone")

    def with_db(record: Any, db: Any) -> None:
        seen.append(db)

    def with_option(record: Any, retries: int = 3) -> None:
        seen.append(retries)

    def with_both(record: Any, db: Any, retries: int = 3) -> None:
        seen.append((db, retries))

    def with_rest(record: Any, *rest: Any, **more: Any) -> None:
        seen.append((rest, more))

    for function in (alone, with_db, with_option, with_both, with_rest, functools.partial(with_db, db="mine")):
        call(function, "db")
    assert seen == ["alone", "db", 3, ("db", 3), ((), {}), "mine"]


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda _a, _b, _c: None, lambda _record, *, _db: None, lambda *_: None, lambda **_: None, dict],
)
def test_a_function_that_can_not_be_called_with_them_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match=r"must take a record, or a record and the transaction: def .*\(record, db\)"):
        Handler(function, takes_batches=False)


# Exceptions


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException) -> Callable[[Any], None]:
    def receive(record: Any) -> None:
        raise error

    return receive


@pytest.mark.parametrize(
    ("error", "becomes", "words"),
    [
        (KeyError("x"), RecordFailed, "KeyError: 'x'"),
        (AssertionError(), RecordFailed, "AssertionError"),
        (Unspeakable(), RecordFailed, "Unspeakable, whose message can't be read: RuntimeError"),
        (asyncio.CancelledError(), RecordFailed, "CancelledError"),
        (asyncio.CancelledError("by the client"), RecordFailed, "CancelledError: by the client"),
        (NoResultFound("no row"), RecordFailed, "NoResultFound: no row"),
        (IntegrityError("INSERT", {}, Exception("x")), TallymarkError, "the store: x"),
        (ConnectionError("refused"), Retry, "ConnectionError: refused"),
        (ConnectionResetError("reset"), Retry, "ConnectionResetError: reset"),
        (TimeoutError("slow"), Retry, "TimeoutError: slow"),
        (TimeoutError(), Retry, "TimeoutError"),
        (FutureTimeout(), Retry, "TimeoutError"),
        (PendingRollbackError("Can't reconnect", code="8s2b"), Unreachable, "the connection was lost"),
        (Retry("later"), Retry, "later"),
        (TallymarkError("ours"), TallymarkError, "ours"),
    ],
)
def test_what_a_function_raises_is_told_apart(error: BaseException, becomes: type[Exception], words: str) -> None:
    async def receive(record: Any) -> None:
        raise error

    for function in (raising(error), receive):
        with pytest.raises(becomes) as raised:
            call(function)
        assert type(raised.value) is becomes
        assert words in str(raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_to_end_the_process_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        call(raising(error))


class Group(Exception):
    """Like ``ExceptionGroup`` of Python 3.11 and of its backports to 3.10."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("several")
        self.exceptions = exceptions


class BaseGroup(BaseException):
    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("several")
        self.exceptions = exceptions


@pytest.mark.parametrize(
    ("error", "becomes", "words"),
    [
        (Group(ConnectionError("away")), Retry, "ConnectionError: away"),
        (Group(ValueError("x"), Group(TimeoutError("slow"))), Retry, "TimeoutError: slow"),
        (Group(Retry("later"), KeyError("x")), Retry, "later"),
        (Group(ConnectionError("away"), BadInput("wrong")), BadInput, "wrong"),
        (Group(ValueError("x"), KeyError("y")), RecordFailed, "ValueError: x; KeyError: 'y'"),
        (Group(Unspeakable()), RecordFailed, "Unspeakable"),
        (BaseGroup(asyncio.CancelledError(), ValueError("x")), RecordFailed, "CancelledError; ValueError: x"),
        (BaseGroup(ValueError("x"), SystemExit(3)), SystemExit, "3"),
    ],
)
def test_of_a_group_of_errors_the_one_that_decides_is_told(
    error: BaseException, becomes: type[BaseException], words: str
) -> None:
    with pytest.raises(becomes) as raised:
        call(raising(error))
    assert type(raised.value) is becomes
    assert words in str(raised.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="task groups are of Python 3.11")
def test_a_task_group_that_lost_its_service_is_tried_again() -> None:
    async def lost() -> None:
        raise ConnectionError("away")

    async def receive(record: Any) -> None:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            group.create_task(lost())
            group.create_task(asyncio.sleep(60))

    with pytest.raises(Retry, match="ConnectionError: away"):
        call(receive)


def test_a_record_that_failed_says_where_in_the_code_of_its_handler() -> None:
    def price(record: Any) -> Any:
        return json.loads("{")

    def receive(record: Any) -> None:
        price(record)

    with pytest.raises(RecordFailed, match=r"\(test_handler\.py:\d+ in receive, test_handler\.py:\d+ in price\)$"):
        call(receive)
