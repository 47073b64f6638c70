"""Declares a schema registry: its addresses and its login."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from tallymark.core.credentials import from_environment, read_secret, variable
from tallymark.core.tls import Tls
from tallymark.errors import BadInput

_CREDENTIALS = ("username", "password", "password_file", "token", "token_file")
_ASK = "REGISTRY_"


@dataclass(frozen=True)
class Registry:
    """A schema registry with Confluent's REST API: ``Registry("https://registry:8081", username="shop", ...)``.

    ``url`` may be several addresses of one registry, separated by commas; they are tried in turn. A login is a
    ``username`` with ``password`` or ``password_file``, or a bearer ``token`` or ``token_file``. Without a login, it
    comes from the environment (TALLYMARK_REGISTRY_USERNAME, _PASSWORD, _PASSWORD_FILE, _TOKEN, _TOKEN_FILE); without
    ``tls``, the certificate authority comes from TALLYMARK_REGISTRY_CA, or from the system.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls: Tls | None = None

    def __post_init__(self) -> None:
        parts = [_address(part) for part in self.url.split(",")]
        object.__setattr__(self, "url", ",".join(part.geturl() for part in parts))
        encrypted = all(part.scheme == "https" for part in parts)
        if self.tls is not None and not encrypted:
            raise BadInput(f"Registry({self.url!r}): tls= needs an address that starts with https://")
        if not any(getattr(self, name) for name in _CREDENTIALS):
            self._log_in_from_environment()
        self._check_login()
        if encrypted and self.tls is None and (ca := variable(f"{_ASK}CA")):
            object.__setattr__(self, "tls", Tls(ca=ca))

    @property
    def addresses(self) -> list[str]:
        """The addresses, without a slash at the end."""
        return self.url.split(",")

    def password_text(self) -> str:
        """Return the password; its file is read again each time, because it may have been replaced."""
        return read_secret(self.password_file, "password_file") if self.password_file else self.password or ""

    def token_text(self) -> str | None:
        """Return the bearer token, if there is one; its file is read again each time, because tokens expire."""
        token = read_secret(self.token_file, "token_file") if self.token_file else self.token
        if token and not (token.isascii() and token.isprintable()):
            raise BadInput(f"Registry({self.url!r}): the token has signs that HTTP does not allow; correct it")
        return token

    def _log_in_from_environment(self) -> None:
        # ``from_environment`` raises if a secret and its file are both set.
        for name in ("password", "token"):
            secret, file = from_environment(f"{_ASK}{name.upper()}"), variable(f"{_ASK}{name.upper()}_FILE")
            object.__setattr__(self, f"{name}_file", file)
            object.__setattr__(self, name, None if file else secret)
        object.__setattr__(self, "username", variable(f"{_ASK}USERNAME"))

    def _check_login(self) -> None:
        name = f"Registry({self.url!r})"
        if self.password and self.password_file:
            raise BadInput(f"{name}: password= and password_file= are both given; keep one of them")
        if self.token and self.token_file:
            raise BadInput(f"{name}: token= and token_file= are both given; keep one of them")
        if self.username and (self.token or self.token_file):
            raise BadInput(f"{name}: username= and token= are both given; keep one of the two logins")
        if bool(self.username) != bool(self.password or self.password_file):
            raise BadInput(f"{name}: a login needs username= and either password= or password_file=")
        if self.username and ":" in self.username:
            raise BadInput(f"{name}: username= contains a colon, which HTTP does not allow; correct it")
        self.password_text()
        self.token_text()


def _address(text: str) -> SplitResult:
    # The refused text is not shown, because it may contain a password.
    usage = "write it like https://registry:8081"
    try:
        parts = urlsplit(text.strip().rstrip("/"))
        parts.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        raise BadInput(f"Registry(): the address of the registry can't be read; {usage}") from None
    if "@" in parts.netloc:
        raise BadInput(
            "Registry(): the address contains a user or a password; use username= and password_file=, or "
            f"TALLYMARK_{_ASK}USERNAME and TALLYMARK_{_ASK}PASSWORD_FILE"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"Registry(): the address of the registry does not start with https:// or http://; {usage}")
    if parts.query or parts.fragment or not text.strip().isascii() or any(sign <= " " for sign in parts.geturl()):
        raise BadInput(f"Registry(): the address has a query, a fragment, or signs that URLs do not have; {usage}")
    return parts
