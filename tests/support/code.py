"""Checks the code on a page of the documentation without servers: Python, TOML, and the options of commands."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import tallymark as tm
from tests.support.command import in_process
from tests.support.pages import Block

NAMES: Mapping[str, type] = {
    "app": tm.App,
    "batch": tm.Batch,
    "consumer": tm.Consumer,
    "db": tm.Transaction,
    "pipeline": tm.Pipeline,
    "producer": tm.Producer,
    "record": tm.Record,
    "sink": tm.Sink,
}
"""What the names of the pages are where a page does not say it."""
SEPARATORS = {"|", "||", "&", "&&", ";", ";;", ">", ">>", "<", "(", ")"}
ASSIGNMENT = re.compile(r"\w+=")


def mistakes_in_python(block: Block) -> Iterator[str]:
    """Names and arguments that the public API does not have."""
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        yield f"line {error.lineno}: {error.msg}"
        return
    kinds = {**NAMES, **_assigned(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from _unknown_imports(node)
        elif isinstance(node, ast.Attribute) and (owner := _owner(node, kinds)) and not hasattr(owner, node.attr):
            yield f"line {node.lineno}: {ast.unparse(node)} does not exist"
        elif isinstance(node, ast.Call):
            yield from _unknown_arguments(node, kinds)


def _assigned(tree: ast.AST) -> dict[str, Any]:
    """The names to which the block assigns an object of a public class, and that class; None of any other value."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr | None, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.withitem):
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and target.id not in NAMES:
                found[target.id] = _public(value.func) if isinstance(value, ast.Call) else None
    return found


def _public(node: ast.expr) -> Any:
    """The public name that ``tm.Name`` is."""
    is_public = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tm"
    return getattr(tm, node.attr, None) if is_public and isinstance(node, ast.Attribute) else None


def _owner(node: ast.Attribute, kinds: Mapping[str, Any]) -> Any:
    """What has the attribute: the package, or the class of the object."""
    if not isinstance(node.value, ast.Name):
        return _public(node.value)
    return tm if node.value.id == "tm" else _complete(kinds.get(node.value.id))


def _complete(kind: Any) -> Any:
    """The class, if it has all attributes of its objects. A dataclass has fields besides, a batch its records."""
    return kind if kind in (tm.App, tm.Consumer, tm.Pipeline, tm.Producer, tm.Sink) else None


def _unknown_imports(node: ast.ImportFrom | ast.Import) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules = {alias.name: "" for alias in node.names}
    else:
        modules = {f"{node.module}:{alias.name}": alias.name for alias in node.names}
    for place, name in modules.items():
        module = place.partition(":")[0]
        if module.partition(".")[0] == "tallymark" and name and not hasattr(importlib.import_module(module), name):
            yield f"line {node.lineno}: {module} has no {name}"


def _unknown_arguments(node: ast.Call, kinds: Mapping[str, Any]) -> Iterator[str]:
    called = _public(node.func)
    if called is None and isinstance(node.func, ast.Attribute):
        owner = _owner(node.func, kinds)
        called = getattr(owner, node.func.attr, None) if inspect.isclass(owner) else None
    if not callable(called) or (inspect.isclass(called) and issubclass(called, Exception)):
        return
    parameters = inspect.signature(called).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    known = {one.name for one in parameters}
    for keyword in node.keywords:
        if keyword.arg and keyword.arg not in known:
            yield f"line {node.lineno}: {ast.unparse(node.func)} has no argument {keyword.arg}"


def whole_file(block: Block) -> str:
    """A TOML block as a file that can be loaded: a part of a pipeline's file gets the rest."""
    said = tomllib.loads(block.text)
    source = {
        "brokers": "localhost:9092",
        "topics": ["orders"],
        "format": {"json": "id BIGINT"},
        **said.get("source", {}),
    }
    if isinstance(source["topics"], dict) and "format" not in said.get("source", {}):
        del source["format"]
    tables = said.get("tables") or {"orders": {"sql": "SELECT value.* FROM records"}}
    whole = {"group": "shop", "store": "sqlite:///shop.db", **said, "source": source, "tables": tables}
    return "".join(f"{name} = {_toml(value)}\n" for name, value in whole.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def commands(text: str) -> Iterator[list[str]]:
    """The calls of ``tallymark`` in a line of a shell."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters, words = "#", []
    for word in [*lexer, ";"]:
        if word not in SEPARATORS:
            words.append(word)
            continue
        while words and ASSIGNMENT.match(words[0]):
            del words[0]
        if words[:1] == ["tallymark"]:
            yield words[1:]
        words = []


def mistake_in_command(arguments: list[str]) -> str | None:
    """What a call gets wrong: a command or an option that does not exist. ``--help`` keeps it from doing anything."""
    done = in_process(*arguments, "--help")
    return None if done.returncode == 0 else done.stderr
