"""Open the store that a URL names."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tallymark.errors import BadInput
from tallymark.stores.contract import Store
from tallymark.stores.sql.store import DIALECTS, SqlStore
from tallymark.stores.tls import OPTIONS
from tallymark.stores.url import CONNECT_TIMEOUT, PASSWORD_FILE, READ_TIMEOUT, shown

NEED_VALUES = (*OPTIONS, PASSWORD_FILE, CONNECT_TIMEOUT, READ_TIMEOUT)
REDIS = ("redis", "rediss", "redis+cluster", "valkey")


def open_store(url: str) -> Store:
    """Return the store for a URL, without connecting."""
    parsed = _parse(url)
    if parsed.drivername in REDIS:
        from tallymark.stores.redis.store import RedisStore

        return RedisStore(url)
    if parsed.get_backend_name() not in DIALECTS:
        known = ", ".join(sorted([*DIALECTS, "redis"]))
        raise BadInput(f"no store for {parsed.get_backend_name()}:// URLs; tallymark supports {known}")
    return SqlStore(parsed)


def open_existing(url: str) -> Store:
    """Return the store for a URL that is only read: SQLite would create a missing file."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise BadInput(f"{shown(_parse(url))} has no ledger: the file does not exist; check the path")
    return open_store(url)


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite store; None for other stores and for names that only SQLite interprets."""
    parsed = _parse(url)
    named = parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.database.startswith(("file:", ":"))
    return Path(parsed.database or "") if named else None


def open_sql(url: str) -> SqlStore:
    """Return the store for a URL; refuse stores without SQL."""
    store = open_store(url)
    if not isinstance(store, SqlStore):
        raise BadInput(f"{store.name}: this requires an SQL database, such as sqlite:///name.db")
    return store


def _parse(url: str) -> URL:
    # Parsing drops an option without a value, and would thereby silently disable TLS verification.
    if empty := re.search(rf"[?&]({'|'.join(NEED_VALUES)})=?(&|$)", url):
        raise BadInput(f"the store URL has {empty[1]}= without a value; give it one or leave it out")
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise BadInput("the store URL is not valid; write it like postgresql://user@host/database") from None
    # The part of the password after the @ would appear in messages.
    if not url.startswith("sqlite") and "@" in f"{parsed.host}{parsed.database}":
        raise BadInput("the store URL has more than one @; in a user or a password, write @ as %40 and / as %2F")
    return parsed
