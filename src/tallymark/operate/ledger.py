"""Creates, upgrades and prunes a ledger, for administrators."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from tallymark.core.retention import Retention
from tallymark.errors import BadInput
from tallymark.operate.survey import ledger
from tallymark.stores.contract import Store
from tallymark.stores.opening import open_existing, open_store
from tallymark.stores.sql.ledger.migrate import DIALECTS, Existing, check_version, script
from tallymark.stores.sql.store import SqlStore


@dataclass(frozen=True)
class Change:
    """The version of a ledger before a command and after it; None if there was no ledger."""

    store: str
    before: int | None
    now: int | None


@dataclass(frozen=True)
class Pruned:
    """How many rows of a table of the ledger are old, and were removed if the command did that."""

    group: str
    table: str
    rows: int


def create(url: str) -> Change:
    """Create the ledger, unless there is one; an older one is refused."""
    with closing(open_store(url)) as store:
        before = store.ledger_version()
        if before is not None and before < store.latest_version:
            raise BadInput(
                f"the ledger in {store.name} has version {before}, this tallymark creates {store.latest_version}: use "
                "tallymark ledger upgrade"
            )
        return _present(store, before)


def upgrade(url: str) -> Change:
    """Upgrade the ledger to the present version; a newer one is refused."""
    with closing(open_existing(url)) as store:
        before = store.ledger_version()
        if before is None:
            raise BadInput(f"{store.name} has no ledger: use tallymark ledger create")
        return _present(store, before)


def sql(url: str) -> str:
    """Return the statements that bring the ledger of a store to the present version."""
    with closing(open_existing(url)) as store:
        if not isinstance(store, SqlStore):
            raise BadInput(f"{store.name} has no tables and needs no statements: use tallymark ledger create")
        with store.look() as connection:
            existing = Existing.found(connection)
            check_version(existing.version or 0)
            return script(connection.dialect, existing)


def sql_for(dialect: str, version: int | None) -> str:
    """Return the statements for a kind of database, for a new ledger or one of this version."""
    return script(DIALECTS[dialect](), Existing() if version is None else Existing.of_version(version))


def prune(url: str, group: str | None, retention: Retention, *, execute: bool) -> list[Pruned]:
    """Return what the ledger holds beyond the retention; remove it if ``execute``."""
    with ledger(url, *([group] if group else [])) as store:
        cutoffs = retention.cutoffs(datetime.now(UTC))
        groups = [group] if group is not None else list(store.journal().groups())
        counts = {name: store.prune(name, cutoffs, execute=execute) for name in groups}
    return [Pruned(name, table, rows) for name, tables in counts.items() for table, rows in tables.items()]


def _present(store: Store, before: int | None) -> Change:
    store.create_ledger()
    return Change(store.name, before, store.ledger_version())
