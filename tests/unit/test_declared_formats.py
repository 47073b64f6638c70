"""Declarations of formats and registries: what is completed from the environment, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tallymark as tm
from tallymark.errors import BadInput

SECRET = "canary-pass"
SCHEMA = '{"type": "record", "name": "Order", "fields": []}'
PEM = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n"


def test_a_registry_by_its_address() -> None:
    assert tm.Avro("https://registry:8081").registry == tm.Registry("https://registry:8081")
    assert tm.Registry(" https://a/base/ ,HTTP://b:8081").addresses == ["https://a/base", "http://b:8081"]


@pytest.mark.parametrize(
    "url",
    ["", "registry:8081", "kafka://a", "https://", "https://a,", "https://a:port", "https://[a", "https://a:99999"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="write it like https://registry:8081"):
        tm.Registry(url)


@pytest.mark.parametrize("rest", ["/?key=canary-pass", "/#canary-pass", "/canary-pass x", "/canary-pässe"])
def test_parts_that_the_address_of_a_registry_does_not_have_are_refused(rest: str) -> None:
    with pytest.raises(
        BadInput, match="the address has a query, a fragment, or signs that URLs do not have"
    ) as refused:
        tm.Registry(f"https://registry{rest}")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("user", ["shop:canary-pass", "canary-pass"])
def test_a_login_in_the_address_is_refused(user: str) -> None:
    with pytest.raises(BadInput, match="contains a user or a password; use username= and password_file=") as refused:
        tm.Avro(f"https://a:8081,https://{user}@registry:8081")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ({"username": "shop"}, "a login needs username= and either password= or password_file="),
        ({"password": SECRET}, "a login needs username="),
        ({"username": "a:b", "password": SECRET}, "username= contains a colon"),
        ({"username": "shop", "password": SECRET, "password_file": "x"}, "password= and password_file= are both given"),
        ({"token": SECRET, "token_file": "x"}, "token= and token_file= are both given"),
        ({"username": "shop", "password": SECRET, "token": "x"}, "username= and token= are both given"),
        ({"token": f"{SECRET}\n"}, "the token has signs that HTTP does not allow"),
        ({"username": "shop", "password_file": "/no/such/file"}, "/no/such/file can't be read"),
        ({"token_file": "/no/such/file"}, "/no/such/file can't be read"),
    ],
)
def test_what_can_t_be_a_login_is_refused(login: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        tm.Registry("https://registry", **login)
    assert SECRET not in str(refused.value)


def test_tls_needs_an_encrypted_address() -> None:
    with pytest.raises(BadInput, match="tls= needs an address that starts with https://"):
        tm.Registry("http://registry", tls=tm.Tls())


def test_no_secret_is_shown() -> None:
    for registry in (
        tm.Registry("https://r", "shop", SECRET),
        tm.Registry("https://r", token=SECRET, tls=tm.Tls(key_password=SECRET)),
    ):
        assert SECRET not in repr(registry)
        assert SECRET not in repr(tm.Avro(registry))


def test_the_login_comes_from_the_environment_unless_the_program_has_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("from a file\n")
    (tmp_path / "ca.pem").write_text(PEM)
    file = str(tmp_path / "password")
    monkeypatch.setenv("TALLYMARK_REGISTRY_USERNAME", "shop")
    monkeypatch.setenv("TALLYMARK_REGISTRY_PASSWORD_FILE", file)
    monkeypatch.setenv("TALLYMARK_REGISTRY_CA", str(tmp_path / "ca.pem"))
    ca = tm.Tls(ca=str(tmp_path / "ca.pem"))
    assert tm.Registry("https://r") == tm.Registry("https://r", "shop", password_file=file, tls=ca)
    assert tm.Registry("https://r").password_text() == "from a file"
    assert tm.Registry("https://r", token="x").username is None
    assert tm.Registry("https://r", tls=tm.Tls()).tls == tm.Tls()
    assert tm.Registry("http://r").tls is None
    monkeypatch.setenv("TALLYMARK_REGISTRY_PASSWORD", SECRET)
    with pytest.raises(BadInput, match="TALLYMARK_REGISTRY_PASSWORD and TALLYMARK_REGISTRY_PASSWORD_FILE are both set"):
        tm.Registry("https://r")
    monkeypatch.delenv("TALLYMARK_REGISTRY_PASSWORD_FILE")
    assert tm.Registry("https://r").password == SECRET
    monkeypatch.setenv("TALLYMARK_REGISTRY_TOKEN", SECRET)
    with pytest.raises(BadInput, match="username= and token= are both given"):
        tm.Registry("https://r")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({}, r"Avro\(\) needs registry= or schema="),
        ({"schema": SCHEMA, "subject": "s"}, "need registry="),
        ({"schema": SCHEMA, "ids": "headers"}, "need registry="),
        ({"schema": SCHEMA, "register": True}, "need registry="),
        ({"registry": "https://r", "register": True}, "needs schema=, the schema to register"),
        ({"registry": "https://r", "ids": "header"}, r"Avro\(ids='header'\) is not known; write 'values' or 'headers'"),
        ({"schema": '{"type": '}, "is not JSON: .*; write an Avro schema, or the path of its file"),
        ({"schema": "[" * 100_000}, "is not JSON: it is nested too deeply"),
        (
            {"schema": "/no/such/order.avsc"},
            r"Avro\(schema='/no/such/order.avsc'\): the file can't be read: No such fi",
        ),
        ({"schema": ""}, "the file can't be read"),
        ({"schema": "a\0b"}, "the file can't be read"),
    ],
)
def test_what_is_no_declaration_of_avro_is_refused(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        tm.Avro(**declared)


def test_a_schema_is_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(f"\ufeff\n{SCHEMA}\n")
    assert tm.Avro(schema=str(file)) == tm.Avro(schema=f" {SCHEMA} ")
    assert tm.Avro(schema='"long"').schema == '"long"'
    file.write_text("7")
    with pytest.raises(BadInput, match="is not an Avro schema; write a JSON object"):
        tm.Avro(schema=str(file))
    file.write_bytes(b"\xff")
    with pytest.raises(BadInput, match="the file can't be read: not UTF-8 text"):
        tm.Avro(schema=str(file))


def test_a_subject_is_that_of_the_topic_unless_it_is_given() -> None:
    avro = tm.Avro("https://r")
    assert (avro.subject_of("orders"), avro.subject_of("orders", "key")) == ("orders-value", "orders-key")
    assert tm.Avro("https://r", subject="s").subject_of("orders", "key") == "s"
