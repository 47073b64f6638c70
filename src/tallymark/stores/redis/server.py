"""The connection to a Redis server: runs the script, reads hashes, and raises the errors that its answers report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from tallymark.errors import AccessDenied, BadInput, BatchTooLarge, DataRefused, TallymarkError, Unreachable
from tallymark.stores.redis import script
from tallymark.stores.redis.address import Address
from tallymark.stores.redis.errors import translated
from tallymark.stores.redis.keys import LEDGER, RedisKeys
from tallymark.stores.redis.script import ScriptInput

log = logging.getLogger(__name__)

T = TypeVar("T")


class RedisServer:
    """Connects at the first call."""

    def __init__(self, address: Address) -> None:
        self.name = address.name
        self._address = address
        self._keys = RedisKeys(address.tag)

    @cached_property
    def client(self) -> Any:
        return self._address.client()

    def ask(self, question: Callable[[Any], T]) -> T:
        """Call a function with the client and return its result."""
        with translated(self.name):
            return question(self.client)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if "client" in self.__dict__:
            self.client.close()
            del self.client

    def hashes(self, keys: Sequence[str]) -> list[dict[str, str]]:
        """Read these hashes atomically."""
        return (self.run(ScriptInput(reads=list(keys))) or []) if keys else []

    def run(self, work: ScriptInput) -> list[dict[str, str]] | None:
        """Run the script. Returns the hashes that it read; None if an expectation failed."""
        answer = self.answer(work)
        return [_fields(flat) for flat in answer[1]] if answer[0] == b"done" else None

    def answer(self, work: ScriptInput, *, divisible: bool = False) -> list[Any]:
        """Run the script and return its answer. ``divisible``: a batch that is too large can be split."""
        keys, arguments = work.keys(), work.arguments()
        if len(keys) + len(arguments) + 3 > script.MOST_ARGUMENTS:
            raise (BatchTooLarge if divisible else BadInput)(
                f"{self.name}: the batch needs {len(keys) + len(arguments)} arguments, but a Redis command takes "
                f"{script.MOST_ARGUMENTS}: lower limits.records"
            )
        try:
            with translated(self.name):
                answer = script.run(self.client, keys, arguments)
        except Unreachable as error:
            if type(error.__cause__).__name__ == "ReadOnlyError" and not self._address.cluster:
                # After a failover the address may lead to the new primary: drop the connections to the old server.
                self.client.connection_pool.disconnect()
            raise
        if answer[0] == b"broken" and not answer[1].decode().startswith(self._keys.table(LEDGER)):
            raise DataRefused(f"key {answer[1].decode()} holds a {answer[2].decode()}; nothing was written")
        if answer[0] == b"broken":
            raise TallymarkError(
                f"{self.name}: ledger key {answer[1].decode()} holds a {answer[2].decode()}, written by another "
                "program; delete it or choose another tag"
            )
        if answer[0] == b"denied":
            raise AccessDenied(
                f"{self.name}: the user may not call {answer[1].decode()}; nothing was written: grant it"
            )
        return answer

    def check_eviction(self) -> None:
        """Refuse a server that evicts keys when memory is full: it would evict positions too."""
        try:
            with translated(self.name):
                policy = self.client.info("memory").get("maxmemory_policy", "noeviction")
        except AccessDenied:
            log.info("maxmemory-policy unknown, the user may not call INFO store=%s", self.name)
            return
        if policy.startswith("allkeys"):
            raise BadInput(
                f"{self.name} evicts any key when memory is full (maxmemory-policy {policy}), including positions; set "
                "it to noeviction, or to volatile-ttl if other programs need eviction"
            )


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
