"""A new user has a house of seven devices that acts at night, changes its rule, and sees what was, and why.

All commands and clicks are those of docs/home.md, and they are counted.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from lamplighter.demo.house import House, HouseDevice
from lamplighter.demo.house.makes import (
    Curtain,
    JsonLamp,
    RadioThermometer,
    TasmotaPlug,
    ZigbeeLamp,
    ZigbeeMotion,
)
from tests.e2e.page.site import has
from tests.support.brokers import Mosquitto
from tests.support.chromium import Browser, chromium
from tests.support.components import require_page
from tests.support.gateway_process import wait_for
from tests.trials.reader import Output, Page, Reader

HOME = Page("docs/home.md")
STEPS_MAX, MINUTES_MAX = 8, 10
INIT = ".venv/bin/lamplighter init motion-light"


class WindowContact(ZigbeeMotion):
    """A contact of Zigbee2MQTT."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.truth = {"contact": True}

    def listed(self) -> dict[str, Any]:
        contact = {"type": "binary", "name": "contact", "property": "contact", "access": 1}
        return self._entry("MAGNET1", [contact | {"value_on": False, "value_off": True}])


def _zigbee(make: type[ZigbeeLamp], number: int, name: str) -> HouseDevice:
    device = make(number)
    device.name, device.topic = name, f"zigbee2mqtt/{name}"
    return device


def _titled(device: HouseDevice, title: str) -> HouseDevice:
    device.title = title
    return device


DEVICES = (
    lambda number: _zigbee(ZigbeeMotion, number, "hall/motion"),
    lambda number: _zigbee(ZigbeeLamp, number, "hall lamp"),
    lambda number: _titled(JsonLamp(number), "desk lamp"),
    lambda number: _titled(TasmotaPlug(number), "plug"),
    lambda number: _zigbee(WindowContact, number, "window kitchen"),
    lambda number: _titled(RadioThermometer(number), "outside"),
    lambda number: _titled(Curtain(number), "blind"),
)


@pytest.fixture
def house(broker: Mosquitto) -> Iterator[House]:
    with House(len(DEVICES), broker.port, chance=random.Random(0), makes=DEVICES) as house:
        yield house


@pytest.fixture
def browser() -> Iterator[Browser]:
    require_page()
    with chromium() as running:
        yield running


def at_midnight() -> tuple[str, str]:
    """A time zone in which it is about midnight now, and a position there."""
    hours = round((24 - datetime.now(UTC).hour - datetime.now(UTC).minute / 60) % 24)
    east = hours if hours <= 12 else hours - 24
    return f"Etc/GMT{-east:+d}", f"0, {15 * east}"


class Steps:
    """What the user does, counted."""

    def __init__(self, reader: Reader, browser: Browser) -> None:
        self.count = 0
        self._reader = reader
        self._browser = browser

    def install(self, command: str) -> None:
        """tests/e2e/test_demo.py runs it; here, everything is installed."""
        assert HOME.command(command)
        self.count += 1

    def begin(self, stack: ExitStack, command: str) -> Output:
        self.count += 1
        return stack.enter_context(self._reader.running(HOME.command(command)))

    def run(self, command: str) -> str:
        self.count += 1
        return self._reader.run(HOME.command(command))

    def open(self, url: str) -> None:
        assert f"<{url}>" in HOME.text
        self.count += 1
        self._browser.show(self._reader.adapted(url))

    def click(self, card: str, link: str) -> None:
        """A link of a card, once it is there."""
        assert f"*{link}*" in HOME.text
        self.count += 1
        self._browser.until(
            "const cards = [...document.querySelectorAll('.card')].filter(it => it.innerText.startsWith($[0]));"
            "const found = cards.flatMap(it => [...it.querySelectorAll('.name a')]).find(it => it.innerText == $[1]);"
            "found?.click(); return Boolean(found)",
            card,
            link,
        )


def files(folder: Path) -> dict[str, str]:
    """All but the data folder -> their contents."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "data" not in path.relative_to(folder).parts
    }


def test_a_new_user_has_a_house_that_acts_at_night(
    reader: Reader, broker: Mosquitto, house: House, browser: Browser
) -> None:
    # Of this machine are the ports, the clock that nothing synchronises, and how late it is.
    port = f'[mqtt]\nport = {broker.port}\n[gateway]\nclock_trusted = "always"\n'
    reader.write("lamplighter.toml", (reader.folder / "lamplighter.toml").read_text() + port)
    zone, position = at_midnight()
    reader.environment = {"TZ": zone}
    reader.replaced |= {"52.52, 13.40": position, "2min": "1s"}
    motion, lamp, _, plug, *_ = house.devices
    plug.truth["ENERGY.Power"] = 120  # it is asked some time after its adoption
    before, begun, steps = files(reader.folder), time.monotonic(), Steps(reader, browser)

    with ExitStack() as stack:
        steps.install("make run")
        gateway = steps.begin(stack, ".venv/bin/lamplighter run --all")
        gateway.until("is ready")
        announced = reader.adapted("http://127.0.0.1:8000/devices")  # they need a moment, in which a person moves
        wait_for(lambda: httpx.get(announced).json()["total"] == len(DEVICES), what="all devices")
        adopted = steps.run(".venv/bin/lamplighter devices adopt")
        shown = HOME.block("console", "devices adopt --all").splitlines()[1:]
        assert sorted(adopted.splitlines()) == sorted(shown)
        for power in (120, 900):
            house.happen(plug, "ENERGY.Power", power)

        assert "runs since record" in steps.run(f"{INIT} --light")
        assert not lamp.truth["state"]
        house.happen(motion, "occupancy", True)
        wait_for(lambda: bool(lamp.truth["state"]), what="the light")
        house.happen(motion, "occupancy", False)
        wait_for(lambda: not lamp.truth["state"], what="the end of the light")

        assert "runs in its new version" in steps.run(
            f'{INIT} --light "hall lamp" --sensor hall/motion --off-after 5min'
        )
        house.happen(motion, "occupancy", True)
        wait_for(lambda: lamp.truth == {"state": True, "brightness": 60}, what="the dimmed light")

        power = steps.run(".venv/bin/lamplighter history plug power").splitlines()
        assert power[0] == "plug ENERGY Power, unit:W"
        assert power[1].endswith("120 to 900")

        steps.open("http://127.0.0.1:8000/")
        steps.click("hall lamp", "state")
        has(browser, "h1", "Explain")
        has(browser, ".explained", "hall lamp state: true")
        for part in (
            "mqtt zigbee2mqtt/hall/motion: true of hall/motion occupancy",
            "motion-light",
            "zigbee2mqtt/hall lamp/set: true",
            "PUBACK",
        ):
            has(browser, ".chain", part)

        assert gateway.process.poll() is None, "it is still the one that was started first"
    assert steps.count <= STEPS_MAX
    assert time.monotonic() - begun < MINUTES_MAX * 60
    assert files(reader.folder) == before, "no file was edited"
