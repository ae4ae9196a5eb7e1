"""A request text that makes the engine fail unexpectedly fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.core import Engine
from tests.support.running_gateway import ask, running_gateway, update

TEXT = "SELECT ?s { ?s <http://p> ?o }"


@pytest.mark.parametrize("method", ["evaluation_of_subscription", "subscribe"])
async def test_the_gateway_outlives_a_subscription_that_cannot_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def failing(*arguments: Any, **options: Any) -> Any:
        raise IndexError("nobody has thought of this")

    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        with monkeypatch.context() as patch:
            patch.setattr(Engine, method, failing)
            told = await ask(socket, {"subscribe": {"sparql": TEXT, "alias": "a"}})
        assert (told["alias"], told["status_code"]) == ("a", 500)
        assert "IndexError" in told["error_description"]
        assert (await ask(socket, {"subscribe": {"sparql": TEXT}}))["notification"]["sequence"] == 0
        assert (await update(at, "INSERT DATA { <http://a> <http://p> 1 }")).status == 200
