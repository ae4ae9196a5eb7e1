"""What tests of published clients share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.clients.peer import Peer, javascript_client, python_client
from tests.support.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("plain") / "gateway") as process:
        yield process


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with javascript_client() as peer:
        yield peer


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with python_client() as found:
        yield found


@pytest.fixture
def name() -> str:
    """What this test calls its subscription."""
    return uuid.uuid4().hex
