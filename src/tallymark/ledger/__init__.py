"""Offsets, tallies and history, kept in the database that takes the rows."""
