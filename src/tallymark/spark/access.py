"""Converts the description of a Kafka cluster to the options of Spark's Kafka client.

The options contain certificates and the key themselves, so that executors need no files.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tallymark.core.tls import Tls
from tallymark.errors import BadInput
from tallymark.kafka.cluster import OAUTHBEARER, Cluster, Sasl

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
REDACTED = "(?i)secret|password|token|jaas|keystore|truststore"
"""Options whose values Spark must redact, in addition to those that it redacts by default."""


def keep_quiet() -> None:
    """Raise py4j's log level, because at DEBUG it logs everything sent to the JVM, including secrets."""
    logger = logging.getLogger("py4j")
    if logger.getEffectiveLevel() < logging.INFO:
        logger.setLevel(logging.INFO)


def options(cluster: Cluster) -> dict[str, str]:
    """The connection options for Spark's Kafka source."""
    settings = {
        "bootstrap.servers": cluster.brokers,
        "security.protocol": cluster.protocol,
        **(_line(cluster.line) if cluster.line else {}),
        **(_login(cluster.security) if cluster.security else {}),
    }
    return {f"kafka.{name}": value for name, value in settings.items()}


def _line(tls: Tls) -> dict[str, str]:
    settings: dict[str, str] = {}
    if tls.ca:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": Path(tls.ca).read_text()}
    if tls.cert and tls.key:
        chain, key = Path(tls.cert).read_text(), _key(tls.key)
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    if tls.key_password:
        settings["ssl.key.password"] = tls.key_password
    return settings | {"ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else ""}


def _key(path: str) -> str:
    key = Path(path).read_text()
    if "-----BEGIN PRIVATE KEY-----" in key or "-----BEGIN ENCRYPTED PRIVATE KEY-----" in key:
        return key
    raise BadInput(
        f"Tls(key={path!r}): Spark's client needs a PKCS#8 key; convert it with "
        f"openssl pkcs8 -topk8 -nocrypt -in {path} -out ..."
    )


def _login(sasl: Sasl) -> dict[str, str]:
    settings = {"sasl.mechanism": sasl.mechanism}
    if sasl.mechanism != OAUTHBEARER:
        return settings | {"sasl.jaas.config": _jaas(sasl, username=sasl.username, password=sasl.secret())}
    scope = {"scope": sasl.scope} if sasl.scope else {}
    return settings | {
        "sasl.jaas.config": _jaas(sasl, clientId=sasl.username, clientSecret=sasl.secret(), **scope),
        "sasl.login.callback.handler.class": _TOKEN_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": sasl.token_url or "",
    }


def _jaas(sasl: Sasl, **entries: str) -> str:
    parameters = " ".join(f'{name}="{_quoted(value)}"' for name, value in entries.items())
    return f"{_MODULES[sasl.mechanism]} required {parameters};"


def _quoted(value: str) -> str:
    """Escape quotes, backslashes and control characters for a quoted JAAS value."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(f"\\{ord(character):03o}" if ord(character) < 32 else character for character in escaped)
