"""How JDBC reaches the database of a race: drivers, addresses, and the options of Spark's own writer."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import make_url

from bench import JARS
from bench.harness.race import Course
from tallymark.local.jars import fetch
from tallymark.stores.tls import OPTIONS
from tallymark.stores.url import with_password

BATCH = 10_000
"""Rows of a batch, for every writer that is tuned."""
DRIVERS = {"postgresql": "org.postgresql.Driver", "mariadb": "com.mysql.cj.jdbc.Driver"}
SCHEMES = {"postgresql": "postgresql", "mariadb": "mysql"}
PLAIN: Mapping[str, dict[str, str]] = {
    "postgresql": {},
    "mariadb": {"useSSL": "false", "allowPublicKeyRetrieval": "true"},
}
REWRITE = {"postgresql": {"reWriteBatchedInserts": "true"}, "mariadb": {"rewriteBatchedStatements": "true"}}


def address(course: Course, scheme: str, options: Mapping[str, str]) -> str:
    """The URL of the database, without a login."""
    url = make_url(course.url)
    port = f":{url.port}" if url.port else ""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"jdbc:{scheme}://{url.host or 'localhost'}{port}/{url.database or ''}?{query}"


def login(course: Course) -> tuple[str, str]:
    """User and password, which may be empty."""
    url = with_password(make_url(course.url))
    return url.username or "", url.password or ""


def spark_options(course: Course, *, tuned: bool) -> dict[str, str]:
    """What Spark's writer needs to know of the table and its database."""
    kind = course.kind
    user, password = login(course)
    return {
        "url": address(course, SCHEMES[kind], {**PLAIN[kind], **(REWRITE[kind] if tuned else {})}),
        "driver": DRIVERS[kind],
        "dbtable": course.table,
        "user": user,
        "password": password,
        **({"batchsize": str(BATCH)} if tuned else {}),
    }


def reaches(course: Course) -> bool:
    """Whether Spark's writer can open this database: what tallymark does for TLS is not done for it here."""
    secured = {*OPTIONS, "sslmode", "ssl_ca"} & set(make_url(course.url).query)
    return course.kind in DRIVERS and not secured


def jars() -> str:
    """The drivers and Spark's Avro functions, for ``spark.jars`` before the session starts."""
    return ",".join(str(jar) for name in ("jdbc", "avro") for jar in fetch(name, lock=JARS))
