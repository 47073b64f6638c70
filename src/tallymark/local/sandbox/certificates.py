"""Creates a certificate authority and two certificates. The key of the authority is not stored."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from tallymark.errors import SandboxError
from tallymark.local.cache import replace_file
from tallymark.local.sandbox.server import HOST

BROKER, CLIENT = "broker", "admin"
"""The common names of the certificates, which Kafka uses as user names."""


def make_certificates(directory: Path) -> None:
    """Write ``ca.pem``, and ``.pem`` and ``.key`` for broker and client.

    The broker's certificate is for its IP address only, so a client that verifies host names refuses other names.
    """
    trustme = _trustme()
    authority = trustme.CA()
    for name, identity in ((BROKER, HOST), (CLIENT, CLIENT)):
        leaf = authority.issue_cert(identity, common_name=name)
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        replace_file(directory / f"{name}.pem", chain.decode())
        replace_file(directory / f"{name}.key", _pkcs8(leaf.private_key_pem.bytes()), mode=0o600)
    replace_file(directory / "ca.pem", authority.cert_pem.bytes().decode())


def _pkcs8(key: bytes) -> str:
    """Convert a private key to the only encoding that Java reads."""
    from cryptography.hazmat.primitives import serialization as how

    read = how.load_pem_private_key(key, password=None)
    return read.private_bytes(how.Encoding.PEM, how.PrivateFormat.PKCS8, how.NoEncryption()).decode()


def _trustme() -> ModuleType:
    try:
        import trustme
    except ImportError:
        raise SandboxError(
            "a secured Kafka requires the package trustme for its certificates: pip install 'tallymark[sandbox]'"
        ) from None
    return trustme
