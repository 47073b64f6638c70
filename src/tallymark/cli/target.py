"""What a command works on: group, store, brokers and file, from options, the environment and the file."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tallymark.errors import BadInput

if TYPE_CHECKING:
    from tallymark.formats.registry import Schemas
    from tallymark.kafka.brokers import Brokers
    from tallymark.kafka.cluster import Cluster
    from tallymark.run.setup import Setup
    from tallymark.service.app import App
    from tallymark.spark.pipeline import Pipeline
    from tallymark.stores.contract import Store

FILE = "TALLYMARK_FILE"
OF_FILE = "or --file with a pipeline or an app"

StoreUrl = Annotated[
    str | None, typer.Option("--store", envvar="TALLYMARK_STORE", help="The ledger's URL, such as sqlite:///shop.db.")
]
BrokersOption = Annotated[
    str | None, typer.Option("--brokers", envvar="TALLYMARK_BROKERS", help="Kafka's address, such as localhost:9092.")
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", envvar=FILE, help="Take group, store and brokers from this pipeline or app."),
]
FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        envvar=FILE,
        help="A TOML file (docs/reference/toml.md), or a Python file that defines one tallymark.Pipeline or App.",
    ),
]
FileInstead = Annotated[Path | None, typer.Option("--file", "-f", help="The same as FILE.")]
GroupArgument = Annotated[str | None, typer.Argument(metavar="GROUP", help="The group; not needed with --file.")]
GroupOption = Annotated[str | None, typer.Option("--group", "-g", help="The group; not needed with --file.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="TALLYMARK_REGISTRY",
        help="The schema registry that knows the schemas of keys and values, such as http://localhost:8081.",
    ),
]
PartitionOption = Annotated[int | None, typer.Option("--partition", help="Only this partition.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without this option it is only shown.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Even while a run is alive: its next commit is refused.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the ledger.")]


class Target:
    """The target of a command. The file is loaded when something is needed that no option says."""

    def __init__(
        self,
        command: str,
        group: str | None = None,
        store: str | None = None,
        brokers: str | None = None,
        file: Path | None = None,
        typed: Collection[str] = (),
    ) -> None:
        """``typed`` names the options of the command line; the others are from the environment or tallymark.toml."""
        self._command, self._group, self._typed = command, group, typed
        if file is not None and "store" in typed and "file" not in typed:
            file = None
        # A file outranks the environment, and an option outranks TALLYMARK_FILE.
        self._store = store if file is None or "store" in typed else None
        self._brokers = brokers if file is None or "brokers" in typed else None
        self.file = file

    @cached_property
    def loaded(self) -> Pipeline | App:
        """What the file defines."""
        from tallymark.cli.load import load

        if self.file is None:
            raise BadInput(f"{self._command} needs a pipeline or an app: name its file, or set {FILE}")
        return load(self.file)

    def at(self, file: Path) -> Target:
        """The same target with a file that is named by an argument."""
        return Target(self._command, self._group, self._store, self._brokers, file, {*self._typed, "file"})

    @property
    def setup(self) -> Setup:
        """The settings of the one group of the file, or of the named group."""
        return self._setup(any_group=False)

    @property
    def group(self) -> str:
        if self.file is not None:
            return self.setup.group
        if self._group is None:
            raise BadInput(f"{self._command} needs the name of a group, {OF_FILE}")
        return self._group

    @property
    def groups(self) -> list[str] | None:
        """The named group, or all groups of the file; None without either: all groups of the store."""
        if self._group is not None:
            return [self.group]
        return self._groups_of_file() if self.file is not None else None

    @property
    def optional_store(self) -> str | None:
        return self._store or (self._setup(any_group=True).ledger_url if self.file is not None else None)

    @property
    def store(self) -> str:
        if (store := self.optional_store) is None:
            raise BadInput(f"{self._command} needs --store (or TALLYMARK_STORE), {OF_FILE}")
        return store

    @property
    def optional_cluster(self) -> Cluster | None:
        """The credentials of brokers that an option names come from the environment."""
        from tallymark.kafka.cluster import Cluster

        if self._brokers is not None:
            return Cluster(self._brokers)
        return self._setup(any_group=True).source.cluster if self.file is not None else None

    @property
    def named_cluster(self) -> Cluster | None:
        """The cluster that an option names."""
        return self.optional_cluster if self._brokers is not None else None

    @property
    def cluster(self) -> Cluster:
        if (cluster := self.optional_cluster) is None:
            raise BadInput(f"{self._command} needs --brokers (or TALLYMARK_BROKERS), {OF_FILE}")
        return cluster

    @property
    def optional_brokers(self) -> Brokers | None:
        from tallymark.kafka.brokers import Brokers

        return Brokers(cluster) if (cluster := self.optional_cluster) is not None else None

    @property
    def brokers(self) -> Brokers:
        from tallymark.kafka.brokers import Brokers

        return Brokers(self.cluster)

    def schemas(self, registry: str | None) -> Schemas | None:
        """The schemas of a registry that an option names, or else of the one that the file's formats name."""
        from tallymark.formats.registry import Schemas
        from tallymark.formats.registry_server import Registry
        from tallymark.formats.value import Debezium, Formatted

        if registry is not None:
            return Schemas.of(Registry(registry))
        if self.file is None:
            return None
        source = self._setup(any_group=True).source
        formats = (*source.formats.values(), source.value, source.key)
        inner = [one.inner if isinstance(one, Debezium) else one for one in formats]
        named = [one.server for one in inner if isinstance(one, Formatted) and one.server]
        return Schemas.of(named[0]) if named else None

    @contextmanager
    def ledger(self) -> Iterator[Store]:
        """Open the ledger, which must know the group if one is named."""
        from tallymark.operate.survey import ledger

        with ledger(self.store, *(self.groups or ())) as store:
            yield store

    @contextmanager
    def any_ledger(self) -> Iterator[Store]:
        """Open the ledger, whatever groups it knows."""
        from tallymark.operate.survey import ledger

        with ledger(self.store) as store:
            yield store

    def _setup(self, *, any_group: bool) -> Setup:
        from tallymark.cli.load import setup_of

        return setup_of(self.loaded, self.file or Path(), self._group, any_group=any_group)

    def _groups_of_file(self) -> list[str]:
        from tallymark.cli.load import setups_of

        return list(dict.fromkeys(setup.group for setup in setups_of(self.loaded)))


