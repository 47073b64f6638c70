"""Stores: databases that commit rows and offsets in one transaction."""
