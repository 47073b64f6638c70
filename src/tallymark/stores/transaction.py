"""The transaction that a handler gets: its writes and the positions commit together or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from tallymark.core.merging import MergeFunction
from tallymark.core.replica import check_options, replica, with_key
from tallymark.core.tables import TableSpec, Write, WrittenTable, check_exact
from tallymark.errors import BadInput
from tallymark.stores.handler_rows import Rows

OVER = "this transaction has ended: use it only inside its block"
ENDS_ITSELF = "the batch commits when the block ends; raise to roll back"


class Transaction(ABC):
    """The transaction of one batch, for one thread at a time. Each kind of store adds its own commands."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    written: dict[str, int]
    """The number of rows that ``write`` has written to each table, without those that a savepoint rolled back."""
    tables: set[WrittenTable]
    """How ``write`` has written to these tables, including what a savepoint rolled back."""
    defers = False
    """Whether the store has deferred constraints, so that ``check`` may refuse what a later statement would correct."""
    delivery = "exactly-once"
    """How the run delivers what this transaction writes."""
    group: str | None = None
    """The group whose batch this is, if its positions commit in this transaction."""
    _over = False

    @abstractmethod
    def write(
        self,
        table: str,
        rows: Rows,
        *,
        key: str | Sequence[str] = (),
        write: Write | Literal["replica"] = "append",
        version: str | None = None,
        create: bool = True,
        evolve: bool = False,
        merge: Mapping[str, MergeFunction] | None = None,
        inexact: bool = False,
    ) -> None:
        """Bulk-load dicts or an Arrow table, all rows or none.

        A key that is missing in a dict is NULL. If several rows have the same key, the last row counts; with
        ``version`` the row with the highest version, with ``write="ignore"`` the first row; with ``write="merge"`` all
        rows are combined as ``merge`` says. ``write="replica"`` takes ``records.changes()``. The other options are
        those of a pipeline's table.
        """

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Roll back the block if it raises, and re-raise the error. Savepoints nest."""

    @abstractmethod
    def check(self) -> None:
        """Run now the checks that the store would defer to the commit. Raises ``DataRefused`` if they fail."""

    def _spec(
        self,
        table: str,
        key: str | Sequence[str],
        write: Write | Literal["replica"],
        version: str | None,
        *,
        create: bool,
        evolve: bool,
        merge: Mapping[str, MergeFunction] | None,
        inexact: bool,
    ) -> TableSpec:
        if evolve not in (True, False):
            raise BadInput(f"table {table}: evolve={evolve!r} is not known here; set evolve=True to add columns")
        columns, merged = (key,) if isinstance(key, str) else tuple(key), tuple((merge or {}).items())
        if write == "replica":
            check_options(table, version=version, merge=merge, inexact=inexact)
            return with_key(replica(table, columns, create=create, evolve=evolve))
        spec = TableSpec(table, columns, write, version, create=create, evolve=evolve, merge=merged, inexact=inexact)
        check_exact(spec, self.delivery)
        return spec

    def _check_open(self) -> None:
        if self._over:
            raise BadInput(OVER)
