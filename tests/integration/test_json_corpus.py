"""Every value of the corpus is decoded in bulk as it is alone."""

from __future__ import annotations

import pytest

from tallymark import Json
from tallymark.formats.json import JsonDecoder
from tests.support import json_values as corpus


@pytest.mark.parametrize(
    ("schema", "values"),
    [(corpus.SCALARS, corpus.SCALAR_VALUES), (corpus.NESTED, corpus.NESTED_VALUES)],
    ids=["scalars", "nested"],
)
def test_in_bulk_a_value_is_what_it_is_alone(monkeypatch: pytest.MonkeyPatch, schema: str, values: list[bytes]) -> None:
    monkeypatch.setattr("tallymark.formats.json.FEW", 1)
    decoder = JsonDecoder(Json(schema))
    for value in values:
        alone, among = decoder([value]), decoder([value, value])
        assert repr(among.values.to_pylist()) == repr(alone.values.to_pylist() * 2), value[:100]
        assert among.errors == ({0: alone.errors[0], 1: alone.errors[0]} if alone.errors else {})
