"""The user's declaration of TLS: which authorities are trusted, and the client certificate."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from tallymark.core.credentials import from_environment, switch, variable
from tallymark.errors import BadInput


@dataclass(frozen=True)
class Tls:
    """TLS with verification of the server's certificate: ``Tls(ca="ca.pem")``.

    ``Tls()`` trusts the certificate authorities of the system. ``cert`` and ``key`` are the client certificate, for
    servers that require it. All files are PEM.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise BadInput("Tls() needs cert= and key= together")
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path and "-----BEGIN" in path:
                raise BadInput(f"Tls({name}=...) is the text of a PEM file; write it to a file and give its path")
            if path and not os.access(path, os.R_OK):
                raise BadInput(f"Tls({name}={path!r}): the file can't be read; check the path and its permissions")
            if path and "-----BEGIN " not in Path(path).read_text(errors="replace"):
                raise BadInput(f"Tls({name}={path!r}) is not a PEM file; convert it with openssl")

    @classmethod
    def from_environment(cls, *, implied: bool = False) -> Tls | None:
        """From TALLYMARK_TLS_CA, _CERT, _KEY, _KEY_PASSWORD or _KEY_PASSWORD_FILE, and _VERIFY_HOSTNAME."""
        names = ("TLS_CA", "TLS_CERT", "TLS_KEY")
        ca, cert, key = map(variable, names)
        if not (implied or switch("TLS") or ca or cert or key):
            return None
        verify = switch("TLS_VERIFY_HOSTNAME") is not False
        return cls(ca, cert, key, from_environment("TLS_KEY_PASSWORD"), verify)

    def context(self) -> ssl.SSLContext:
        """Create the context of connections that Python makes itself. Raises OSError for unusable files."""
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = self.verify_hostname
        if self.cert:
            # Without a password, OpenSSL would prompt for it on the terminal.
            context.load_cert_chain(self.cert, self.key, self.key_password or "")
        return context
