"""A folder with free ports for each trial, and a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto, free_port, mosquitto
from tests.trials.reader import Reader


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    with mosquitto() as process:
        yield process


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """In an empty folder with a `lamplighter.toml` that only moves the ports."""
    http, websocket = free_port(), free_port()
    settings = f"[http]\nport = {http}\n[websocket]\nport = {websocket}\n[coap.server]\nport = 0\n"
    (tmp_path / "lamplighter.toml").write_text(settings)
    return Reader(tmp_path, {":8000": f":{http}", ":9000": f":{websocket}"})
