"""Defaults of the commands from ``tallymark.toml``, for what neither an option nor the environment sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tallymark.core.credentials import assumed
from tallymark.errors import BadInput

if TYPE_CHECKING:
    from tallymark.core.tls import Tls
    from tallymark.kafka.cluster import Sasl

FILE, VARIABLE = "tallymark.toml", "TALLYMARK_CONFIG"
WAYS_IN = ("TALLYMARK_SASL_", "TALLYMARK_TLS")


def assume(context: typer.Context) -> None:
    """Set the defaults of the command that is about to run, while the context lives."""
    path = _file()
    if path is None:
        return
    from tallymark.cli.toml.complaints import validated
    from tallymark.cli.toml.document import read
    from tallymark.cli.toml.model import Defaults
    from tallymark.kafka.cluster import Cluster

    document = read(path)
    said = validated(Defaults, document)
    with document.blamed("store"):
        store = said.store.full_url() if said.store else None
    if said.brokers is not None:
        with document.blamed("brokers"):
            # Without the environment's credentials, because the file may have its own.
            Cluster(said.brokers, tls=False)
    given = {"TALLYMARK_STORE": store, "TALLYMARK_BROKERS": said.brokers}
    context.default_map = _by_command(
        getattr(context.command, "loaded", {}), {name: value for name, value in given.items() if value}
    )
    if not any(name.startswith(WAYS_IN) for name in os.environ):
        _enter(context, {**_sasl(said.security), **_tls(said.tls)})


def _file() -> Path | None:
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_file():
        raise BadInput(f"{VARIABLE}={named}: there is no such file; correct or unset the variable")
    path = Path(named or FILE)
    return path if path.is_file() else None


def _by_command(commands: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The format of click: for every command, the values of those options that also have a variable."""
    found: dict[str, Any] = {}
    for name, command in commands.items():
        if hasattr(command, "commands"):
            found[name] = _by_command(command.commands, given)
        else:
            found[name] = {option.name: given[option.envvar] for option in command.params if option.envvar in given}
    return found


def _enter(context: typer.Context, variables: Mapping[str, str]) -> None:
    """Clients read credentials from these variables. Child processes would inherit the environment itself."""
    assumed.update(variables)
    context.call_on_close(assumed.clear)


def _sasl(said: Sasl | None) -> dict[str, str]:
    names = ("mechanism", "username", "password", "password_file", "token_url", "scope")
    return {f"TALLYMARK_SASL_{name.upper()}": value for name in names if said and (value := getattr(said, name))}


def _tls(said: Tls | bool | None) -> dict[str, str]:
    if said is None or isinstance(said, bool):
        return {} if said is None else {"TALLYMARK_TLS": "on" if said else "off"}
    names = ("ca", "cert", "key", "key_password")
    files = {f"TALLYMARK_TLS_{name.upper()}": value for name in names if (value := getattr(said, name))}
    return {"TALLYMARK_TLS": "on", "TALLYMARK_TLS_VERIFY_HOSTNAME": "on" if said.verify_hostname else "off", **files}
