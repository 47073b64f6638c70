"""Kafka with TLS, SASL users and ACLs, like a production cluster."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.errors import SandboxError
from tallymark.local.cache import replace_file
from tallymark.local.sandbox.certificates import BROKER, CLIENT, make_certificates
from tallymark.local.sandbox.kafka import KafkaBroker
from tallymark.local.sandbox.server import HOST, free_port

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ADMIN, LIMITED = "admin", "limited"
SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")
ITERATIONS = 4096
LOGIN_SECONDS = 30.0

# Brokers and controllers authenticate to each other with the broker's certificate; every listener authenticates.
SETTINGS = {
    "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
    "inter.broker.listener.name": "SSL",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/",
    "listener.name.sasl_ssl.ssl.client.auth": "none",
    "listener.name.ssl.ssl.client.auth": "required",
    "listener.name.controller.ssl.client.auth": "required",
    "sasl.enabled.mechanisms": ",".join((*SCRAM, "PLAIN")),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "false",
    "super.users": f"User:{BROKER};User:{ADMIN}",
}
LOGIN_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Security:
    """The credentials of clients. Secrets are only in these files and in the broker's own settings."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def client_cert(self) -> Path:
        """The certificate of the user admin."""
        return self.directory / f"{CLIENT}.pem"

    @property
    def client_key(self) -> Path:
        return self.directory / f"{CLIENT}.key"

    def password_file(self, user: str) -> Path:
        return self.directory / f"{user}.password"

    def prepare(self) -> None:
        """Create certificates and passwords once. The file of the CA is written last, and so marks completion."""
        if self.ca.exists():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        for user in (ADMIN, LIMITED):
            replace_file(self.password_file(user), secrets.token_urlsafe(24), mode=0o600)
        make_certificates(self.directory)

    def properties(self) -> dict[str, str]:
        users = " ".join(f'user_{user}="{self._password(user)}"' for user in (ADMIN, LIMITED))
        scram = f"{LOGIN_MODULES}.scram.ScramLoginModule required;"
        prefix = "listener.name.sasl_ssl"
        return {
            **SETTINGS,
            "ssl.truststore.location": str(self.ca),
            # Kafka requires a password for a key in a file, but not for a key in its settings.
            "ssl.keystore.key": _one_line(self.directory / f"{BROKER}.key"),
            "ssl.keystore.certificate.chain": _one_line(self.directory / f"{BROKER}.pem"),
            **{f"{prefix}.{mechanism.lower()}.sasl.jaas.config": scram for mechanism in SCRAM},
            f"{prefix}.plain.sasl.jaas.config": f"{LOGIN_MODULES}.plain.PlainLoginModule required {users};",
        }

    def as_user(self, user: str = ADMIN, mechanism: str = SCRAM[0]) -> dict[str, str]:
        """Return librdkafka settings for a client with a password. Its addresses are ``brokers``."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self._password(user),
            "ssl.ca.location": str(self.ca),
        }

    def as_client(self) -> dict[str, str]:
        """Return librdkafka settings for a client with admin's certificate. Its addresses are ``mtls_brokers``."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.client_cert),
            "ssl.key.location": str(self.client_key),
        }

    def add_users(self, mtls_brokers: str) -> None:
        """Add the SCRAM users through the API: with Kafka's own tool, passwords would be on the command line."""
        done = self.directory / "users-added"
        if done.exists():
            return
        client = _admin(mtls_brokers, self.as_client())
        # A request can change each user only once, so each mechanism has its own request.
        for mechanism in SCRAM:
            self._add_users(client, mechanism)
        done.touch()

    def wait_for_login(self, brokers: str) -> None:
        """Wait until a login succeeds, because a broker learns of new users with a delay."""
        from confluent_kafka import KafkaException

        try:
            _admin(brokers, self.as_user()).list_topics(timeout=LOGIN_SECONDS)
        except KafkaException as error:
            raise SandboxError(f"login to the secured Kafka at {brokers} failed: {error.args[0].str()}") from None

    def _add_users(self, client: AdminClient, mechanism: str) -> None:
        from confluent_kafka import KafkaException, admin

        kind = admin.ScramCredentialInfo(admin.ScramMechanism[mechanism.replace("-", "_")], ITERATIONS)
        changes: list[admin.UserScramCredentialAlteration] = [
            admin.UserScramCredentialUpsertion(user, kind, self._password(user).encode()) for user in (ADMIN, LIMITED)
        ]
        try:
            for future in client.alter_user_scram_credentials(changes, request_timeout=LOGIN_SECONDS).values():
                future.result()
        except KafkaException as error:
            raise SandboxError(f"adding the users of the secured Kafka failed: {error.args[0].str()}") from None

    def _password(self, user: str) -> str:
        return self.password_file(user).read_text()


class SecureKafka(KafkaBroker):
    """Kafka with SASL_SSL at ``brokers`` and mutual TLS at ``mtls_brokers``.

    The user admin has all permissions, the user limited has none.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        fast: bool = True,
        temporary: bool = False,
        node: int = 1,
        security: Security | None = None,
    ) -> None:
        super().__init__(directory, settings=settings, fast=fast, temporary=temporary, node=node)
        self.mtls_port = free_port()
        self.security = security or Security(self.directory / "security")
        self.ca = self.security.ca
        self.username = ADMIN
        self.password_file = self.security.password_file(ADMIN)
        self.client_cert, self.client_key = self.security.client_cert, self.security.client_key

    @property
    def mtls_brokers(self) -> str:
        return f"{HOST}:{self.mtls_port}"

    @property
    def variables(self) -> dict[str, str]:
        return {
            **super().variables,
            "TALLYMARK_SASL_MECHANISM": SCRAM[0],
            "TALLYMARK_SASL_USERNAME": self.username,
            "TALLYMARK_SASL_PASSWORD_FILE": str(self.password_file),
            "TALLYMARK_TLS_CA": str(self.ca),
        }

    def prepare(self) -> None:
        self.security.prepare()
        super().prepare()

    def wait(self) -> None:
        super().wait()
        self.security.add_users(self.mtls_brokers)
        self.security.wait_for_login(self.brokers)

    def _listeners(self) -> dict[str, str]:
        public = f"SASL_SSL://{HOST}:{self.port},SSL://{HOST}:{self.mtls_port}"
        return {
            **self.security.properties(),
            "listeners": f"{public},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": public,
        }


def _admin(brokers: str, settings: dict[str, str]) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    quiet = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
    return AdminClient({"bootstrap.servers": brokers, **settings, **quiet})


def _one_line(path: Path) -> str:
    """Return a PEM file as the value of a Java property."""
    return path.read_text().replace("\n", "\\n")
