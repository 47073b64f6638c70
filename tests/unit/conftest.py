"""Properties are checked without a deadline, because machines may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None, max_examples=40)
settings.load_profile("patient")
