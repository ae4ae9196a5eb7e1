"""One gateway for all of these tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.sepa.fixture import DELETE_ALL, Broker
from tests.support.gateway_process import GatewayProcess

LIMIT_S = 120.0


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("sepa") / "gateway"
    with GatewayProcess(folder) as process:
        yield process


@pytest.fixture
async def broker(process: GatewayProcess) -> AsyncIterator[Broker]:
    """The gateway with an empty graph. The test leaves as many subscriptions as it found."""
    broker = Broker(process)
    before = await broker.subscriptions()
    await broker.updates(DELETE_ALL)
    yield broker
    async with asyncio.timeout(LIMIT_S):
        while await broker.subscriptions() != before:  # the gateway tidies up closed sockets after a moment
            await asyncio.sleep(0.01)
