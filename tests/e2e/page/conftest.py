"""A browser, and a gateway with a real broker, for the tests of the web page."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.page.site import EMPTY, LIST, MAPPING, Site, devices
from tests.support.announcements import zigbee_house
from tests.support.brokers import mosquitto
from tests.support.chromium import Browser, chromium
from tests.support.components import require_page
from tests.support.gateway_process import GatewayProcess, wait_for


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    require_page()
    with chromium("--ignore-certificate-errors") as running:
        running.before_each_page(
            "window.violations = []; window.failures = [];"
            "addEventListener('securitypolicyviolation', it => violations.push(it.violatedDirective));"
            "addEventListener('error', it => failures.push(it.message));"
            "addEventListener('unhandledrejection', it => failures.push(String(it.reason)));"
        )
        yield running


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The window, as on a desk. The page that a test leaves has kept its policy, and has no failed script."""
    window.look(1280, 860)
    yield window
    told = window.run("return [window.violations ?? [], window.failures ?? []]")
    window.leave("location.replace('about:blank')")  # as `show` would, without two new processes of the browser
    assert told == [[], []]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway with its adapters, at a broker, with rules for the rooms of a house."""
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "mapping").mkdir()
    (folder / "mapping" / "home.toml").write_text(MAPPING)
    with mosquitto() as broker:
        mqtt = {"host": "127.0.0.1", "port": broker.port}
        with GatewayProcess(folder, "--all", mqtt=mqtt, gateway={"clock_trusted": "always"}) as gateway:
            yield Site(gateway, broker)


@pytest.fixture
def empty(site: Site) -> Site:
    """The same gateway without timers and with a default graph that has the states of brokers only."""
    for timer in site.gateway.delayed():
        cancelling = urllib.request.Request(f"{site.gateway.http_url}/delayed/{timer['id']}", method="DELETE")
        urllib.request.urlopen(cancelling, timeout=120).close()
    site.gateway.update(EMPTY)
    return site


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Site]:
    """A gateway with a room of four proposed devices at a broker. Commands may go to all of them."""
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "home.toml").write_text(MAPPING)
    with mosquitto() as broker:
        mqtt = {"host": "127.0.0.1", "port": broker.port, "commands": ["zigbee2mqtt/#"]}
        with GatewayProcess(tmp_path, "--all", mqtt=mqtt, gateway={"clock_trusted": "always"}) as gateway:
            site = Site(gateway, broker)
            broker.publish((LIST, zigbee_house(1)), retain=True)
            wait_for(lambda: len(devices(site)) == 4, what="the proposed devices")
            yield site
