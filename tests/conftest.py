"""Fixtures live in tests/plugins, by subject."""

from __future__ import annotations

import hypothesis

pytest_plugins = [
    "tests.plugins.faults",
    "tests.plugins.kafka",
    "tests.plugins.run",
    "tests.plugins.servers",
    "tests.plugins.spark",
    "tests.plugins.stores",
]

# Fixed examples make failures reproducible. CONTRIBUTING explains how to try others.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")
