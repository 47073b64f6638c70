"""PostgreSQL behind a pooler in transaction mode."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

import tallymark as tm
from tallymark.errors import BadInput
from tallymark.stores.opening import open_sql, open_store
from tests.support.background import Background, wait_for
from tests.support.crash import Run, make_loop
from tests.support.databases import query
from tests.support.kafka import Topics
from tests.support.proxy import Proxy
from tests.support.reader import PlainReader
from tests.support.truth import check_complete

PGBOUNCER = os.environ.get("TALLYMARK_TEST_PGBOUNCER") or shutil.which("pgbouncer")
needs_pgbouncer = pytest.mark.skipif(
    PGBOUNCER is None,
    reason="no pgbouncer here: install it, or name the program by TALLYMARK_TEST_PGBOUNCER (apt-get download pgbouncer "
    "and dpkg -x unpack it without root)",
)
SETTINGS = """[databases]
{database} = host={host} port={server} dbname={database} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 3
"""


class Pooled(Proxy):
    """Reports an invented process id, as poolers do: the id is in the message that begins with K."""

    def altered(self, data: bytes) -> bytes:
        at = data.find(b"K\x00\x00\x00\x0c")
        return data if at < 0 else data[: at + 5] + b"\x7f\x00\x00\x01" + data[at + 9 :]


def test_a_pooled_session_is_left_as_it_was_found(database: Callable[[str], str]) -> None:
    """Nothing is prepared or set for longer than a transaction; each transaction sets its own parameters."""
    url = database("postgresql")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {make_url(url).database} SET TimeZone = 'Asia/Tokyo'")
    with Pooled(url) as pooler:
        store = open_sql(pooler.url)
        for _ in range(10):
            with store.transaction() as connection:
                assert connection.exec_driver_sql("SHOW TimeZone").scalar_one() == "UTC"
                assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one() == "5min"
                session = connection.connection.driver_connection
                assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0
        assert isinstance(session, psycopg.Connection)
        assert session.execute("SHOW TimeZone").fetchone() == ("Asia/Tokyo",)
        store.close()


def pgbouncer(url: URL, mode: str, directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    assert PGBOUNCER is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    file = directory / "pgbouncer.ini"
    place = {"database": url.database, "host": url.host, "server": url.port, "user": url.username}
    file.write_text(SETTINGS.format(**place, port=port, mode=mode))
    directory.chmod(0o755)
    # It refuses root, as PostgreSQL does.
    root = {"user": "nobody", "group": "nogroup", "extra_groups": ()} if os.getuid() == 0 else {}
    running = subprocess.Popen([PGBOUNCER, str(file)], stderr=subprocess.DEVNULL, **root)  # type: ignore[call-overload]
    pooled = url.set(port=port).render_as_string(hide_password=False)
    return running, pooled


@pytest.fixture
def direct(database: Callable[[str], str]) -> str:
    return database("postgresql")


@pytest.fixture(params=["transaction"])
def pooled(request: pytest.FixtureRequest, direct: str) -> Iterator[str]:
    # In a directory that another user may read.
    directory = Path(tempfile.mkdtemp(prefix="tallymark-"))
    running, url = pgbouncer(make_url(direct), request.param, directory)
    try:
        wait_for(lambda: _listens(url))
        yield url
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(directory)


def _listens(url: str) -> bool:
    target = make_url(url)
    with socket.socket() as probe:
        return probe.connect_ex((target.host, target.port)) == 0


@needs_pgbouncer
def test_transactions_of_a_pooler_are_enough(
    pooled: str, direct: str, brokers: str, topics: Topics, group: str
) -> None:
    topic = topics.create(3)
    topics.send(topic, ({"id": number} for number in range(300)), partitions=3)
    over = threading.Event()

    def disturb() -> None:
        with psycopg.connect(pooled, prepare_threshold=None, autocommit=True) as neighbour:
            while not over.is_set():
                neighbour.execute("SET TIME ZONE 'Asia/Tokyo'")

    store, reader = open_store(pooled), PlainReader(brokers)
    with Background(disturb, over.set):
        make_loop(Run(brokers, pooled, group, topic), store, reader).run("caught-up")
        source = tm.Kafka(brokers, topic, value=tm.Json("id BIGINT"))
        for batch in tm.Consumer(group=f"{group}-2", source=source, store=pooled).batches(30, until="caught-up"):
            with batch.transaction() as db:
                assert db.scalar("SHOW TimeZone") == "UTC"
                db.write("others", [{"id": record.value["id"]} for record in batch.records], key="id", write="upsert")
    reader.close()
    store.close()
    check_complete(direct, topics.committed(topic))
    assert query(direct, "SELECT COUNT(*) FROM others") == [(300,)]


@needs_pgbouncer
@pytest.mark.parametrize("pooled", ["statement"], indirect=True)
def test_a_pooler_without_transactions_is_refused(pooled: str) -> None:
    with pytest.raises(BadInput, match=r"statement pooling.*pool_mode"):
        open_store(pooled).ping()
