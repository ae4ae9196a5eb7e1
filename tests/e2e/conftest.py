"""What tests across processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers import Mosquitto, mosquitto


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    with mosquitto() as running:
        yield running
