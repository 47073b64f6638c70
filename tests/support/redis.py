"""Direct access to Redis without tallymark, and servers that a test may break."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from sqlalchemy.engine import make_url

from tallymark.local.sandbox.valkey import Redis, Valkey


def client(url: str) -> Any:
    parsed = make_url(url)
    return redis.Redis(parsed.host or "", parsed.port or 0)


def key(url: str, name: str) -> str:
    """The full name of a key, with the tag."""
    return f"{{{make_url(url).query.get('tag', 'tallymark')}}}:{name}"


def dump(url: str, under: str = "") -> dict[str, Any]:
    """All keys of this store with this prefix, with their values."""
    server = client(url)
    read = {
        b"hash": server.hgetall,
        b"string": server.get,
        b"list": lambda name: server.lrange(name, 0, -1),
        b"set": server.smembers,
        b"zset": lambda name: server.zrange(name, 0, -1, withscores=True),
    }
    start = key(url, under)
    names = sorted(server.scan_iter(match=f"{start}*", count=1000))
    found = {name.decode().removeprefix(start): read[server.type(name)](name) for name in names}
    server.close()
    return found


class OwnValkey(Valkey):
    """A separate server with its own settings."""

    def __init__(self, directory: Path, **settings: str) -> None:
        super().__init__(directory, temporary=True)
        self.settings: Mapping[str, str] = settings

    def command(self) -> list[str | Path]:
        extra = [word for name, value in self.settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        return [*super().command(), *extra]


class OwnRedis(OwnValkey, Redis):
    """A real Redis."""
