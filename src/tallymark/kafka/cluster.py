"""Connection settings of a Kafka cluster: addresses, authentication and encryption.

They apply to both clients. This module converts them for librdkafka, ``spark.access`` for the JVM client.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tallymark.core.credentials import from_environment, read_secret, switch, variable
from tallymark.core.tls import Tls
from tallymark.errors import BadInput

log = logging.getLogger(__name__)

OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
LOADS_CODE = {
    "plugin.library.paths": "it loads code into the client",
    "ssl.engine.location": "it loads code into the client",
    "ssl.providers": "it loads code into the client",
    "sasl.kerberos.kinit.cmd": "it runs a command",
    "sasl.jaas.config": "login modules load code; use security=Sasl(...)",
    "sasl.login.callback.handler.class": "it loads code into the client",
    "sasl.client.callback.handler.class": "it loads code into the client",
    "sasl.login.class": "it loads code into the client",
    "ssl.engine.factory.class": "it loads code into the client",
    "security.providers": "it loads code into the client",
}
"""Settings that are refused because they make a client load code or run commands."""
HARMLESS = ("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list")
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")


@dataclass(frozen=True)
class Sasl:
    """SASL authentication: ``Sasl("SCRAM-SHA-512", username="shop", password_file="/run/secrets/kafka")``.

    PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 take a user and a password. OAUTHBEARER takes a client id as ``username``,
    the client secret as ``password``, and the token endpoint as ``token_url``.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str | None = None
    token_url: str | None = None
    scope: str | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise BadInput(f"Sasl({self.mechanism!r}) is not known; write one of {', '.join(MECHANISMS)}")
        if bool(self.password) == bool(self.password_file) or not self.username:
            raise BadInput(f"Sasl({self.mechanism!r}) needs username= and either password= or password_file=")
        if (self.mechanism == OAUTHBEARER) != bool(self.token_url):
            raise BadInput("token_url= is required for Sasl('OAUTHBEARER', ...), and only allowed there")
        if self.token_url and not self.token_url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
            raise BadInput("token_url= must start with https://, because the client secret is sent to it")
        if self.scope and not self.token_url:
            raise BadInput("scope= is only allowed for Sasl('OAUTHBEARER', ...)")
        self.secret()

    def secret(self) -> str:
        return read_secret(self.password_file) if self.password_file else self.password

    @classmethod
    def from_environment(cls) -> Sasl | None:
        """From TALLYMARK_SASL_MECHANISM, _USERNAME, _PASSWORD or _PASSWORD_FILE, _TOKEN_URL and _SCOPE."""
        mechanism, user = variable("SASL_MECHANISM"), variable("SASL_USERNAME")
        # ``from_environment`` raises if both are set. The file is read again for every client.
        password, file = from_environment("SASL_PASSWORD"), variable("SASL_PASSWORD_FILE")
        if mechanism is None:
            if user or password:
                raise BadInput(f"TALLYMARK_SASL_MECHANISM is missing; write one of {', '.join(MECHANISMS)}")
            return None
        url, scope = variable("SASL_TOKEN_URL"), variable("SASL_SCOPE")
        return cls(mechanism, user or "", "" if file else password or "", file, url, scope)

    def settings(self) -> dict[str, str]:
        """Return the settings for librdkafka."""
        if self.mechanism != OAUTHBEARER:
            return {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.secret(),
            }
        settings = {
            "sasl.mechanism": self.mechanism,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": self.username,
            "sasl.oauthbearer.client.secret": self.secret(),
            "sasl.oauthbearer.token.endpoint.url": self.token_url or "",
        }
        return {**settings, "sasl.oauthbearer.scope": self.scope} if self.scope else settings


@dataclass(frozen=True)
class Cluster:
    """The addresses of a cluster, with authentication and encryption.

    Without ``security`` and ``tls``, both come from the environment: TALLYMARK_SASL_... and TALLYMARK_TLS_...
    With authentication, connections are encrypted unless ``tls=False``.
    """

    brokers: str
    security: Sasl | None = None
    tls: Tls | bool | None = None

    def __post_init__(self) -> None:
        if not self.brokers.strip():
            raise BadInput("the address of a broker is missing, such as 'localhost:9092'")
        self.addresses  # noqa: B018 - raises for invalid addresses
        security, tls = self.security, self.tls
        if security is None and tls is None:
            security = Sasl.from_environment()
            tls = False if switch("TLS") is False else Tls.from_environment(implied=security is not None)
        if tls is True or (tls is None and security is not None):
            tls = Tls()
        object.__setattr__(self, "security", security)
        object.__setattr__(self, "tls", tls or False)
        if security is not None and not self.tls:
            warn(self.brokers, "user and password are sent without encryption (tls=False)")
        if isinstance(tls, Tls) and not tls.verify_hostname:
            warn(self.brokers, "host names of brokers are not verified (verify_hostname=False)")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports; the default port of Kafka clients is 9092."""
        addresses = []
        for address in self.brokers.split(","):
            parts = re.fullmatch(r"(?:\w+://)?(\[.*]|[^:]*)(?::(\d+))?", address.strip())
            if parts is None:
                raise BadInput(f"{address.strip()!r} is not a broker address; write host:port")
            addresses.append((parts[1].strip("[]"), int(parts[2] or 9092)))
        return addresses

    @property
    def line(self) -> Tls | None:
        return self.tls if isinstance(self.tls, Tls) else None

    @property
    def protocol(self) -> str:
        """Kafka's ``security.protocol``."""
        if self.security is None:
            return "SSL" if self.line else "PLAINTEXT"
        return "SASL_SSL" if self.line else "SASL_PLAINTEXT"

    def settings(self) -> dict[str, Any]:
        """Return the connection settings for librdkafka."""
        return {
            "bootstrap.servers": self.brokers,
            "security.protocol": self.protocol,
            **(_line_settings(self.line) if self.line else {}),
            **(self.security.settings() if self.security else {}),
        }


@cache
def warn(brokers: str, problem: str) -> None:
    """Log a warning once per cluster."""
    log.warning("%s brokers=%s", problem, brokers)


def check_settings(settings: Mapping[str, Any], refused: Mapping[str, str], where: str) -> None:
    """Raise for settings in ``refused``, settings that load code, and settings that have their own parameter."""
    for name in settings:
        why = LOADS_CODE.get(name) or refused.get(name)
        if why is None and name.startswith(_SECURITY) and name not in HARMLESS:
            why = "use security=Sasl(...) or tls=Tls(...)"
        if why is not None:
            raise BadInput(f"{where}: {name} can't be set: {why}")


def _line_settings(tls: Tls) -> dict[str, str]:
    settings = {
        "ssl.ca.location": tls.ca,
        "ssl.certificate.location": tls.cert,
        "ssl.key.location": tls.key,
        "ssl.key.password": tls.key_password,
        "ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else "none",
    }
    return {name: value for name, value in settings.items() if value}
