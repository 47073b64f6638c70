"""Checks a Redis or Valkey server, above all its eviction and persistence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tallymark.operate.findings import Finding, Opinion, checked, judge, ledger, line, settings, skew, version
from tallymark.stores.redis.address import Address
from tallymark.stores.redis.keys import RedisKeys
from tallymark.stores.redis.ledger import VERSION
from tallymark.stores.redis.store import RedisStore

OLDEST = (7,)


def examine(store: RedisStore, address: Address) -> Iterator[Finding]:
    """Yield all findings about a reachable server."""
    yield line(address.options["host"], address.tls is not None, "use a rediss:// URL")
    questions: dict[str, Callable[[], Iterable[Finding]]] = {
        "version": lambda: [_version(store)],
        "ledger version": lambda: [_ledger(store, RedisKeys(address.tag))],
        "settings": lambda: _settings(store),
        "appendfsync": lambda: _fsync(store),
        "clock skew": lambda: [_clock(store)],
    }
    for check, question in questions.items():
        yield from checked("store", check, question)
    yield from checked("store", "permissions", lambda: [_permissions(store)], otherwise="fail")


def change(setting: str) -> str:
    return f"CONFIG SET {setting}, then CONFIG REWRITE; on a managed server, change its parameter group"


def eviction(value: str) -> Opinion:
    """Judge the eviction policy. Policies that evict only keys with a TTL are safe: keys of tallymark have none."""
    advice = f"positions are evicted when memory is full: {change('maxmemory-policy noeviction')}"
    return Opinion("noeviction or volatile-*", fail=advice if value.startswith("allkeys") else None)


def persistence(value: str) -> Opinion:
    advice = f"a restart loses all writes after the last snapshot: {change('appendonly yes')}"
    return Opinion("1", warn=None if value == "1" else advice)


def fsync(value: str) -> Opinion:
    lost = "after a crash, records whose writes were not synced are read again, if Kafka still holds them"
    safe = value in ("always", "everysec")
    return Opinion("everysec or always", warn=None if safe else f"{lost}: {change('appendfsync everysec')}")


def _settings(store: RedisStore) -> list[Finding]:
    """Judge the settings that INFO shows, because many managed servers do not support CONFIG."""
    info = store.ask(lambda client: {**client.info("memory"), **client.info("persistence")})
    found = {name: str(info[name]) for name in ("maxmemory_policy", "aof_enabled") if name in info}
    return settings("store", found, {"maxmemory_policy": eviction, "aof_enabled": persistence})


def _fsync(store: RedisStore) -> list[Finding]:
    return settings("store", store.ask(lambda client: client.config_get("appendfsync")), {"appendfsync": fsync})


def _version(store: RedisStore) -> Finding:
    server = store.ask(lambda client: client.info("server"))
    text = str(server.get("valkey_version") or server.get("redis_version"))
    return version(tuple(int(part) for part in text.split(".") if part.isdecimal()), OLDEST)


def _ledger(store: RedisStore, keys: RedisKeys) -> Finding:
    found = store.ask(lambda client: client.hget(keys.schema(), "version"))
    return ledger(None if found is None else int(found), VERSION)


def _permissions(store: RedisStore) -> Finding:
    store.try_commands()
    return judge("store", "permissions", "granted", "to write")


def _clock(store: RedisStore) -> Finding:
    before = time.time()
    seconds, micros = store.ask(lambda client: client.time())
    return skew("store", before, seconds + micros / 1e6, time.time())
