"""Writes the parts of the reference that the code determines: ``python -m tools.reference``.

``docs/reference/commands.md`` is written from the parsers of the command line. In ``docs/reference/python.md`` the text
between ``<!-- Name -->`` and ``<!-- end -->`` is written from the signatures and docstrings of the public names.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import typer

import tallymark
from tallymark import errors
from tallymark.cli.main import Commands
from tallymark.cli.output import FAILED, FOUND, INTERRUPTED
from tallymark.core.drift import OnDrift
from tallymark.core.plan import OnLoss
from tallymark.core.tables import Evolve, Write
from tallymark.core.unmatched import Unmatched
from tallymark.kafka.membership import Strategy
from tallymark.run import setup
from tallymark.run.commit import Delivery
from tallymark.run.setup import Settings, Setup
from tallymark.run.until import Until
from tallymark.service.workers import Order
from tallymark.spark.pipeline import Road
from tools.markdown import ROOT

COMMANDS = ROOT / "docs" / "reference" / "commands.md"
PYTHON = ROOT / "docs" / "reference" / "python.md"
WIDTH = 100
METHODS = {
    "App": "listen template change run backfill replay stop",
    "Batch": "transaction to_arrow dead",
    "Consumer": "batches positions backfill replay stop",
    "Pipeline": "table run backfill replay",
    "Producer": "send transaction flush close statistics",
    "Records": "to_arrow values_to_arrow values changes",
    "Sink": "table foreach_batch close",
    "Start": "parse at explicit uncommitted",
    "Transaction": "write savepoint check",
}
"""The methods that users call. The others are for other modules."""
CHOICES = {
    "Delivery": Delivery,
    "Evolve": Evolve,
    "OnDrift": OnDrift,
    "OnLoss": OnLoss,
    "Order": Order,
    "Road": Road,
    "Strategy": Strategy,
    "Unmatched": Unmatched,
    "Until": Until,
    "Write": Write,
}
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = f"""\
# Commands

<!-- Written by tools/reference.py from the parsers of the command line: make reference. -->

