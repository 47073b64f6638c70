"""Properties are checked on busy machines too: how long an example takes says nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None, max_examples=60)
settings.load_profile("patient")
