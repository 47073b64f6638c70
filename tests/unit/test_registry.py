"""Schemas come from a registry: once each, waited for while it is down, and refused in one sentence otherwise."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tallymark.core.tls import Tls
from tallymark.errors import AccessDenied, BadInput, TallymarkError, Unreachable
from tallymark.formats import registry as module
from tallymark.formats import registry_http
from tallymark.formats.registry import Reference, Registered, Schemas
from tallymark.formats.registry_server import Registry
from tests.support.background import Background, wait_for
from tests.support.registry import Reply, SchemaRegistry
from tests.support.tls import Files

SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
MONEY = '{"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}'
SECRET = "canary-pass"
PAGE = Reply(200, b"<!doctype html><title>Log in</title>", "text/html; charset=utf-8")


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files.make(tmp_path_factory.mktemp("tls") / "ours")


def schemas(server: SchemaRegistry, patience: float = 0.0, **login: Any) -> Schemas:
    return Schemas.of(Registry(server.url, **login), patience=patience)


def test_a_schema_is_asked_for_once(server: SchemaRegistry) -> None:
    id, _ = server.add("orders-value", SCHEMA)
    found = schemas(server).by_id(id)
    assert found == Registered(id, "AVRO", SCHEMA, guid=server.guid(id))
    assert schemas(server).by_id(id) is found, "the answer is known to the whole process"
    assert server.requests == [f"GET /schemas/ids/{id}"]


def test_threads_that_need_the_same_schema_ask_once(server: SchemaRegistry) -> None:
    id, _ = server.add("orders-value", SCHEMA)
    server.behaviour.seconds = 0.1
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: schemas(server).by_id(id), range(8)))
    assert len({one.text for one in found if one}) == 1
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_a_schema_has_its_type(server: SchemaRegistry, kind: str) -> None:
    id, _ = server.add("s", "text", kind)
    found = schemas(server).by_id(id)
    assert found is not None
    assert (found.kind, found.text) == (kind, "text")


def test_a_schema_that_is_not_there_is_asked_for_again_after_a_while(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = schemas(server)
    assert of.by_id(1) is None
    assert of.by_id(-1) is None, "ids are not negative"
    server.add("s", SCHEMA)
    assert of.by_id(1) is None
    assert len(server.requests) == 1
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    assert of.by_id(2) is None
    server.add("s", MONEY)
    assert of.by_id(2) is not None


def test_the_schemas_of_deleted_subjects_are_still_there(server: SchemaRegistry) -> None:
    id, _ = server.add("orders-value", SCHEMA)
    server.delete("orders-value")
    assert schemas(server).by_id(id) is not None
    with pytest.raises(BadInput, match="has no schema for subject orders-value"):
        schemas(server).latest("orders-value")


def test_a_schema_by_its_guid(server: SchemaRegistry) -> None:
    id, _ = server.add("s", SCHEMA)
    guid = server.guid(id)
    assert schemas(server).by_guid(guid) == Registered(None, "AVRO", SCHEMA, guid=guid)
    assert schemas(server).by_guid(guid) is not None
    assert len(server.requests) == 1
    assert schemas(server).by_guid("89791762-2336-4186-9674-299b90a802e2") is None


def test_a_registry_without_guids_has_no_schema_by_guid(server: SchemaRegistry) -> None:
    server.behaviour.guids = False
    assert schemas(server).by_guid("89791762-2336-4186-9674-299b90a802e2") is None
    wrong = Schemas.of(Registry(f"{server.url}/wrong"), patience=0)
    with pytest.raises(BadInput, match="has no path /schemas/types: correct the address"):
        wrong.by_guid("89791762-2336-4186-9674-299b90a802e2")


def test_the_latest_schema_of_a_subject_is_asked_for_each_time(server: SchemaRegistry) -> None:
    of = schemas(server)
    with pytest.raises(BadInput, match=r"has no schema for subject orders-value: register one, or set subject= or sch"):
        of.latest("orders-value")
    server.add("orders-value", SCHEMA)
    assert of.latest("orders-value") == Registered(1, "AVRO", SCHEMA, version=1, guid=server.guid(1))
    server.add("orders-value", MONEY)
    assert of.latest("orders-value").version == 2


def test_any_text_is_the_name_of_a_subject(server: SchemaRegistry) -> None:
    name = ":.ctx:a/b ü?#%"
    server.add(name, SCHEMA)
    assert schemas(server).latest(name).text == SCHEMA


@pytest.mark.parametrize("only_ids", [False, True])
def test_registering_twice_is_once(server: SchemaRegistry, only_ids: bool) -> None:
    server.behaviour.only_ids = only_ids
    first, again = (schemas(server).register("s", "AVRO", SCHEMA) for _ in range(2))
    assert first == again
    assert (first.id, first.text, first.version) == (1, SCHEMA, None if only_ids else 1)
    assert schemas(server).register("s", "JSON", '{"type": "object"}').kind == "JSON"


def test_what_is_no_schema_is_refused_with_the_registry_s_words(server: SchemaRegistry) -> None:
    with pytest.raises(BadInput, match=r"refused /subjects/s/versions: HTTP 422: Invalid schema {}: No type: {}$"):
        schemas(server).register("s", "AVRO", "{}")
    server.behaviour.replies = [Reply.error(409, 409, "Schema being registered is\n incompatible.")]
    with pytest.raises(BadInput, match=r"HTTP 409: Schema being registered is incompatible$"):
        schemas(server).register("s", "AVRO", SCHEMA)


def test_a_schema_is_looked_up_with_its_subject(server: SchemaRegistry) -> None:
    of = schemas(server)
    assert of.lookup("s", "AVRO", SCHEMA) is None, "no such subject"
    server.add("s", SCHEMA)
    assert of.lookup("s", "AVRO", SCHEMA) == Registered(1, "AVRO", SCHEMA, version=1, guid=server.guid(1))
    assert of.lookup("s", "AVRO", MONEY) is None, "another schema"
    assert of.lookup("s", "JSON", SCHEMA) is None, "another type"


def test_references_come_before_what_needs_them_and_each_once(server: SchemaRegistry) -> None:
    server.add("base", "base")
    server.add("left", "left", references=[("base", "base", 1)])
    server.add("right", "right", references=[("base", "base", 1)])
    id, _ = server.add("top", "top", references=[("left", "left", 1), ("right", "right", 1)])
    server.delete("base")
    found = schemas(server).by_id(id)
    assert found is not None
    assert found.references == ("base", "left", "right")
    assert len(server.requests) == 4
    assert schemas(server).latest("top").references == found.references
    assert len(server.requests) == 5, "versions never change"
    registered = schemas(server).register("more", "AVRO", "more", [Reference("left", "left", 1)])
    assert registered.references == ("base", "left")


def test_references_that_meet_again_and_again_are_followed_once(server: SchemaRegistry) -> None:
    server.add("0", "0")
    for level in range(1, 40):
        server.add(str(level), str(level), references=[(name, str(level - 1), 1) for name in "ab"])
    assert schemas(server).latest("39").references == tuple(map(str, range(39)))


def test_references_that_lead_back_or_nowhere_are_refused(server: SchemaRegistry) -> None:
    first, _ = server.add("a", "a")
    second, _ = server.add("b", "b", references=[("a", "a", 1)])
    server.refer(first, "b", 1)
    with pytest.raises(BadInput, match=r"the references of subject [ab], version 1, lead back to it"):
        schemas(server).by_id(second)
    third, _ = server.add("c", "c", references=[("gone", "gone", 3)])
    with pytest.raises(BadInput, match="does not have version 3 of subject gone, to which another schema refers"):
        schemas(server).by_id(third)


def test_a_login_with_a_password(server: SchemaRegistry, tmp_path: Path) -> None:
    server.behaviour.login = ("shop", f"{SECRET}:é")
    server.add("s", SCHEMA)
    assert schemas(server, username="shop", password=f"{SECRET}:é").latest("s")
    file = tmp_path / "password"
    file.write_text(f"{SECRET}:é\n")
    of = schemas(server, username="shop", password_file=str(file))
    assert of.latest("s")
    file.write_text("other")
    with pytest.raises(AccessDenied, match="refused user shop: check username= and the password") as refused:
        of.latest("s")
    assert SECRET not in str(refused.value)
    with pytest.raises(AccessDenied, match=r"refused this client: set a login with Registry\(username=..., password_"):
        schemas(server).latest("s")


def test_a_login_with_a_token(server: SchemaRegistry, tmp_path: Path) -> None:
    server.behaviour.token = SECRET
    server.add("s", SCHEMA)
    assert schemas(server, token=SECRET).latest("s")
    file = tmp_path / "token"
    file.write_text("expired\n")
    of = schemas(server, token_file=str(file))
    with pytest.raises(AccessDenied, match="refused the token: check it, because it may have expired"):
        of.latest("s")
    file.write_text(SECRET)
    assert of.latest("s"), "a token that is renewed is read again"


def test_a_missing_permission_is_named(server: SchemaRegistry) -> None:
    server.behaviour.always = Reply(403, b"<html>Forbidden</html>", "text/html")
    with pytest.raises(
        AccessDenied, match="denied user shop access to /subjects/s/versions/latest: grant the permission"
    ):
        schemas(server, patience=60, username="shop", password=SECRET).latest("s")


def test_a_login_without_encryption_is_a_warning_unless_it_stays_here(
    server: SchemaRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    schemas(server, username="shop", password=SECRET)
    assert not caplog.records
    for _ in range(2):
        Schemas.of(Registry("http://registry.example", username="shop", password=SECRET))
    assert [record.getMessage() for record in caplog.records] == [
        "the login is sent without encryption, write https:// registry=http://registry.example"
    ]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_busy_registry_is_waited_for(server: SchemaRegistry, status: int, caplog: pytest.LogCaptureFixture) -> None:
    server.add("s", SCHEMA)
    server.behaviour.replies = [Reply(status, b"<html>busy</html>", "text/html")]
    assert schemas(server, patience=60).latest("s").text == SCHEMA
    assert f"can't answer now: HTTP {status}" in caplog.text


def test_a_registry_that_is_down_is_waited_for(server: SchemaRegistry, caplog: pytest.LogCaptureFixture) -> None:
    server.add("s", SCHEMA)
    server.stop()
    with pytest.raises(Unreachable, match="can't be reached: nothing listens there; check address and port"):
        schemas(server).latest("s")
    caplog.clear()
    with Background(lambda: schemas(server, patience=60).latest("s")) as asking:
        wait_for(lambda: caplog.records)
        server.restart()
        assert asking.result().text == SCHEMA


def test_a_proxy_that_answers_for_a_registry_that_was_there_is_waited_for(server: SchemaRegistry) -> None:
    no_path = Reply(404, b"default backend - 404", "text/plain")
    (first, _), (later, _) = server.add("s", SCHEMA), server.add("s", MONEY)
    server.behaviour.replies = [no_path]
    with pytest.raises(BadInput, match="has no path /schemas/ids/1: correct the address"):
        schemas(server).by_id(first)
    assert schemas(server).by_id(first)
    server.behaviour.replies = [no_path]
    assert schemas(server, patience=10).by_id(later)


def test_waiting_ends_when_the_run_is_stopped(server: SchemaRegistry, caplog: pytest.LogCaptureFixture) -> None:
    server.behaviour.always = Reply.error(500, 50001, "Error in the backend data store")
    stop = threading.Event()
    of = Schemas.of(Registry(server.url), stop, patience=60)
    with Background(lambda: of.by_id(1), stop.set) as asking:
        wait_for(lambda: caplog.records)
        stop.set()
        asking.wait(5)
        assert isinstance(asking.error, Unreachable)
        assert "HTTP 500: Error in the backend data store" in str(asking.error)


def test_values_that_name_any_number_of_schemas_do_not_keep_a_run_from_ending(
    server: SchemaRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As values without framing do, of which each names another schema."""
    monkeypatch.setattr("tallymark.formats.registry.MOST_UNKNOWN", 3)
    stop = threading.Event()
    of = Schemas.of(Registry(server.url), stop)
    assert [of.by_id(id) for id in range(100, 104)] == [None] * 4
    assert "3 schemas are unknown, are values framed?" in caplog.text
    stop.set()
    with pytest.raises(Unreachable, match="was not asked for schema 104, because the run is ending"):
        of.by_id(104)
    assert len(server.requests) == 4


