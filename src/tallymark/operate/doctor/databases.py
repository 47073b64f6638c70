"""Checks an SQL database: version, settings, encryption, clock and permissions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC
from functools import partial

from sqlalchemy import Column, Integer, MetaData, Table, delete, false, insert, select, text, update

from tallymark.errors import AccessDenied, TallymarkError
from tallymark.operate.findings import Finding, Opinion, checked, is_local, judge, ledger, line, skew, version
from tallymark.stores.sql.ledger.migrate import ledger_version
from tallymark.stores.sql.ledger.tables import VERSION, metadata, schema
from tallymark.stores.sql.store import SqlStore

OLDEST = {"postgresql": (13,), "mysql": (8,), "mariadb": (10, 6), "sqlite": (3, 24)}
CLOCKS = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT UTC_TIMESTAMP(6)"}
LINES = {
    "postgresql": "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mysql": "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
}
SETTINGS = {
    "postgresql": "SELECT name, setting FROM pg_settings"
    " WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout')",
    "mysql": "SHOW VARIABLES WHERE Variable_name IN"
    " ('default_storage_engine', 'idle_transaction_timeout', 'local_infile', 'sql_require_primary_key',"
    " 'super_read_only', 'wait_timeout') OR (Variable_name = 'binlog_format' AND @@log_bin)",
    "sqlite": "SELECT 'journal_mode', journal_mode FROM pragma_journal_mode",
}
FIXED = {
    "local_infile": ("ON", "rows are written with INSERT, which is slower: SET GLOBAL local_infile = ON"),
    "sql_require_primary_key": (
        "OFF",
        "append and staging tables have no primary key and can't be created: SET GLOBAL"
        " sql_generate_invisible_primary_key = ON, or create the tables beforehand and set road='driver'",
    ),
    "default_storage_engine": (
        "InnoDB",
        "other engines have no transactions: SET GLOBAL default_storage_engine = InnoDB",
    ),
    "journal_mode": ("wal", "readers and writers block each other: move the file to a local disk"),
}
"""The wanted value of a setting, and the advice."""
FORBIDDEN = {
    "binlog_format": (
        "STATEMENT",
        "ROW or MIXED",
        "READ COMMITTED transactions are refused: SET GLOBAL binlog_format = ROW",
    ),
    "super_read_only": (
        "ON",
        "OFF",
        "nothing can be written: connect to the primary, or SET GLOBAL super_read_only = OFF",
    ),
}
"""The forbidden value of a setting, the wanted value, and the advice."""
TIMES = {
    "idle_in_transaction_session_timeout": (1000, "ALTER ROLE CURRENT_USER RESET idle_in_transaction_session_timeout"),
    "statement_timeout": (1000, "ALTER ROLE CURRENT_USER SET statement_timeout = 0"),
    "wait_timeout": (1, "SET GLOBAL wait_timeout = 28800"),
    "idle_transaction_timeout": (1, "SET GLOBAL idle_transaction_timeout = 0"),
}
"""The units per second of a timeout, and how to change it."""
LEAST = 60
"""Minimum timeout in seconds: a batch or handler may take this long for a statement or between two statements."""
GRANTS = {
    "postgresql": "GRANT USAGE, CREATE ON SCHEMA public TO {user}; GRANT TEMPORARY ON DATABASE {database} TO {user};"
    " GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user};"
    " GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {user}",
    "mysql": "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, CREATE VIEW, CREATE TEMPORARY TABLES"
    " ON {database}.* TO {user}",
    "sqlite": "give this user write permission for {database} and its directory",
}


def examine(store: SqlStore) -> Iterator[Finding]:
    """Yield all findings about a reachable database."""
    questions = {"version": _version, "settings": _settings, "encrypted": _line, "clock": _clock}
    for check, question in questions.items():
        yield from checked("store", check, partial(question, store))
    yield from checked("store", "ledger version", partial(_ledger, store), otherwise="fail")


def isolation(kind: str, found: str) -> Finding:
    wanted = "SERIALIZABLE" if kind == "sqlite" else "READ COMMITTED"
    other = "a proxy or pooler changes it: connect directly"
    return judge("store", "isolation", found, wanted, warn=None if found == wanted else other)


def setting(name: str, value: str) -> Opinion:
    if name in FORBIDDEN:
        wrong, wanted, advice = FORBIDDEN[name]
        return Opinion(wanted, fail=advice if value == wrong else None)
    if name in FIXED:
        wanted, advice = FIXED[name]
        return Opinion(wanted, warn=None if value == wanted else advice)
    parts, change = TIMES[name]
    advice = f"longer statements or pauses are aborted and retried forever: {change}"
    return Opinion(f">= {LEAST * parts}, or 0", warn=advice if 0 < int(value) < LEAST * parts else None)


def permissions(kind: str, user: str | None, database: str | None, refused: str | None, needed: bool) -> Finding:
    """Judge the permissions. If they are not ``needed`` now, they may be later: for new tables and large batches."""
    grant = GRANTS[kind].format(user=user or "CURRENT_USER", database=database)
    advice = refused and (
        f"{refused}: {grant}" if needed else f"new tables and large batches need this permission: {grant}"
    )
    fail, warn = (advice, None) if needed else (None, advice)
    return judge("store", "permissions", "refused" if refused else "granted", "to create and to write", fail, warn)


def _version(store: SqlStore) -> Iterator[Finding]:
    with store.look() as connection:
        numbers = tuple(part for part in connection.dialect.server_version_info or () if isinstance(part, int))
        variant = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else store.dialect.name
        yield version(numbers[:3], OLDEST[variant])
        yield isolation(store.dialect.name, connection.get_isolation_level())


def _settings(store: SqlStore) -> Iterator[Finding]:
    with store.look() as connection:
        variables = connection.execute(text(SETTINGS[store.dialect.name])).all()
    for name, value in variables:
        # The first run sets journal_mode, so its earlier value does not matter.
        if name != "journal_mode" or store.has_ledger():
            yield judge("store", name, value, *setting(name, str(value)))


def _line(store: SqlStore) -> Iterator[Finding]:
    if store.dialect.name in LINES:
        url, advice = store.engine.url, "add ?tls=verify&tls_ca=/path/ca.pem to the URL"
        with store.look() as connection:
            encrypted = bool(connection.execute(text(LINES[store.dialect.name])).one()[-1])
        host = str(url.host or url.query.get("host", ""))
        yield line(host, encrypted, advice)
        if encrypted:
            proven = any(name.startswith("ssl") for name in url.query) and store.dialect.unproven(url.query) is None
            warn = None if proven or is_local(host) else f"another server could impersonate this one: {advice}"
            yield judge("store", "server verified", "yes" if proven else "no", "yes", warn=warn)


def _clock(store: SqlStore) -> Iterator[Finding]:
    if store.dialect.name in CLOCKS:
        with store.look() as connection:
            # The first statement also begins the transaction, which takes extra time.
            connection.execute(text("SELECT 1"))
            before = time.time()
            theirs = connection.execute(text(CLOCKS[store.dialect.name])).scalar_one()
            after = time.time()
        aware = theirs if theirs.tzinfo else theirs.replace(tzinfo=UTC)
        yield skew("store", before, aware.timestamp(), after)


def _ledger(store: SqlStore) -> Iterator[Finding]:
    with store.look() as connection:
        found = ledger_version(connection)
    yield ledger(found, VERSION)
    if found is None or found <= VERSION:
        used = _refusal(store, _use_ledger) if found == VERSION else None
        refused = used or _refusal(store, _create_table)
        needed = used is not None or found != VERSION
        if refused is None or isinstance(refused, AccessDenied):
            url = store.engine.url
            yield permissions(store.dialect.name, url.username, url.database, str(refused) if refused else None, needed)
        else:
            yield judge("store", "permissions", "not known", "to create and to write", fail=str(refused))


def _refusal(store: SqlStore, work: Callable[[SqlStore], None]) -> TallymarkError | None:
    try:
        work(store)
    except TallymarkError as error:
        return error
    return None


def _use_ledger(store: SqlStore) -> None:
    """Run statements that change no rows, but need the same permissions as those that do."""
    with store.transaction() as connection:
        for table in metadata.sorted_tables:
            first = next(iter(table.c))
            connection.execute(insert(table).from_select(table.c.keys(), select(table).where(false())))
            if table is not schema:
                connection.execute(update(table).values({first: first}).where(false()))
                connection.execute(delete(table).where(false()))


def _create_table(store: SqlStore) -> None:
    name = f"tallymark_doctor_{uuid.uuid4().hex[:8]}"
    table = Table(name, MetaData(), Column("id", Integer, primary_key=True, autoincrement=False))
    try:
        with store.transaction() as connection:
            table.create(connection)
            for statement in (insert(table).values(id=1), update(table).values(id=2), delete(table)):
                connection.execute(statement)
            connection.exec_driver_sql(f"CREATE VIEW {name}_view AS SELECT id FROM {name}")
            connection.exec_driver_sql(f"DROP VIEW {name}_view")
            connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {name}_temporary (id INTEGER PRIMARY KEY)")
            connection.exec_driver_sql(f"DROP TABLE {name}_temporary")
            table.drop(connection)
    except TallymarkError:
        # Without transactional DDL, the table still exists.
        with suppress(TallymarkError), store.transaction() as connection:
            table.drop(connection, checkfirst=True)
        raise
