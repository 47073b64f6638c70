"""Connection failures are diagnosed with a plain socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trustme

from tallymark.core.tls import Tls
from tallymark.kafka.cluster import Cluster
from tallymark.kafka.diagnosis import CUT, ENCRYPTED, NO_ANSWER, REFUSED, diagnosis

Serve = Callable[[socket.socket], None]


@pytest.fixture
def served() -> Iterator[Callable[[Serve], str]]:
    """``served(function)``: the address of a server that calls it with each connection."""
    listeners: list[socket.socket] = []

    def start(serve: Serve) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), connection:
                        connection.settimeout(2)
                        serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ours(authority: trustme.CA, tmp_path: Path) -> Tls:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return Tls(ca=str(tmp_path / "ca.pem"))


def speaking(authority: trustme.CA, name: str = "127.0.0.1", *, asks: bool = False, newest: bool = True) -> Serve:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if newest else ssl.TLSVersion.TLSv1_2

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    return serve


def hang_up(connection: socket.socket) -> None:
    connection.recv(1)


def test_who_speaks_no_tls_to_one_that_does_is_told(served: Callable[[Serve], str], authority: trustme.CA) -> None:
    for asks, newest in ((False, True), (True, True), (True, False)):
        address = served(speaking(authority, asks=asks, newest=newest))
        assert diagnosis(Cluster(address, tls=False)) == ENCRYPTED, (asks, newest)


@pytest.mark.parametrize("newest", [True, False])
def test_a_certificate_of_ours_that_is_asked_for_is_named(
    served: Callable[[Serve], str], authority: trustme.CA, ours: Tls, newest: bool
) -> None:
    assert diagnosis(Cluster(served(speaking(authority, asks=True, newest=newest)), tls=ours)) == REFUSED


def test_another_host_name_and_another_authority_are_told_apart(
    served: Callable[[Serve], str], authority: trustme.CA, ours: Tls
) -> None:
    assert "not for 127.0.0.1" in diagnosis(Cluster(served(speaking(authority, "kafka.example")), tls=ours))
    assert "not trusted" in diagnosis(Cluster(served(speaking(trustme.CA())), tls=ours))
    assert "login" in diagnosis(Cluster(served(speaking(authority)), tls=ours))


def test_nobody_is_told_to_switch_tls_off(served: Callable[[Serve], str], ours: Tls) -> None:
    assert diagnosis(Cluster(served(hang_up), tls=ours)) == CUT
    assert diagnosis(Cluster(served(hang_up), tls=False)) == NO_ANSWER


def test_the_first_broker_that_is_there_is_looked_at(served: Callable[[Serve], str], authority: trustme.CA) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    assert diagnosis(Cluster(f"{nobody},{served(speaking(authority))}", tls=False)) == ENCRYPTED
    assert "nothing listens" in diagnosis(Cluster(nobody, tls=False))
    assert "nohost.invalid can't be resolved" in diagnosis(Cluster("nohost.invalid:9092", tls=False))