def test_one_thread_that_waits_does_not_keep_others_from_stopping(
    server: SchemaRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    server.behaviour.always = Reply.error(503, 503, "")
    over, stop = threading.Event(), threading.Event()
    patient = Schemas.of(Registry(server.url), over, patience=60)
    with Background(lambda: patient.by_id(1), over.set) as waiting:
        wait_for(lambda: caplog.records)
        stop.set()
        with pytest.raises(Unreachable):
            Schemas.of(Registry(server.url), stop, patience=60).by_id(1)
        assert waiting.alive
        waiting.close()
        assert isinstance(waiting.error, Unreachable)


def test_a_silent_registry_is_unreachable(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "SECONDS", 0.1)
    server.behaviour.seconds = 0.5
    with pytest.raises(Unreachable, match=r"it does not answer within 0\.1 s"):
        schemas(server).latest("s")


def test_an_answer_that_breaks_off_is_asked_for_again(server: SchemaRegistry) -> None:
    server.add("s", SCHEMA)
    server.behaviour.cut = True
    with pytest.raises(Unreachable, match="can't be reached: IncompleteRead"):
        schemas(server).latest("s")


def test_the_addresses_are_tried_in_turn_and_the_last_that_answered_first(server: SchemaRegistry) -> None:
    server.add("s", SCHEMA)
    with SchemaRegistry() as down:
        down.behaviour.always = Reply.error(503, 503, "starting")
        of = Schemas.of(Registry(f"{down.url}, {server.url}/"), patience=0)
        assert of.latest("s").text == SCHEMA
        assert of.latest("s").text == SCHEMA
        assert (len(down.requests), len(server.requests)) == (1, 2)
        server.behaviour.always = Reply.error(503, 503, "stopping")
        with pytest.raises(Unreachable, match="starting"):
            of.latest("s")


def html(status: int) -> Reply:
    return Reply(status, b"<html></html>", "text/html")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (PAGE, "answered /subjects/s/versions/latest with text/html instead of JSON: correct the address"),
        (html(404), "has no path /subjects/s/versions/latest: correct the address"),
        (Reply.error(404, 404, "HTTP 404 Not Found"), "has no path /subjects/s/versions/latest: correct the address"),
        (Reply(404, b"[]"), "has no path"),
        (Reply(200, b""), "instead of JSON"),
        (Reply(200, b"\xff"), "instead of JSON"),
        (Reply(200, b"[" * 100_000), "instead of JSON"),
        (Reply(200, b"[1]"), "answered with JSON that is not a schema"),
        (Reply(200, b"null"), "answered with JSON that is not a schema"),
        (Reply(200, b'{"schema": "x", "id": "1"}'), "answered with JSON that is not a schema"),
        (Reply(200, b'{"schema": "x", "id": 1, "references": [{}]}'), "answered with JSON that is not a schema"),
        (Reply(200, b'{"schema": "x"}'), "has no text or no id"),
        (Reply(200, b'{"id": 1}'), "has no text or no id"),
        (Reply(200, b'{"schema": "x", "id": 1, "schemaType": "THRIFT"}'), "of type THRIFT, which has no text or no id"),
        (html(400), "instead of JSON"),
        (Reply.error(405, 405, "HTTP 405"), "refused /subjects/s/versions/latest: HTTP 405"),
        (
            Reply(302, headers={"Location": f"https://id.example/login?next={SECRET}"}),
            "redirects to https://id.example/login:",
        ),
        (Reply(301, headers={"Location": "/elsewhere"}), "redirects to /elsewhere: give the address of the registry"),
        (Reply(307), "redirects to another address"),
    ],
)
def test_what_is_no_answer_of_a_registry_is_refused_at_once(server: SchemaRegistry, reply: Reply, said: str) -> None:
    server.behaviour.always = reply
    with pytest.raises(BadInput) as refused:
        schemas(server, patience=60, username="shop", password=SECRET).latest("s")
    assert said in str(refused.value)
    assert server.url in str(refused.value)
    assert SECRET not in str(refused.value)
    assert len(server.requests) == 1


