"""Store for PostgreSQL, MySQL, MariaDB and SQLite."""
