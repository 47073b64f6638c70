"""What a store's URL says besides the address: what it is called in messages, and where its password is."""

from __future__ import annotations

from sqlalchemy.engine import URL

from tallymark.errors import BadInput
from tallymark.secrets import from_environment, read_secret

PASSWORD_FILE = "password_file"
PASSWORD = "STORE_PASSWORD"
CONNECT_TIMEOUT, READ_TIMEOUT = "connect_timeout", "read_timeout"
"""For how many seconds a server may be silent when we connect, and while a statement waits for its answer."""
CONNECT_SECONDS = 10


def shown(url: URL) -> str:
    """The URL for messages: no password, and no query, which may hold one too."""
    return url.set(query={}).render_as_string(hide_password=True)


def option(url: URL, name: str) -> str | None:
    value = url.query.get(name)
    if isinstance(value, tuple):
        raise BadInput(f"{shown(url)}: {name}= takes one value")
    return value


def seconds(url: URL, name: str, default: int) -> int:
    """A time limit that the URL sets."""
    given = option(url, name)
    if given is not None and not (given.isascii() and given.isdecimal() and 0 < int(given) < 10**6):
        raise BadInput(f"{shown(url)}: {name}={given} is not a number of seconds; write a whole number above 0")
    return default if given is None else int(given)


def with_password(url: URL, *, needs_user: bool = True) -> URL:
    """The URL with its password: its own, that of ``password_file=``, or for a user without one the environment's."""
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
    """A password among the options, by the drivers' names for it, goes where SQLAlchemy hides it."""
    for name in ("password", "passwd"):
        if (secret := option(url, name)) is not None:
            return url.difference_update_query([name]).set(password=secret)
    return url
