"""One gateway for all of these tests."""

from collections.abc import Iterator

import pytest

from tests.sepa.fixture import Broker
from tests.support.gateway_process import GatewayProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("sepa") / "gateway"
    process = GatewayProcess(folder, broker_port=None, off_after="PT1H", coap=False)  # no other subscriber
    with process:
        yield Broker(process)
