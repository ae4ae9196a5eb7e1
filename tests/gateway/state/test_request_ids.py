"""A flood of request ids evicts only the client's own ids. A replay evicts the same."""

from __future__ import annotations

import pytest

from lamplighter.gateway.state import request_ids
from lamplighter.gateway.state.request_ids import Accepted, RequestIds


def test_the_client_with_the_most_ids_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_ids, "REQUEST_IDS_MAX", 10)
    ids = RequestIds()
    for number in range(4):
        ids.remember(("anna", str(number)), Accepted(number))
    for number in range(1000):
        ids.remember(("ben", str(number)), Accepted(number))
    assert len(ids) == 10
    assert [ids.get(("anna", str(number))) for number in range(4)] == [Accepted(number) for number in range(4)]
    assert ids.get(("ben", "993")) is None and ids.get(("ben", "994")) == Accepted(994)
    for number in range(1000):
        ids.remember(("anna", "again"), Accepted(number))  # no new one
    assert len(ids) == 10 and ids.get(("anna", "0")) is not None and ids.get(("ben", "994")) is None

    restored = RequestIds()
    restored.restore(ids.state())
    assert restored.state() == ids.state() and len(restored) == 10
    for found in (ids, restored):
        for name in ("carl", "anna", "ben", "carl"):
            found.remember((name, f"of {name}"), Accepted(1))
    assert restored.state() == ids.state()
    assert ids.forget("ben") and not ids.forget("ben")
    assert "ben" not in ids.clients() and len(ids) == len(ids.state())
