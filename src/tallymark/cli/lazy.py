"""A group of commands whose modules are imported only when one of them runs."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tallymark.cli.logs import LEVELS


@dataclass(frozen=True)
class Command:
    """How a command is listed, and where it is: ``module:attribute``, a function or a ``typer.Typer``."""

    place: str
    panel: str
    summary: str
    example: str | None = None

    def stub(self, name: str) -> TyperCommand:
        return TyperCommand(name, help=self.summary, rich_help_panel=self.panel)

    def load(self, name: str) -> Any:
        module, _, attribute = self.place.partition(":")
        found = getattr(importlib.import_module(f"tallymark.cli.{module}"), attribute)
        epilog = f"Example: {self.example}" if self.example else None
        command = typer.main.get_command(found if isinstance(found, typer.Typer) else _app(found, epilog))
        command.name = name
        _prepare(command)
        return command


class LazyGroup(TyperGroup):
    """Lists its commands by their summaries, for the help and for shell completion, and imports the one that runs."""

    listed: Mapping[str, Command] = {}

    def __init__(self, **settings: Any) -> None:
        stubs = {name: one.stub(name) for name, one in self.listed.items()}
        super().__init__(**{**settings, "commands": stubs})
        self.loaded: dict[str | None, Any] = {}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        if stub is not None and name not in self.loaded:
            self.loaded[name] = self.listed[str(name)].load(str(name))
        return name, self.loaded.get(name), rest


def _app(function: Any, epilog: str | None) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(epilog=epilog)(function)
    return app


def _prepare(command: Any) -> None:
    """Let the terminal wrap the help, and let the command take ``-v`` in addition to the one before it."""
    for one in getattr(command, "commands", {}).values():
        _prepare(one)
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    if not hasattr(command, "commands"):
        (option,) = typer.main.get_command(_app(_only_verbose, None)).params
        option.expose_value = False
        command.params.append(option)


def _more(context: typer.Context, value: int) -> int:
    logger = logging.getLogger("tallymark")
    before = context.find_root().params.get("verbose", 0)
    logger.setLevel(LEVELS[min(before + value, len(LEVELS) - 1)])
    return value


def _only_verbose(
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            callback=_more,
            help="Log more: -v facts, -vv everything.",
        ),
    ] = 0,
) -> None:
    """Carries the option."""