`tallymark COMMAND --help` prints the same. Options before the command: `-v` and `-vv` log more, `--log-format json`
writes logs and errors as JSON, `--version` prints the version. Every command has `-v`, too.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| {FOUND} | it found something wrong: `audit`, `doctor`, `check`, `status --fail`, `run --fail-on-dead`, `demo` |
| {FAILED} | it could not look, was used wrongly, or its run ended with an error, which is one sentence on stderr |
| {INTERRUPTED} | Ctrl-C, unless it ends a run after its batch |
"""


def main() -> None:
    COMMANDS.write_text(commands())
    PYTHON.write_text(python(PYTHON.read_text()))


def commands() -> str:
    """The page of all commands."""
    parts = [HEAD]
    for panel in dict.fromkeys(one.panel for one in Commands.listed.values()):
        parts.append(f"## {panel}\n")
        for name, one in Commands.listed.items():
            if one.panel == panel:
                parts += _command(one.load(name), f"tallymark {name}")
    return "\n".join(parts)


def _command(command: Any, called: str) -> Iterator[str]:
    yield f"### {called}\n"
    yield f"{_sentences(command.help or '')}\n"
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _command(one, f"{called} {name}")
        return
    context = typer.Context(command, info_name=called)
    yield f"```text\n{called} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = [_row(parameter, context) for parameter in command.params if parameter.name not in ("help", "verbose")]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows, ""])
    example = (command.epilog or "").removeprefix("Example: ")
    if example:
        yield f"```console\n$ {example}\n```\n"


def _row(parameter: Any, context: Any) -> str:
    """A line of the table of options. What an option takes is in pointed brackets."""
    if parameter.param_type_name == "argument":
        names = [parameter.metavar or parameter.name.upper()]
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        if not parameter.is_flag:
            names[0] += f" {parameter.display_type(context)}"
    words = _sentences(parameter.help or "")
    if parameter.envvar:
        words += f" Variable: `{parameter.envvar}`."
    if parameter.default not in (None, False, "", [], 0) and not callable(parameter.default):
        words += f" Default: `{parameter.default}`."
    return f"| {', '.join(f'`{_cell(name)}`' for name in names)} | {_cell(words)} |"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _sentences(text: str) -> str:
    """A help text in Markdown: options and variables are code."""
    return re.sub(r"(?<!`)(--[a-z][\w-]*|TALLYMARK_\w+)", r"`\1`", text).strip()


def python(page: str) -> str:
    """The page of the public names, with its generated parts as the code has them."""
    return MARKED.sub(lambda match: f"{match[1]}{_generated(match[2])}\n{match[3]}", page)


def _generated(name: str) -> str:
    if name == "Errors":
        tree = inspect.getdoc(errors) or ""
        return f"```text\n{textwrap.dedent(tree.split(chr(10) * 2)[1])}\n```"
    if name == "Settings":
        return _settings()
    described = getattr(tallymark, name)
    parts = [f"```py\n{_signature(name, described)}\n```", prose(inspect.getdoc(described) or "")]
    for method in METHODS.get(name, "").split():
        function = inspect.getattr_static(described, method)
        function = getattr(function, "__func__", function)
        parts.append(
            f"### {name}.{method}\n\n```py\n{_method(function)}\n```\n\n{prose(inspect.getdoc(function) or '')}"
        )
    return "\n\n".join(part for part in parts if part)


def _settings() -> str:
    """The settings that pipelines, apps and consumers share, and what may be written for their types."""
    defaults = {one.arg: one.value for one in _fields(_tree(Setup))}
    rows = [
        f"| `{one.arg}` | {_type(one.annotation)} | `{_plain(' = ' + defaults[one.arg], vars(setup))[3:]}` |"
        for one in _fields(_tree(Settings))
    ]
    kinds = [
        f"| `{name}` | {_type(' | '.join(map(_choice, get_args(kind))))} |" for name, kind in sorted(CHOICES.items())
    ]
    return "\n".join(
        ["| setting | type | default |", "|---|---|---|", *rows, "", "| type | values |", "|---|---|", *kinds]
    )


def _choice(one: Any) -> str:
    """A value of a Literal, or a type."""
    return one.__name__ if isinstance(one, type) else " | ".join(map(repr, get_args(one) or [one]))


def _type(annotation: str) -> str:
    return " or ".join(f"`{one}`" for one in annotation.split(" | "))


def prose(docstring: str) -> str:
    """A docstring in Markdown, without its examples: the page has examples that run."""
    paragraphs = (one for one in docstring.split("\n\n") if not one.startswith(">>>"))
    text = "\n\n".join(paragraphs).replace("``", "`")
    return re.sub(r"docs/(\w+)/([\w-]+\.md)", r"[\2](../\1/\2)", text)


class Field:
    """A parameter or a field, as it is written."""

    def __init__(self, arg: str, annotation: str, value: str = "") -> None:
        self.arg, self.annotation, self.value = arg, annotation, value

    def __str__(self) -> str:
        return f"{self.arg}: {self.annotation}" + (f" = {self.value}" if self.value else "")


def _signature(name: str, kind: type) -> str:
    """How an object of the class is made: by the parameters of ``__init__``, or the fields of a dataclass."""
    tree = _tree(kind)
    inits = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    if inits:
        return _called(name, _parameters(inits[0], vars(sys.modules[kind.__module__])))
    return _called(name, [] if name == "Transaction" else [str(one) for one in _fields(tree)])


def _method(function: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return _called(node.name, _parameters(node, function.__globals__)) + returned


def _called(name: str, parameters: list[str]) -> str:
    line = f"{name}({', '.join(parameters)})"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + ")"


def _parameters(node: ast.FunctionDef, constants: Mapping[str, Any]) -> list[str]:
    """The parameters as they are written, without ``self``."""
    arguments = node.args
    for one in (arguments.posonlyargs, arguments.args):
        if one and one[0].arg in ("self", "cls"):
            del one[0]
    written = [re.sub(r"^(\w+: .*?)(?<![=<>!])=(?=[^\]]*$)", r"\1 = ", one) for one in _split(ast.unparse(arguments))]
    return [_plain(one, constants) for one in written]


def _plain(parameter: str, constants: Mapping[str, Any]) -> str:
    """The parameter with the value of a constant that is its default."""
    before, equal, name = parameter.rpartition(" = ")
    if not name.isupper() or name not in constants:
        return parameter
    value = constants[name]
    return f"{before}{equal}{getattr(value, 'name', value)!r}"


def _split(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _fields(tree: ast.ClassDef) -> list[Field]:
    fields = []
    for node in tree.body:
        is_field = isinstance(node, ast.AnnAssign) and "init=False" not in ast.unparse(node)
        if is_field and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields.append(Field(node.target.id, ast.unparse(node.annotation), _default(node.value)))
    return fields


def _default(node: ast.expr | None) -> str:
    """The default of a field; of ``field(default_factory=Group)`` it is ``Group()``."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).lower().endswith("field"):
        return ast.unparse(node) if node else ""
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if "default_factory" in given:
        return {"dict": "{}", "list": "[]"}.get(given["default_factory"], f"{given['default_factory']}()")
    return given.get("default", "")


def _tree(kind: type) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


if __name__ == "__main__":
    main()
