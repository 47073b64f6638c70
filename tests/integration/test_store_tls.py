"""TLS and passwords, with real servers: certificates are verified, and errors name the way out."""

from __future__ import annotations

import logging
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from tallymark.core.spans import Partition
from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable
from tallymark.local.sandbox.server import free_port
from tallymark.stores import tls
from tallymark.stores.opening import open_sql, open_store
from tallymark.stores.redis import address
from tallymark.stores.sql.errors import translated
from tests.support import databases
from tests.support.commits import EVENTS, SCHEMA, take, work
from tests.support.redis import OwnValkey, client
from tests.support.stores import PLAIN, plain
from tests.support.tls import PASSWORD, Secured, Terminator, secured

KINDS = ("postgresql", "mariadb", "redis")
pytestmark = pytest.mark.xdist_group("tls")


@pytest.fixture(scope="module")
def servers_with_tls() -> Iterator[Secured]:
    directory = Path(tempfile.mkdtemp(prefix="tallymark-tls-"))
    directory.chmod(0o755)
    with secured(directory) as running:
        yield running
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def secure(servers_with_tls: Secured, monkeypatch: pytest.MonkeyPatch) -> Secured:
    """With the password in the environment, and no warning logged yet."""
    monkeypatch.setenv("TALLYMARK_STORE_PASSWORD", PASSWORD)
    monkeypatch.delenv("TALLYMARK_STORE_PASSWORD_FILE", raising=False)
    tls.warn.cache_clear()
    return servers_with_tls


def refused(url: str, kind: type[TallymarkError], words: str) -> str:
    """The error of ``ping``: one sentence of this kind, which is not retried and holds no secret."""
    with pytest.raises(TallymarkError, match=words) as caught:
        open_store(url).ping()
    said = str(caught.value)
    assert type(caught.value) is kind, said
    assert not caught.value.transient
    assert "\n" not in said
    assert PASSWORD not in said
    return said


def commit(url: str) -> None:
    store = open_store(url)
    store.ping()
    store.create_ledger()
    store.create_tables([EVENTS], {"events": SCHEMA})
    held = take(store, "tls", "one", [Partition("orders", 0)])
    made = work("tls", "one", held, 0, 5)
    store.apply(made.changes, made.entry)
    assert [position.next_offset for position in store.positions("tls")["tls"]] == [5]
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_commits_over_tls_with_a_password_from_the_environment(secure: Secured, kind: str) -> None:
    commit(f"{secure.urls[kind]}?tls=verify&tls_ca={secure.files.ca}")


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        ("postgresql", "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"),
        ("mariadb", "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'ssl_version'"),
    ],
)
def test_the_server_sees_tls(secure: Secured, kind: str, question: str) -> None:
    store = open_sql(f"{secure.urls[kind]}?tls_ca={secure.files.ca}")
    with store.look() as connection:
        assert connection.exec_driver_sql(question).scalar_one() == "TLSv1.3"
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_of_another_authority_is_not_accepted(
    secure: Secured, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one of the system's authorities, if an authority is named."""
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.files.ca))
    for mode in ("verify", "verify-ca"):
        said = refused(f"{secure.urls[kind]}?tls={mode}&tls_ca={secure.other.ca}", BadInput, "TLS verification failed")
        assert "certificate verify failed" in said
        assert "tls_ca=" in said


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_named_authority_the_systems_are_asked_and_the_host_name_too(
    secure: Secured, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{secure.urls[kind]}?tls=verify"
    refused(url, BadInput, "TLS verification failed")
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.files.ca))
    open_store(url).ping()
    refused(url.replace("localhost", "127.0.0.1"), BadInput, "TLS verification failed")


def test_rediss_verifies_by_itself(secure: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    url = secure.urls["redis"].replace("redis://", "rediss://")
    refused(url, BadInput, "TLS verification failed")
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.files.ca))
    open_store(url).ping()


