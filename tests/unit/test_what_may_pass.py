"""One table for each external system separates transient errors from permanent ones; these tests walk all of them.

``Neighbour.error`` creates an error with a given code as the driver raises it, and returns tallymark's error for it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg.errors
import pymysql.err
import pytest
from redis._parsers.base import BaseParser
from sqlalchemy.exc import DBAPIError

from tallymark.errors import TallymarkError, Unreachable, Verdict, verdicts
from tallymark.stores.redis import errors as redis_failures
from tallymark.stores.sql import errors as failures

NAME, WORDS = "the server", "words of its own"


@dataclass(frozen=True)
class Neighbour:
    """Its table, how to raise one of its codes, and codes that must be transient or permanent."""

    table: Mapping[str, Verdict]
    error: Callable[[str], TallymarkError]
    passes: str
    stays: str


def of_database(error: Exception) -> TallymarkError:
    return failures.translate(DBAPIError("SELECT 1", None, error), NAME)


def of_postgresql(code: str) -> TallymarkError:
    error = psycopg.Error(WORDS)
    # A class covers all of its codes.
    error.sqlstate = code.ljust(5, "0")
    return of_database(error)


def of_sqlite(code: str) -> TallymarkError:
    error: Any = sqlite3.OperationalError(WORDS)
    error.sqlite_errorname = code
    return of_database(error)


def of_redis(code: str) -> TallymarkError:
    special = {"MOVED": "866 127.0.0.1:7002", "ASK": "866 127.0.0.1:7002", "NOAUTH": "Authentication required."}
    parser: Any = BaseParser
    return redis_failures.translate(parser.parse_error(f"{code} {special.get(code, WORDS)}"), NAME)


NEIGHBOURS = {
    "PostgreSQL": Neighbour(
        failures.POSTGRESQL,
        of_postgresql,
        # Failovers and restarts, too many clients, conflicts, timeouts and full disks.
        "25006 57P01 57P02 57P03 57P05 08000 08001 08003 08004 08006 08007 08P01 53300 40001 40P01 55P03 40003 25P03 "
        "25P04 57014 53100 53200 53400 58030 72000",
        "22001 22P02 23505 23514 21000 42P01 42601 42501 28P01 3D000 57P04 25P02 26000 42P05 XX000 XX001 0A000",
    ),
    "MySQL": Neighbour(
        failures.MYSQL,
        lambda code: of_database(pymysql.err.OperationalError(int(code), WORDS)),
        "1290 1792 1836 1874 1047 3100 3101 1040 1203 1226 1053 1927 2002 2003 2006 2013 3032 3168 3169 4031 1205 1213 "
        "3572 1020 1180 1317 1969 3024 1021 1114 1158 1159 1160 1161",
        "1062 1406 1264 3819 4025 1146 1054 1064 1045 1142 1049 1193 1305 2014 2027 3098",
    ),
    "SQLite": Neighbour(
        failures.SQLITE,
        of_sqlite,
        "SQLITE_BUSY SQLITE_BUSY_SNAPSHOT SQLITE_BUSY_RECOVERY SQLITE_LOCKED SQLITE_PROTOCOL SQLITE_FULL SQLITE_IOERR "
        "SQLITE_IOERR_WRITE SQLITE_NOMEM",
        "SQLITE_CONSTRAINT SQLITE_CONSTRAINT_UNIQUE SQLITE_MISMATCH SQLITE_READONLY SQLITE_READONLY_DBMOVED "
        "SQLITE_CANTOPEN SQLITE_CORRUPT SQLITE_NOTADB SQLITE_ERROR SQLITE_MISUSE SQLITE_SCHEMA",
    ),
    "Redis": Neighbour(
        redis_failures.REDIS,
        of_redis,
        "READONLY MASTERDOWN LOADING CLUSTERDOWN TRYAGAIN ASK BUSY MISCONF NOREPLICAS OOM UNBLOCKED",
        "NOAUTH WRONGPASS NOPERM MOVED WRONGTYPE BUSYGROUP BUSYKEY CROSSSLOT EXECABORT NOSCRIPT NOPROTO ERR",
    ),
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_every_code_of_the_table_becomes_the_error_that_it_says(neighbour: Neighbour) -> None:
    for code, verdict in neighbour.table.items():
        ours = neighbour.error(code)
        assert type(ours) is verdict.error, code
        sentence = re.escape(verdict.sentence).replace(r"\{name\}", NAME).replace(r"\{words\}", ".*")
        assert re.fullmatch(sentence, str(ours)), code


@pytest.mark.parametrize("neighbour", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_what_may_pass_is_transient_and_what_may_not_is_not(neighbour: Neighbour) -> None:
    wrong = {code for code in neighbour.passes.split() if not neighbour.error(code).transient}
    assert not wrong, "these end a run, though they may pass"
    wrong = {code for code in neighbour.stays.split() if neighbour.error(code).transient}
    assert not wrong, "these are tried again, though they fail each time"


def test_a_code_has_one_verdict() -> None:
    one, other = Verdict(Unreachable, "{words}"), Verdict(TallymarkError, "{words}")
    assert verdicts({one: "1 2", other: "3"}) == {"1": one, "2": one, "3": other}
    with pytest.raises(AssertionError, match="2 has two verdicts"):
        verdicts({one: "1 2", other: "2"})


def test_the_codes_are_those_that_the_drivers_know() -> None:
    known = set(psycopg.errors._sqlcodes)
    states = {code for code in failures.POSTGRESQL if len(code) == 5}
    assert states <= known
    assert {code for code in failures.POSTGRESQL if len(code) == 2} <= {code[:2] for code in known}
    assert set(failures.SQLITE) <= set(vars(sqlite3))
    stripped = {kind.__name__: code for code, kind in BaseParser.EXCEPTION_CLASSES.items() if isinstance(kind, type)}
    del stripped["AuthenticationError"]
    assert {name: code for name, code in stripped.items() if code in redis_failures.REDIS} == redis_failures.CLASSES


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        # A server that starts, stops or is full refuses connections, and the driver shows no code.
        (psycopg.OperationalError("connection failed: FATAL:  the database system is starting up"), failures.GONE),
        (psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already"), failures.GONE),
        (psycopg.OperationalError("connection failed: no such file or directory Is the server running"), failures.GONE),
        (psycopg.OperationalError("connection failed: session is read-only"), failures.READ_ONLY),
        (psycopg.OperationalError('connection failed: FATAL:  database "x" does not exist'), failures.WRONG),
        (psycopg.OperationalError('connection failed: FATAL:  role "x" does not exist'), failures.DENIED),
        (pymysql.err.OperationalError(2003, "Can't connect ([Errno 2] No such file or directory)"), failures.GONE),
        (pymysql.err.OperationalError(2013, "Lost connection during query (timed out)"), failures.SILENT),
        (sqlite3.OperationalError("database is locked"), failures.CONFLICT),
        (psycopg.errors.ProtocolViolation("insufficient data left in message"), failures.CHANGED),
        (psycopg.errors.ProtocolViolation("query_wait_timeout"), failures.GONE),
        (
            psycopg.errors.ProtocolViolation("transaction blocks not allowed in statement pooling mode"),
            failures.POOLER,
        ),
        (psycopg.errors.InternalError_("tuple concurrently updated"), failures.CONFLICT),
        # Text that quotes a value is not evidence.
        (psycopg.errors.UniqueViolation("Key (id)=(connection refused) already exists"), failures.DATA),
        (pymysql.err.IntegrityError(1062, "Duplicate entry 'timed out' for key"), failures.DATA),
    ],
)
def test_words_decide_where_there_is_no_code(error: Exception, verdict: Verdict) -> None:
    assert failures.judged(error) == verdict
