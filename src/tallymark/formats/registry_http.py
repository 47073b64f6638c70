"""Sends requests to a schema registry, and says what went wrong: whether it may pass, and what to do otherwise."""

from __future__ import annotations

import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from operator import ne
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tallymark.core.tls import Tls
from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable
from tallymark.formats.registry_server import Registry

SECONDS = 10.0
"""How long a connection may take, and how long a registry may be silent."""
ANSWER_SECONDS = 60.0
LARGEST = 16 << 20
"""Bytes of the largest answer that is read."""
NO_PATH = 404
"""The error code of registries for a path that their API does not have."""
BUSY = (408, 425, 429)
"""HTTP client errors that are worth a retry, in addition to all server errors."""
_JSON = "application/vnd.schemaregistry.v1+json"
_PIECE = 1 << 16
_WORDS = 300


class Missing(BadInput):
    """The registry does not have the subject, the version or the schema."""


class WrongAddress(BadInput):
    """The registry does not have the path: the address is wrong, or the registry is older than the request."""


class RegistryClient:
    """Sends requests, each on a connection of its own. Files of certificates and passwords are read each time."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._addresses = [urlsplit(address) for address in registry.addresses]
        self.name = f"the schema registry at {registry.url}"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a GET, or to a POST with this body. The addresses are tried in turn."""
        for address in self._addresses:
            try:
                answer = self._request(address, path, body)
            except Unreachable as error:
                failure = error
            else:
                # The next request begins with the address that answers.
                self._addresses = sorted(self._addresses, key=partial(ne, address))
                return answer
        raise failure

    def _request(self, address: SplitResult, path: str, body: Mapping[str, Any] | None) -> Any:
        name = f"the schema registry at {address.geturl()}"
        content = None if body is None else json.dumps(body).encode()
        connection = self._connection(address, name)
        try:
            connection.request("GET" if body is None else "POST", address.path + path, content, self._headers())
            response = connection.getresponse()
            answer = _read(response, name)
        except (OSError, HTTPException, UnicodeError) as error:
            raise _transport_error(name, address, error) from None
        finally:
            connection.close()
        return _Answer(name, path, response, answer).judged(self._registry)

    def _connection(self, address: SplitResult, name: str) -> HTTPConnection:
        host = address.hostname or ""
        if address.scheme == "http":
            return HTTPConnection(host, address.port, timeout=SECONDS)
        return HTTPSConnection(host, address.port, timeout=SECONDS, context=_context(self._registry.tls, name))

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON, "User-Agent": "tallymark"}
        if self._registry.username:
            login = f"{self._registry.username}:{self._registry.password_text()}"
            headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        elif token := self._registry.token_text():
            headers["Authorization"] = f"Bearer {token}"
        return headers


class _Answer:
    """An answer of a registry, and its meaning."""

    def __init__(self, name: str, path: str, response: HTTPResponse, content: bytes) -> None:
        self.name, self.path, self.status = name, path, response.status
        self.kind = response.headers.get_content_type()
        self.target = response.headers.get("Location")
        try:
            self.value: Any = json.loads(content)
            self.is_json = True
        except (ValueError, RecursionError):
            self.value, self.is_json = None, False

    def judged(self, registry: Registry) -> Any:
        """Return the value, or raise what the answer means."""
        if self.status in (401, 403):
            raise AccessDenied(_refusal(registry, self))
        if self.status in BUSY or self.status >= 500:
            raise Unreachable(f"{self.name} can't answer now: HTTP {self.status}{self._said()}")
        if 300 <= self.status < 400:
            raise BadInput(
                f"{self.name} redirects to {_shown(self.target)}: give the address of the registry itself; if that is "
                "a page to log in, set a login with Registry(...)"
            )
        if self.status == 404:
            raise self._not_found()
        if not self.is_json:
            raise BadInput(
                f"{self.name} answered {self.path} with {self.kind} instead of JSON: correct the address, which may be "
                "that of a web page"
            )
        if self.status >= 400:
            raise BadInput(f"{self.name} refused {self.path}: HTTP {self.status}{self._said()}")
        return self.value

    def _not_found(self) -> BadInput:
        code = self.value.get("error_code") if isinstance(self.value, dict) else None
        if isinstance(code, int) and code != NO_PATH:
            return Missing(f"{self.name} does not have {self.path}{self._said()}")
        return WrongAddress(
            f"{self.name} has no path {self.path}: correct the address; that of some registries has a path, such as "
            "/apis/ccompat/v7"
        )

    def _said(self) -> str:
        """Return the registry's own message, which may follow in a sentence."""
        message = self.value.get("message") if isinstance(self.value, dict) else None
        if not isinstance(message, str) or not message.strip():
            return ""
        return f": {' '.join(message.split())[:_WORDS].rstrip('.')}"