@pytest.mark.parametrize("kind", KINDS)
def test_another_host_name_is_refused_unless_switched_off_by_name_with_one_warning(
    secure: Secured, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = secure.urls[kind].replace("localhost", "127.0.0.1")
    refused(f"{url}?tls_ca={secure.files.ca}", BadInput, r"TLS verification failed.*the host as the certificate")
    assert not caplog.records
    for _ in range(2):
        open_store(f"{url}?tls=verify-ca&tls_ca={secure.files.ca}").ping()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "option=tls=verify-ca" in record.getMessage()
    assert PASSWORD not in record.getMessage()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_without_tls_is_told(secure: Secured, servers: dict[str, str], kind: str) -> None:
    said = refused(f"{servers[kind]}?tls_ca={secure.files.ca}", BadInput, "does not use TLS")
    assert "leave tls out" in said


def test_redis_without_tls_says_nothing_and_is_not_waited_for(
    secure: Secured, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "CONNECT_SECONDS", 0.2)
    with pytest.raises(Unreachable, match="as from a server without TLS"):
        open_store(f"{redis_url}&tls_ca={secure.files.ca}").ping()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_is_denied_and_not_shown(secure: Secured, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYMARK_STORE_PASSWORD", "Canary-wrong-1b")
    said = refused(f"{secure.urls[kind]}?tls_ca={secure.files.ca}", AccessDenied, "check the user, the password")
    assert "Canary" not in said


@pytest.mark.parametrize("kind", KINDS)
def test_no_password_is_denied(secure: Secured, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALLYMARK_STORE_PASSWORD")
    refused(f"{secure.urls[kind]}?tls_ca={secure.files.ca}", AccessDenied, "check the user, the password")


def test_a_redis_password_needs_a_user_to_be_taken_from_the_environment(secure: Secured) -> None:
    """A Redis without users would refuse it, and it may be the password of another store."""
    url = secure.urls["redis"].replace("default@", "")
    said = refused(f"{url}?tls_ca={secure.files.ca}", AccessDenied, "requires a password")
    assert "redis://default@host" in said


@pytest.mark.parametrize("kind", KINDS)
def test_the_password_may_be_in_a_file_or_in_the_url(
    secure: Secured, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    url = f"{secure.urls[kind]}?tls_ca={secure.files.ca}"
    monkeypatch.setenv("TALLYMARK_STORE_PASSWORD", "Canary-wrong-1b")
    open_store(f"{url}&password_file={tmp_path / 'password'}").ping()
    open_store(url.replace("@", f":{quote(PASSWORD, safe='')}@")).ping()
    monkeypatch.delenv("TALLYMARK_STORE_PASSWORD")
    monkeypatch.setenv("TALLYMARK_STORE_PASSWORD_FILE", str(tmp_path / "password"))
    open_store(url).ping()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_asks_for_a_certificate_gets_ours(secure: Secured, kind: str) -> None:
    url, files = f"{secure.guarded[kind]}?tls_ca={secure.files.ca}", secure.files
    strange = f"{url}&tls_cert={secure.other.client}&tls_key={secure.other.client_key}"
    for wrong in (url, strange):
        # The server refuses after the handshake: the reason may be lost with the connection.
        with pytest.raises((AccessDenied, Unreachable)) as caught:
            open_store(wrong).ping()
        assert "\n" not in str(caught.value)
        assert PASSWORD not in str(caught.value)
    open_store(f"{url}&tls_cert={files.client}&tls_key={files.client_key}").ping()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_executors_need_neither_the_variable_nor_the_options(
    secure: Secured, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_sql(f"{secure.urls[kind]}?tls_ca={secure.files.ca}")
    stages = store.stages("shop", "4711-abc")
    assert stages is not None
    loader = pickle.loads(pickle.dumps(stages.open(PLAIN)))
    monkeypatch.delenv("TALLYMARK_STORE_PASSWORD")
    assert PASSWORD not in f"{loader!r} {store.engine!r} {store.engine.url!r} {store!r}"
    assert pa.Table.from_batches(loader(plain((1, "a")).to_batches()))["rows"].to_pylist() == [1]
    refused(loader.url.replace("localhost", "127.0.0.1"), BadInput, "TLS verification failed")
    store.clear_stages("shop", of="4711-abc")
    store.close()


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        ("postgresql", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'"),
        ("mariadb", "KILL USER shop"),
    ],
)
def test_a_connection_that_breaks_may_come_back(secure: Secured, kind: str, cut: str) -> None:
    """Not to be taken for a handshake that will never succeed."""
    store = open_sql(f"{secure.urls[kind]}?tls_ca={secure.files.ca}")
    with store.look() as connection:
        databases.execute(secure.admin[kind], cut)
        with pytest.raises(Unreachable), translated(store.name):
            connection.exec_driver_sql("SELECT 1")
    store.ping()
    store.close()


def test_a_cluster_over_tls(secure: Secured, tmp_path: Path) -> None:
    port = free_port()
    settings = {"cluster_enabled": "yes", "cluster_port": str(free_port()), "cluster_announce_port": str(port)}
    with OwnValkey(tmp_path / "cluster", **settings) as server, Terminator(server.port, secure.files, port=port):
        node = client(server.url)
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            pass
        url = f"redis+cluster://127.0.0.1:{port}?tls_ca={secure.files.ca}"
        refused(url, BadInput, "TLS verification failed")
        commit(f"{url}&tls=verify-ca")
