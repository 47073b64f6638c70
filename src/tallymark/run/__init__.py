"""Runs a group for either engine: claim, prepare, commit."""
