"""Operator tasks: health, resets, imports, dead letters, checks, audits, the doctor and the demo."""
