"""What ``reset`` and ``import`` have in common: finding the group, and showing where positions go."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tallymark.cli.target import Target, target
from tallymark.core.spans import Log, Partition, Position
from tallymark.errors import BadInput, UnknownPartition
from tallymark.kafka.brokers import Brokers
from tallymark.operate.survey import up_to_date
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_existing, open_store


def needed_target(file: Path | None, group: str | None, store: str | None, brokers: str | None) -> Target:
    of = target(file, group, store, brokers)
    if of.group is None or of.store is None:
        raise BadInput("name the group and --store (or TALLYMARK_STORE), or --file with a pipeline")
    return of


def needed_brokers(of: Target, command: str) -> Brokers:
    if of.cluster is None:
        raise BadInput(f"{command} needs --brokers (or TALLYMARK_BROKERS), or --file with a pipeline")
    return Brokers(of.cluster)


@contextmanager
def opened(of: Target, *, new: bool = False) -> Iterator[Store]:
    """The store, which must be there, unless it is to be made."""
    store = (open_store if new else open_existing)(of.store or "")
    try:
        with up_to_date(store.name):
            yield store
    finally:
        store.close()


def positions(store: Store, group: str) -> dict[Partition, Position]:
    return {one.partition: one for one in store.positions(group).get(group, [])}


def logs(brokers: Brokers, partitions: Collection[Partition]) -> dict[Partition, Log]:
    """What the brokers hold of these, all of which must be there."""
    topics = brokers.topics(sorted({one.topic for one in partitions}))
    there = {one for topic in topics.values() for one in topic.partitions}
    for missing in sorted(set(partitions) - there):
        raise UnknownPartition(f"topic {missing.topic} has no partition {missing.number}; correct --topic or the file")
    return brokers.logs({name: topic.only(partitions) for name, topic in topics.items()})


def counted(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def say(words: str, style: str | None = None, *, aside: bool = False) -> None:
    """One line, never broken; on stderr if stdout is for programs."""
    Console(stderr=aside).print(words, style=style, highlight=False, markup=False, soft_wrap=True)


def said(given: Mapping[str, Any]) -> list[str]:
    """Those of these options that were given; 0 is a value like others."""
    return [name for name, value in given.items() if value is not None and value is not False]


def only_one(command: str, given: Mapping[str, Any], ways: str) -> str:
    """The one of these options that was given."""
    chosen = said(given)
    if len(chosen) != 1:
        what = f"{' and '.join(chosen)} exclude each other" if chosen else "nothing says where to"
        raise BadInput(f"{command}: {what}; give one of {ways}")
    return chosen[0]
