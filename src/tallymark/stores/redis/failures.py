"""What Redis says when it fails, as one of our errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable
from tallymark.stores.tls import tls_failure

_PASSING = ("BUSY", "MISCONF", "NOREPLICAS", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "UNBLOCKED")
"""Answers of a server that may take the same script later. All of them come before the script's first write."""


@contextmanager
def translated(store: str) -> Iterator[None]:
    """Raise Redis errors inside the block as ours, named after the store (its URL without the password)."""
    from redis.exceptions import RedisClusterException, RedisError

    try:
        yield
    except (RedisError, RedisClusterException) as error:
        raise translate(error, store) from error


def translate(error: Exception, store: str) -> TallymarkError:
    from redis import exceptions as redis

    words = " ".join(str(error).split())[:300].rstrip(".")
    denied = redis.AuthenticationError, redis.AuthorizationError, redis.NoPermissionError
    if isinstance(error, redis.AuthenticationError) and "required" in words:
        return AccessDenied(
            f"{store} wants a password: {words}; name the user in the URL, as in redis://default@host, and give the "
            "password there, by password_file= or by TALLYMARK_STORE_PASSWORD"
        )
    if isinstance(error, denied) or "ACL failure" in words:
        return AccessDenied(f"{store} refused: {words}; check the user, the password and the user's permissions")
    if isinstance(error, redis.OutOfMemoryError):
        return Unreachable(f"{store}: its memory is full, and nothing was written: {words}; make room, raise maxmemory")
    if isinstance(error, redis.MovedError):
        return BadInput(f"{store} is a cluster: write the URL as redis+cluster://host:port")
    if "cluster mode is not enabled" in words.lower() or "cluster support disabled" in words.lower():
        return BadInput(f"{store} is no cluster: write the URL as redis://host:port/0")
    if "DB index is out of range" in words:
        return BadInput(f"{store}: {words}; correct the number at the end of the URL")
    gone = (redis.ConnectionError, redis.TimeoutError, redis.ClusterError, redis.RedisClusterException)
    if isinstance(error, gone):
        if (handshake := tls_failure(store, words)) is not None:
            return handshake
        return Unreachable(f"{store} can't be reached: {words}; check that it runs and that the address is right")
    if isinstance(error, redis.ReadOnlyError | redis.TryAgainError | redis.MasterDownError):
        return Unreachable(f"{store} takes no writes now: {words}; check that it is the primary")
    if words.startswith(_PASSING):
        return Unreachable(f"{store} takes no scripts now: {words}; try again")
    return TallymarkError(f"{store}: {words}")
