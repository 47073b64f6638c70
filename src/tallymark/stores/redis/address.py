"""Parse Redis URLs and create clients: redis://user:password@host:port/db?tag=shop&rows=json, rediss:// and redis+cluster://."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sqlalchemy.engine import make_url

from tallymark.errors import BadInput
from tallymark.stores.tls import OPTIONS, StoreTls, take_tls
from tallymark.stores.url import (
    CONNECT_SECONDS,
    CONNECT_TIMEOUT,
    PASSWORD_FILE,
    READ_TIMEOUT,
    seconds,
    shown,
    with_password,
)

Form = Literal["hash", "json"]
KNOWN = ("tag", "rows", PASSWORD_FILE, CONNECT_TIMEOUT, READ_TIMEOUT, *OPTIONS)
READ_SECONDS = 60


@dataclass(frozen=True)
class Address:
    """The address of a store, and the form of its rows. ``name`` is the URL without secrets."""

    name: str
    cluster: bool
    tag: str
    rows: Form
    options: dict[str, Any] = field(repr=False)
    tls: StoreTls | None = None
    connect_timeout: int = CONNECT_SECONDS
    read_timeout: int = READ_SECONDS

    @classmethod
    def parse(cls, url: str) -> Address:
        given = make_url(url)
        name = shown(given)
        for option in sorted(given.query.keys() - KNOWN):
            raise BadInput(f"{name}: the option {option} is not known; Redis URLs accept {', '.join(KNOWN)}")
        parsed, tls = take_tls(with_password(given, needs_user=False), implied=given.drivername == "rediss")
        options = {"tag": "tallymark", "rows": "hash"} | dict(parsed.query)
        if options["rows"] not in get_args(Form):
            raise BadInput(f"{name}: rows={options['rows']} is not known; write rows=hash or rows=json")
        tag = options["tag"]
        if not isinstance(tag, str) or not tag or "{" in tag or "}" in tag:
            raise BadInput(f"{name}: tag= takes one name without braces, such as tag=shop")
        database, cluster = parsed.database or "0", parsed.drivername == "redis+cluster"
        if not database.isdecimal() or (cluster and database != "0"):
            raise BadInput(f"{name}: /{database} is not a database number; a cluster has only database 0")
        where: dict[str, Any] = {"host": parsed.host or "localhost", "port": parsed.port or 6379}
        where |= {} if cluster else {"db": int(database)}
        where |= {"username": parsed.username or None, "password": parsed.password}
        limits = seconds(given, CONNECT_TIMEOUT, CONNECT_SECONDS), seconds(given, READ_TIMEOUT, READ_SECONDS)
        return cls(name, cluster, tag, "json" if options["rows"] == "json" else "hash", where, tls, *limits)

    def client(self) -> Any:
        """Create a client with a connection pool. A cluster client connects immediately, to find the nodes.

        The client never retries: if a script ran and its answer was lost, a retry would be refused as late.
        """
        redis = self.driver()
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        timeouts = {"socket_connect_timeout": self.connect_timeout, "socket_timeout": self.read_timeout}
        make = redis.cluster.RedisCluster if self.cluster else redis.Redis
        options = self.options | timeouts | {"retry": never, "protocol": 2}
        if self.tls is None:
            return make(**options)
        # Only from_url accepts a connection class.
        host, port = options.pop("host"), options.pop("port")
        address = f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}"
        return make.from_url(address, connection_class=_verified(redis, self), **_tls_options(self.tls), **options)

    def driver(self) -> Any:
        try:
            import redis
            import redis.backoff
            import redis.cluster
            import redis.retry
        except ModuleNotFoundError as error:
            raise BadInput(
                f"{self.name} needs {error.name}, which is not installed: pip install 'tallymark[redis]'"
            ) from None
        return redis


def _verified(redis: Any, address: Address) -> Any:
    assert address.tls is not None
    context = address.tls.context()

    class Verified(redis.SSLConnection):  # type: ignore[misc]
        """Trusts only the given CA: redis-py would trust the system's CAs too."""

        def _wrap_socket_with_ssl(self, sock: Any) -> Any:
            # A server without TLS reads the handshake as the start of a command and waits for the rest.
            sock.settimeout(address.connect_timeout)
            try:
                wrapped = context.wrap_socket(sock, server_hostname=self.host)
            except TimeoutError:
                raise redis.ConnectionError(
                    f"no answer to the TLS handshake within {address.connect_timeout} s, as from a server without TLS"
                ) from None
            wrapped.settimeout(address.read_timeout)
            return wrapped

    return Verified


def _tls_options(tls: StoreTls) -> dict[str, Any]:
    """Return the same settings as redis-py options, in case it connects without ``Verified``."""
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": tls.checks_host,
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.cert,
        "ssl_keyfile": tls.key,
    }
