"""A secured Kafka for tests, settings for raw clients of it, and permissions for its user ``limited``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tallymark.local.sandbox import SecureKafka
from tallymark.local.sandbox.secure import ADMIN, LIMITED
from tests.support.background import wait_for

__all__ = ["ADMIN", "LIMITED", "UNSECURED_TOKENS", "allow", "as_client", "as_user", "other_ca", "secure_kafka"]

TIMEOUT = 15.0

UNSECURED_TOKENS = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="nobody";'
    ),
}
"""``settings=`` of a broker that accepts any unsigned token."""


@contextlib.contextmanager
def secure_kafka(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[SecureKafka]:
    """Starts a broker, and kills it at the end. The start takes seconds: share it within a module."""
    kafka = SecureKafka(directory / "kafka", settings=settings, temporary=True)
    try:
        yield kafka.start()
    finally:
        kafka.kill()


def as_user(kafka: SecureKafka, user: str = ADMIN, mechanism: str = "SCRAM-SHA-512", **more: str) -> dict[str, Any]:
    """The settings of a raw client that logs in with a password; ``sasl_password="wrong"`` overrides a setting."""
    return {"bootstrap.servers": kafka.brokers, **kafka.security.as_user(user, mechanism), **_settings(more)}


def as_client(kafka: SecureKafka, **more: str) -> dict[str, Any]:
    """The settings of a raw client with admin's certificate."""
    return {"bootstrap.servers": kafka.mtls_brokers, **kafka.security.as_client(), **_settings(more)}


def allow(kafka: SecureKafka, user: str, kind: str, name: str, *operations: str) -> None:
    """Grant permissions to a user: ``allow(kafka, LIMITED, "topic", "orders", "read", "describe")``.

    ``kind`` is topic, group, transactional_id or broker (whose name is kafka-cluster); a name of * means all.
    """
    admin = AdminClient(as_client(kafka))
    what = ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, f"User:{user}", "*"
    wanted = {AclBinding(*what, AclOperation[word.upper()], AclPermissionType.ALLOW) for word in operations}
    for future in admin.create_acls(list(wanted)).values():
        future.result(TIMEOUT)
    # Ask the broker itself: it gets permissions a moment after they were granted.
    question = AclBindingFilter(*what, AclOperation.ANY, AclPermissionType.ANY)
    wait_for(lambda: wanted <= set(admin.describe_acls(question).result(TIMEOUT)))


def other_ca(directory: Path) -> Path:
    """The certificate of an authority that signed nothing here."""
    path = directory / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return path


def _settings(more: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in more.items()}
