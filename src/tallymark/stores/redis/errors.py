"""Translate errors of Redis and its client to tallymark's, by error code or by message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable, Verdict, verdicts
from tallymark.stores.sql.errors import DENIED, GONE, READ_ONLY, SILENT
from tallymark.stores.tls import tls_failure

NO_PASSWORD = Verdict(
    AccessDenied,
    "{name} requires a password: {words}; write the user in the URL, as in redis://default@host, and the password "
    "there, in password_file= or in TALLYMARK_STORE_PASSWORD",
)
FULL = Verdict(Unreachable, "{name} is out of memory, nothing was written: {words}; delete keys or raise maxmemory")
CLUSTER = Verdict(BadInput, "{name} is a cluster: write the URL as redis+cluster://host:port")
BUSY = Verdict(Unreachable, "{name} can't run scripts now: {words}; try again")

# Redis begins an error with its code. All transient errors are raised before the script's first write.
REDIS = verdicts(
    {
        DENIED: "NOPERM WRONGPASS",
        NO_PASSWORD: "NOAUTH",
        FULL: "OOM",
        CLUSTER: "MOVED",
        READ_ONLY: "MASTERDOWN READONLY",
        BUSY: "ASK BUSY CLUSTERDOWN LOADING MISCONF NOREPLICAS TRYAGAIN UNBLOCKED",
    }
)
CLASSES = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
"""Exceptions from whose messages redis-py removes the code."""


@contextmanager
def translated(store: str) -> Iterator[None]:
    """Translate Redis errors raised in the block. Messages name ``store``, its URL without the password."""
    from redis.exceptions import RedisClusterException, RedisError

    try:
        yield
    except (RedisError, RedisClusterException) as error:
        raise translate(error, store) from error


def translate(error: Exception, store: str) -> TallymarkError:
    from redis import exceptions as redis

    words = " ".join(str(error).split())[:300].rstrip(".")
    code = CLASSES.get(type(error).__name__) or words.partition(" ")[0]
    if isinstance(error, redis.AuthenticationError | redis.AuthorizationError) or "ACL failure" in words:
        code = "NOAUTH" if "required" in words else "NOPERM"
    if code in REDIS:
        return REDIS[code].on(store, words)
    if "cluster mode is not enabled" in words.lower() or "cluster support disabled" in words.lower():
        return BadInput(f"{store} is not a cluster: write the URL as redis://host:port/0")
    if "DB index is out of range" in words:
        return BadInput(f"{store}: {words}; correct the number at the end of the URL")
    if isinstance(error, redis.TimeoutError) and "reading" in words:
        return SILENT.on(store, words)
    gone = (redis.ConnectionError, redis.TimeoutError, redis.ClusterError, redis.RedisClusterException)
    if isinstance(error, gone):
        return tls_failure(store, words) or GONE.on(store, words)
    return TallymarkError(f"{store}: {words}")
