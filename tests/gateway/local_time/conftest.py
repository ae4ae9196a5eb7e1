"""Looks at the clock that do not wait."""

from __future__ import annotations

import pytest

from lamplighter.gateway.local_time import service


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of these tests is set by hand, so it is looked at all the time."""
    monkeypatch.setattr(service, "_LOOK_S", 0.01)
    monkeypatch.setattr(service, "_PAUSE_S", 0.001)
