"""One gateway for all of these tests."""

from collections.abc import Iterator

import pytest

from tests.gateway_process import GatewayProcess
from tests.sepa.fixture import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    process = GatewayProcess(tmp_path_factory.mktemp("sepa") / "gateway", broker_port=None, off_after="PT1H")
    with (process.folder / "lamplighter.toml").open("a") as settings:
        settings.write("[coap]\nenabled = false\n")  # so that nobody else subscribes meanwhile
    with process:
        yield Broker(process)
