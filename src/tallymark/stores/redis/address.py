"""From a URL to a client: redis://user:password@host:port/db?tag=shop&rows=json, rediss:// and redis+cluster://."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy.engine import make_url

from tallymark.errors import BadInput

Form = Literal["hash", "json"]
CONNECT_SECONDS, ANSWER_SECONDS = 10, 60


@dataclass(frozen=True)
class Address:
    """Where a store is, and how it keeps its rows. ``name`` is the URL without secrets."""

    name: str
    cluster: bool
    tag: str
    rows: Form
    options: dict[str, Any]

    @classmethod
    def parse(cls, url: str) -> Address:
        parsed = make_url(url)
        name = parsed.set(query={}).render_as_string(hide_password=True)
        options = {"tag": "tallymark", "rows": "hash"} | dict(parsed.query)
        for option in sorted(options.keys() - {"tag", "rows"}):
            raise BadInput(f"{name}: the option {option} is not known; Redis URLs take tag and rows")
        if options["rows"] not in get_args(Form):
            raise BadInput(f"{name}: rows={options['rows']} is not known; write rows=hash or rows=json")
        tag = options["tag"]
        if not isinstance(tag, str) or not tag or "{" in tag or "}" in tag:
            raise BadInput(f"{name}: tag= takes one name without braces, such as tag=shop")
        database, cluster = parsed.database or "0", parsed.drivername == "redis+cluster"
        if not database.isdecimal() or (cluster and database != "0"):
            raise BadInput(f"{name}: /{database} is no database; Redis numbers them, and a cluster has 0 alone")
        where: dict[str, Any] = {"host": parsed.host or "localhost", "port": parsed.port or 6379}
        where |= {} if cluster else {"db": int(database)}
        where |= {
            "username": parsed.username or None,
            "password": parsed.password,
            "ssl": parsed.drivername == "rediss",
        }
        return cls(name, cluster, tag, "json" if options["rows"] == "json" else "hash", where)

    def client(self) -> Any:
        """A client with a pool of connections. That of a cluster connects at once, to learn who is in it.

        It tries nothing twice: a script that ran, and whose answer was lost, would be answered as if it had come late.
        """
        redis = self.driver()
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        timeouts = {"socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": ANSWER_SECONDS}
        make = redis.cluster.RedisCluster if self.cluster else redis.Redis
        return make(**self.options, **timeouts, retry=never, protocol=2)

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
