"""Relative IRIs in requests."""

from __future__ import annotations

import pytest

from lamplighter.gateway.gates.http import sparql as sparql_module


@pytest.mark.parametrize(
    "text", ["", "<a>", "<urn:a> <", "<urn:a> <a>", "<urn:a><b c>", " " * 50 + "<a>", "<" * 50 + "a>"]
)
@pytest.mark.parametrize("searched", [1, 7, 1000])
async def test_relative_iris_are_found_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, text: str, searched: int
) -> None:
    monkeypatch.setattr(sparql_module, "_SEARCHED", searched)
    found = await sparql_module._has_relative(text)
    assert found == (sparql_module._RELATIVE.search(text) is not None)
