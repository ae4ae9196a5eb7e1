"""Each adapter loads its own rules of mapping/*.toml."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lamplighter.adapters.specs import ADAPTERS, AdapterSpec
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.service.adapter_process import read_configuration, run_adapter
from tests.support.event_loops import until

TOPIC = '[[stream]]\ntopic = "t"\nproperty = "gateway:x"\npayload = "text"\n'
RESOURCE = '[[stream]]\nresource = "coap://192.0.2.7/t"\nproperty = "gateway:x"\npayload = "text"\n'
SETTINGS = '[mqtt]\nhost = "127.0.0.1"\nport = 1\n[websocket]\nport = 1\n[coap.server]\nport = 0\n'
"""Nothing listens there."""

MQTT, COAP = ADAPTERS[:2]


def folder(path: Path, rules: str) -> Path:
    (path / "mapping").mkdir()
    (path / "mapping" / "home.toml").write_text(rules)
    config = path / "lamplighter.toml"
    config.write_text(SETTINGS)
    return config


@pytest.mark.parametrize(
    ("adapter", "rules"),
    [(COAP, RESOURCE + "poll_s = 0\n"), (MQTT, TOPIC + "qos = 1\n"), (COAP, "[["), (MQTT, "[[")],
)
async def test_faulty_rule_of_an_adapter_stops_it(tmp_path: Path, adapter: AdapterSpec, rules: str) -> None:
    with pytest.raises(ConfigurationError, match=r"home\.toml"):
        await run_adapter(adapter, read_configuration(folder(tmp_path, rules)))


@pytest.mark.parametrize(
    ("adapter", "rules"), [(COAP, RESOURCE + TOPIC + "qos = 1\n"), (MQTT, TOPIC + RESOURCE + "poll_s = 0\n")]
)
async def test_faulty_rule_of_the_other_adapter_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, adapter: AdapterSpec, rules: str
) -> None:
    running = asyncio.ensure_future(run_adapter(adapter, read_configuration(folder(tmp_path, rules))))
    try:
        await until(lambda: running.done() or "127.0.0.1" in caplog.text)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
