"""Parts of a store's URL other than the address: the name for messages, the password, and time limits."""

from __future__ import annotations

import math

from sqlalchemy.engine import URL

from tallymark.core.credentials import from_environment, read_secret
from tallymark.core.durations import parse_positive
from tallymark.errors import BadInput

PASSWORD_FILE = "password_file"
PASSWORD = "STORE_PASSWORD"
CONNECT_TIMEOUT, READ_TIMEOUT = "connect_timeout", "read_timeout"
"""Time limits, for connecting and for the answer to a statement."""
CONNECT_SECONDS = 10


def shown(url: URL) -> str:
    """Return the URL for messages: without the password and without the query, which may contain a password too."""
    return url.set(query={}).render_as_string(hide_password=True)


def option(url: URL, name: str) -> str | None:
    value = url.query.get(name)
    if isinstance(value, tuple):
        raise BadInput(f"{shown(url)}: {name}= takes one value")
    return value


def seconds(url: URL, name: str, default: int) -> int:
    """Return the time limit that the URL sets, or the default, in whole seconds, which is what drivers take."""
    given = option(url, name)
    if given is None:
        return default
    return math.ceil(parse_positive(given, f"{shown(url)}: {name}").total_seconds())


def in_seconds(url: URL, *names: str) -> URL:
    """Replace the time limits of the URL by whole seconds."""
    given = {name: str(seconds(url, name, 0)) for name in names if name in url.query}
    return url.update_query_dict(given) if given else url


def with_password(url: URL, *, needs_user: bool = True) -> URL:
    """Add the password: the URL's own, that of ``password_file=``, or for a user without one the environment's."""
    url = _in_its_place(url)
    path, has_one = option(url, PASSWORD_FILE), url.password is not None
    if path is None:
        wanted = url.username and not has_one
        return url.set(password=from_environment(PASSWORD)) if wanted else url
    if has_one:
        raise BadInput(f"{shown(url)}: the URL has a password and {PASSWORD_FILE}=; keep one of them")
    if needs_user and not url.username:
        raise BadInput(f"{shown(url)}: {PASSWORD_FILE}= needs the user before the host, as in shop@host")
    secret = read_secret(path, f"{shown(url)}: {PASSWORD_FILE}")
    return url.difference_update_query([PASSWORD_FILE]).set(password=secret)


def _in_its_place(url: URL) -> URL:
    """Move a password from the query to the password field, which SQLAlchemy hides."""
    for name in ("password", "passwd"):
        if (secret := option(url, name)) is not None:
            return url.difference_update_query([name]).set(password=secret)
    return url
