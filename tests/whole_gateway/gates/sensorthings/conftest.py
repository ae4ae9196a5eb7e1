"""A running gateway with the SensorThings door and a small house."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import Answer, http, running_gateway, update
from tests.support.small_house import SMALL_HOUSE

Ask = Callable[..., Awaitable[Answer]]


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Addresses]:
    async with running_gateway(tmp_path, sensorthings={"enabled": True}) as addresses:
        assert (await update(addresses, SMALL_HOUSE)).status == 200
        yield addresses


@pytest.fixture
def ask(at: Addresses) -> Ask:
    """Sends a request. target: below the service root, not encoded."""

    async def asked(target: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        path, mark, query = target.partition("?")
        url = at.query.removesuffix("/query") + "/v1.1" + quote(path, safe="/()'$~:!")
        named: dict[str, Any] = {name.replace("_", "-"): value for name, value in headers.items()}
        return await http(url + (mark and "?" + quote(query, safe="=&$,()';/:@")), method, body, named)

    return asked