def test_an_answer_that_is_too_large_is_refused(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "LARGEST", 1 << 20)
    server.behaviour.always = Reply(200, b" " * (1 << 20) + b"{}")
    with pytest.raises(BadInput, match="answered with more than 1 MB"):
        schemas(server, patience=60).latest("s")


def test_what_does_not_speak_http_is_refused(server: SchemaRegistry) -> None:
    server.behaviour.garbage = b"\x15\x03\x01\x00\x02\x02\x28"
    with pytest.raises(BadInput, match="does not answer in HTTP: correct the port, or write https://"):
        schemas(server, patience=60).latest("s")


def test_a_host_without_an_address_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"host registry\.invalid can't be resolved; correct its name"):
        Schemas.of(Registry("http://registry.invalid:8081"), patience=0).latest("s")
    with pytest.raises(BadInput, match="is not a host name; correct it"):
        Schemas.of(Registry(f"http://{'x' * 70}.invalid"), patience=60).latest("s")


def test_tls_with_an_authority_of_our_own(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    with SchemaRegistry(files) as server:
        server.add("s", SCHEMA)
        assert schemas(server, patience=60, tls=Tls(ca=str(files.ca))).latest("s").text == SCHEMA
        with pytest.raises(BadInput, match=r"its certificate is not trusted \(.*\): set its authority with Registry"):
            schemas(server, patience=60).latest("s")
        monkeypatch.setenv("TALLYMARK_REGISTRY_CA", str(files.ca))
        assert schemas(server, patience=60).latest("s").text == SCHEMA


def test_the_host_name_is_verified(files: Files) -> None:
    with SchemaRegistry(files) as server:
        server.add("s", SCHEMA)
        url = server.url.replace("localhost", "127.0.0.1")
        with pytest.raises(BadInput, match=r"its certificate is not for 127\.0\.0\.1: use its host name, or set"):
            Schemas.of(Registry(url, tls=Tls(ca=str(files.ca))), patience=60).latest("s")
        assert Schemas.of(Registry(url, tls=Tls(ca=str(files.ca), verify_hostname=False)), patience=60).latest("s")


def test_a_client_certificate(files: Files) -> None:
    with SchemaRegistry(files, wants_certificate=True) as server:
        server.add("s", SCHEMA)
        ours = Tls(ca=str(files.ca), cert=str(files.client), key=str(files.client_key))
        assert schemas(server, patience=60, tls=ours).latest("s").text == SCHEMA
        with pytest.raises(AccessDenied, match="set the client certificate that it requires with Registry"):
            schemas(server, patience=60, tls=Tls(ca=str(files.ca))).latest("s")
        wrong = Tls(ca=str(files.ca), cert=str(files.client), key=str(files.server_key))
        with pytest.raises(BadInput, match=r"TLS can't be set up from .*client\.pem.*the key of the certificate"):
            schemas(server, patience=60, tls=wrong).latest("s")


def test_tls_on_one_side_only(files: Files, server: SchemaRegistry) -> None:
    with pytest.raises(BadInput, match="does not use TLS: write http://, or correct the port"):
        Schemas.of(Registry(server.url.replace("http:", "https:")), patience=60).latest("s")
    with SchemaRegistry(files) as encrypted, pytest.raises(TallymarkError, match="https://"):
        Schemas.of(Registry(encrypted.url.replace("https:", "http:")), patience=0).latest("s")


def test_a_base_path() -> None:
    with SchemaRegistry(path="/apis/ccompat/v7") as server:
        server.add("s", SCHEMA)
        assert schemas(server).latest("s").text == SCHEMA
        with pytest.raises(BadInput, match="has a path, such as /apis/ccompat/v7"):
            Schemas.of(Registry(server.url.removesuffix("/apis/ccompat/v7")), patience=60).latest("s")


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(server: SchemaRegistry) -> None:
    id, _ = server.add("s", SCHEMA)
    of = schemas(server)
    server.behaviour.seconds = 0.5
    with Background(lambda: of.by_id(id)):
        wait_for(lambda: server.requests)
        # The thread holds the lock while it waits for the answer.
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=lambda: results.put(of.by_id(id) is not None))
        child.start()
        child.join(20)
        alive = child.is_alive()
        if alive:
            child.kill()
        assert not alive
        assert results.get()
