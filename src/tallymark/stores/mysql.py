"""MySQL 8+ and MariaDB 10.6+, by PyMySQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Table, event, text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL
from sqlalchemy.sql.dml import Insert

from tallymark.errors import TableMismatch
from tallymark.stores.dialects import Dialect, not_in_key


class Mysql(Dialect):
    name = "mysql"
    driver = "mysql+pymysql"
    extra = "mysql"

    def engine(self, url: URL) -> Engine:
        engine = super().engine(url.update_query_dict({"charset": "utf8mb4"}))
        event.listen(engine, "connect", _on_connect)
        return engine

    def engine_options(self) -> dict[str, Any]:
        # Positional parameters: rows go to the driver as tuples, whatever style SQLAlchemy prefers for it.
        return super().engine_options() | {"connect_args": {"connect_timeout": 10}, "paramstyle": "format"}

    def check_table(self, connection: Connection, table: Table) -> None:
        found = text(
            "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
        )
        engine = connection.scalar(found, {"name": table.name})
        if engine != "InnoDB":
            raise TableMismatch(
                f"table {table.name} uses the engine {engine}, which has no transactions; "
                f"ALTER TABLE {table.name} ENGINE = InnoDB makes it fit for exactly once"
            )

    def upsert_statement(self, table: Table, columns: Sequence[str], key: Sequence[str]) -> Insert:
        statement = mysql.insert(table)
        # VALUES(col) rather than a row alias: MariaDB does not know the alias.
        overwrite = not_in_key(columns, key) or [key[0]]
        return statement.on_duplicate_key_update({column: statement.inserted[column] for column in overwrite})


def _on_connect(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        # Without strict mode the server cuts values to fit, silently.
        cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), time_zone = '+00:00'")