def _refusal(registry: Registry, answer: _Answer) -> str:
    if registry.username:
        user, remedy = f"user {registry.username}", "check username= and the password"
    elif registry.token or registry.token_file:
        user, remedy = "the token", "check it, because it may have expired"
    else:
        user, remedy = "this client", "set a login with Registry(username=..., password_file=...) or token_file="
    if answer.status == 401:
        return f"{answer.name} refused {user}: {remedy}"
    return f"{answer.name} denied {user} access to {answer.path}: grant the permission, or {remedy}"


def _shown(location: str | None) -> str:
    """Return where a redirect leads, without its query, which may contain secrets."""
    try:
        parts = urlsplit(location or "")
    except ValueError:
        return "another address"
    return f"{parts.scheme}://{parts.hostname}{parts.path}" if parts.hostname else parts.path or "another address"


def _read(response: HTTPResponse, name: str) -> bytes:
    pieces: list[bytes] = []
    size, wanted, deadline = 0, response.length, time.monotonic() + ANSWER_SECONDS
    while wanted is None or size < wanted:
        piece = response.read1(_PIECE if wanted is None else min(_PIECE, wanted - size))
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if max(size, wanted or 0) > LARGEST:
            raise BadInput(f"{name} answered with more than {LARGEST >> 20} MB: correct the address")
        if time.monotonic() > deadline:
            raise TimeoutError
    if wanted is not None and size < wanted:
        raise IncompleteRead(b"", wanted - size)
    return b"".join(pieces)


def _context(tls: Tls | None, name: str) -> ssl.SSLContext:
    try:
        return (tls or Tls()).context()
    except OSError as error:
        files = ", ".join(path for path in (tls.ca, tls.cert, tls.key) if path) if tls else "the system's authorities"
        raise BadInput(
            f"{name}: TLS can't be set up from {files}: {error.strerror or error}; use readable PEM files, the key of "
            "the certificate, and its password"
        ) from None


def _transport_error(name: str, address: SplitResult, error: Exception) -> TallymarkError:
    if isinstance(error, ssl.SSLError) and (refused := _tls_error(name, address, error)):
        return refused
    # A connection that was closed before the answer is a bad status line, too, but may pass.
    if isinstance(error, BadStatusLine) and not isinstance(error, OSError):
        return BadInput(f"{name} does not answer in HTTP: correct the port, or write https://")
    if isinstance(error, UnicodeError):
        return BadInput(f"{name}: {address.hostname} is not a host name; correct it")
    if isinstance(error, socket.gaierror):
        why = f"host {address.hostname} can't be resolved; correct its name"
    elif isinstance(error, ConnectionRefusedError):
        why = "nothing listens there; check address and port"
    elif isinstance(error, TimeoutError):
        why = f"it does not answer within {SECONDS:g} s"
    elif address.scheme == "http" and isinstance(error, ConnectionError):
        why = "the connection was closed; check the port, and whether it is that of https://"
    else:
        why = getattr(error, "strerror", None) or type(error).__name__
    return Unreachable(f"{name} can't be reached: {why}")


def _tls_error(name: str, address: SplitResult, error: ssl.SSLError) -> TallymarkError | None:
    """Return the error of a handshake that always fails; None if it may succeed later."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if "match" in error.verify_message:
            return BadInput(
                f"{name}: its certificate is not for {address.hostname}: use its host name, or set "
                "Registry(tls=Tls(verify_hostname=False))"
            )
        return BadInput(
            f"{name}: its certificate is not trusted ({error.verify_message}): set its authority with "
            "Registry(tls=Tls(ca=...))"
        )
    if "ALERT" in (error.reason or ""):
        return AccessDenied(
            f"{name} refused the TLS connection ({error.reason}): set the client certificate that it requires with "
            "Registry(tls=Tls(cert=..., key=...))"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return BadInput(f"{name} does not use TLS: write http://, or correct the port")
    return None
