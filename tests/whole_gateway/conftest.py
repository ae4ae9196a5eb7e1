"""A running gateway for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import running_gateway


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Addresses]:
    """The addresses of a gateway with the default settings, whose data is in tmp_path / "data".

    A test with other settings, or that starts a gateway again, uses `running_gateway`. monkeypatch: patches of the test
    are undone after the end of the gateway.
    """
    async with running_gateway(tmp_path) as addresses:
        yield addresses
