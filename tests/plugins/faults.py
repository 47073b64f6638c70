"""Marks cases of parametrized tests for ``make faults``, by the values of their parameters."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    for mark in item.iter_markers("faults_where"):
        if all(_is_one_of(parameters[name], wanted) for name, wanted in mark.kwargs.items()):
            item.add_marker(pytest.mark.faults)


def _is_one_of(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)
