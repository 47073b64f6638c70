"""MySQL 8+ and MariaDB 10.6+, by PyMySQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Table, event, insert, text
from sqlalchemy.engine import URL

from tallymark.errors import TableMismatch
from tallymark.shape import TableSpec
from tallymark.stores.dialects import Dialect, not_in_key
from tallymark.stores.targets import unique_keys


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

    def check_table(self, connection: Connection, table: Table, spec: TableSpec, columns: Sequence[str]) -> None:
        found = text(
            "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
        )
        engine = connection.scalar(found, {"name": table.name})
        if engine != "InnoDB":
            raise TableMismatch(
                f"table {table.name} uses the engine {engine}, which has no transactions; "
                f"ALTER TABLE {table.name} ENGINE = InnoDB makes it fit for exactly once"
            )
        for unique in unique_keys(table) if spec.write == "upsert" else ():
            if unique != set(spec.key) and unique <= set(columns):
                raise TableMismatch(
                    f"table {table.name}: besides ({', '.join(spec.key)}) it has a unique key on "
                    f"({', '.join(sorted(unique))}), and an upsert that meets it would overwrite another row; drop it"
                )

    def upsert(self, connection: Connection, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        # VALUES(col) rather than a row alias: MariaDB does not know the alias. SQLAlchemy would quote it twice.
        quote = connection.dialect.identifier_preparer.quote
        overwrite = [quote(column) for column in not_in_key(rows.column_names, key) or key[:1]]
        suffix = ", ".join(f"{column} = VALUES({column})" for column in overwrite)
        self._execute_many(connection, insert(table), rows, f" ON DUPLICATE KEY UPDATE {suffix}")


def _on_connect(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        # Without strict mode the server cuts values to fit, silently.
        cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), time_zone = '+00:00'")