def targeted(
    group: Literal["argument", "option"] | None = "argument",
    *,
    store: bool = True,
    brokers: bool = True,
    file: Literal["argument", "option"] = "option",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a target, which becomes its first argument."""
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if group is not None:
        (arguments if group == "argument" else options)["group"] = GroupArgument if group == "argument" else GroupOption
    if file == "argument":
        arguments["file"], options["same_file"] = FileArgument, FileInstead
    if store:
        options["store"] = StoreUrl
    if brokers:
        options["brokers"] = BrokersOption
    if file == "option":
        options["file"] = FileOption

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @functools.wraps(command)
        def wrapper(context: typer.Context, **given: Any) -> None:
            values = {name: given.pop(name) for name in (*arguments, *options)}
            command(_target(context, values), **given)

        parameters = [
            _parameter("context", typer.Context, inspect.Parameter.empty),
            *(_parameter(name, kind) for name, kind in arguments.items()),
            *(_parameter(one.name, one.annotation, one.default) for one in own),
            *(_parameter(name, kind) for name, kind in options.items()),
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapper

    return decorate


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _target(context: typer.Context, values: dict[str, Any]) -> Target:
    sources = {name: context.get_parameter_source(name) for name in values}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    instead = values.pop("same_file", None)
    if instead is not None and "file" in typed:
        raise BadInput(f"{values['file']} and --file {instead} are both given; name one file")
    if instead is not None:
        values["file"], typed = instead, {*typed, "file"}
    return Target(context.command_path.partition(" ")[2], **values, typed=typed)


def operator() -> str:
    """The user and the host. In a container the user may have no name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"
