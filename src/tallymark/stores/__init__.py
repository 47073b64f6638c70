"""Databases that take rows and offsets in one transaction."""
