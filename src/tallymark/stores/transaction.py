"""The open transaction that a handler gets: what it writes commits together with the positions, or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tallymark.errors import BadInput
from tallymark.shape import TableSpec, Write
from tallymark.stores.given import Rows

OVER = "this transaction is over: use it inside its block, and only there"
ENDS_ITSELF = "the batch commits when the block ends; raise to roll back"


class Transaction(ABC):
    """One batch's transaction, for one thread at a time. Beside this, each kind of store offers commands of its own."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    written: dict[str, int]
    """How many rows ``write`` has put into each table, without those that a savepoint has undone."""
    _over = False

    @abstractmethod
    def write(
        self,
        table: str,
        rows: Rows,
        *,
        key: str | Sequence[str] = (),
        write: Write = "append",
        version: str | None = None,
        create: bool = True,
        evolve: bool = False,
    ) -> None:
        """Write dicts or an Arrow table over the store's bulk road, all of them or none.

        A key that a dict lacks is NULL. Of several rows for a key the last one counts: with ``version`` the one with
        the highest version, with ``write="ignore"`` the first. The other options are those of a pipeline's table.
        """

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what the block did if it raises, and let the error pass. Savepoints nest."""

    @abstractmethod
    def check(self) -> None:
        """Have the store look now at what it would look at only in the commit: ``DataRefused`` if that would fail."""

    def _check_open(self) -> None:
        if self._over:
            raise BadInput(OVER)


def spec_for(
    table: str, key: str | Sequence[str], write: Write, version: str | None, *, create: bool, evolve: bool
) -> TableSpec:
    return TableSpec(
        table, (key,) if isinstance(key, str) else tuple(key), write, version, create=create, evolve=evolve
    )
