"""The ledger in SQL: offsets, tallies and history, in the same database as the rows."""
