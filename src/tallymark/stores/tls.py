"""TLS options, the same for all stores: ``?tls=verify&tls_ca=/path/ca.pem``.

Drivers differ in what an encrypted connection verifies. Some verify nothing unless they are given a CA file, and
redis-py trusts the system's CAs in addition to the given file. tallymark always sets a CA file, and nothing else is
trusted. The host name is verified unless ``tls=verify-ca`` is set.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy.engine import URL

from tallymark.errors import AccessDenied, BadInput, TallymarkError
from tallymark.stores.url import option, shown

log = logging.getLogger(__name__)

OPTIONS = ("tls", "tls_ca", "tls_cert", "tls_key")
VERIFY, VERIFY_CA = "verify", "verify-ca"

_UNPROVEN = ("certificate verify failed", "does not match host name", "root certificate file")
_PLAIN = ("server does not support ssl", "ssl is required", "wrong version number", "record layer failure")
_UNWELCOME = (
    "tlsv1 alert",
    "tlsv13 alert",
    "sslv3 alert",
    "ssl/tls alert",
    "client certificate",
    "certificate file",
    "private key file",
)


@dataclass(frozen=True)
class StoreTls:
    """Certificates that authenticate the server and the client. All files exist and were readable."""

    store: str
    ca: str
    cert: str | None = None
    key: str | None = None
    checks_host: bool = True

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = self.checks_host
        if self.cert:
            context.load_cert_chain(self.cert, self.key, password=self._refuse_to_ask)
        return context

    def _refuse_to_ask(self) -> str:
        # OpenSSL would prompt for it on the terminal, and a service would wait forever.
        raise BadInput(f"{self.store}: the key in {self.key} is encrypted; set tls_key= to an unencrypted key")


def take_tls(url: URL, *, implied: bool = False) -> tuple[URL, StoreTls | None]:
    """Split the URL into the URL without its ``tls`` options and the parsed options."""
    mode, ca, cert, key = (option(url, name) for name in OPTIONS)
    if not (implied or mode or ca or cert or key):
        return url, None
    name = shown(url)
    if mode not in (None, VERIFY, VERIFY_CA):
        raise BadInput(f"{name}: tls={mode} is not known; write tls={VERIFY}, or tls={VERIFY_CA} for any host name")
    for own in sorted(own for own in url.query if own.startswith("ssl")):
        raise BadInput(f"{name}: tls options and the driver's option {own}= exclude each other; keep one of them")
    if mode == VERIFY_CA and not ca:
        raise BadInput(
            f"{name}: tls={VERIFY_CA} requires tls_ca=: otherwise any server with a public certificate is accepted"
        )
    if key and not cert:
        raise BadInput(f"{name}: tls_key= requires tls_cert=, the certificate of the key")
    tls = StoreTls(
        name,
        _file(name, "tls_ca", ca) if ca else _system(name),
        _file(name, "tls_cert", cert) if cert else None,
        _file(name, "tls_key", key) if key else cert and _file(name, "tls_cert", cert),
        mode != VERIFY_CA,
    )
    _try_out(tls)
    if not tls.checks_host:
        warn(name, f"tls={VERIFY_CA}")
    return url.difference_update_query(OPTIONS), tls


@cache
def warn(store: str, option: str) -> None:
    """Warn once for each store: TLS without verification looks like a secure connection and is not."""
    log.warning("TLS does not authenticate the server, write tls=verify store=%s option=%s", store, option)


def check_file(url: URL, name: str) -> None:
    """Refuse a driver option that names a missing file: not every driver reports which file is missing."""
    path = option(url, name)
    if path is not None and path != "system":
        _file(shown(url), name, path)


def tls_failure(store: str, words: str) -> TallymarkError | None:
    """Return the error for a TLS handshake that fails permanently; None if the message is not such a failure."""
    lowered = words.lower()

    def said(marks: tuple[str, ...]) -> bool:
        return any(mark in lowered for mark in marks)

    if said(_UNPROVEN):
        return BadInput(
            f"{store}: TLS verification failed: {words}; set tls_ca= to the authority of its certificate, and write "
            "the host as the certificate names it"
        )
    if said(_PLAIN):
        return BadInput(
            f"{store} does not use TLS: {words}; enable it on the server, correct the port, or leave tls out"
        )
    if said(_UNWELCOME):
        return AccessDenied(
            f"{store}: TLS was refused: {words}; check tls_cert= and tls_key=, and what the server requires"
        )
    return None


def _file(store: str, name: str, path: str) -> str:
    if "-----BEGIN" in path:
        raise BadInput(f"{store}: {name}= is the text of a PEM file; write it to a file and give its path")
    if not os.path.isfile(path):  # noqa: PTH113 - which takes anything for a path
        raise BadInput(f"{store}: {name}={path}: the file does not exist; correct the path")
    # Executors have another working directory.
    return str(Path(path).absolute())


def _system(store: str) -> str:
    found = ssl.get_default_verify_paths().cafile
    if found is None:
        raise BadInput(f"{store}: the system has no file of certificate authorities; set tls_ca=")
    return found


def _try_out(tls: StoreTls) -> None:
    try:
        tls.context()
    except OSError as error:
        files = ", ".join(dict.fromkeys(filter(None, (tls.ca, tls.cert, tls.key))))
        raise BadInput(
            f"{tls.store}: TLS can't be set up from {files}: {error.strerror or error}; use readable PEM files, and "
            "the key of the certificate"
        ) from None
