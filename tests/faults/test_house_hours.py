"""Random hours in a simulated house, with hands, rules, restarts, kills and silence: the dataset agrees with it.

An hour is what happens in it, without the time in between: the adapters' timers run by the real clock, as brokers do,
so that no other clock could be given to all of them. `TEST_AMOUNTS=1` takes five hours, `TEST_AMOUNTS=10` takes 50.
`HOUSE_SEED` repeats what a failure names, as far as processes side by side can be repeated.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lamplighter.demo.house import House, HouseDevice
from lamplighter.demo.house.play import settable
from tests.support.amounts import Amounts
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.coap_processes import AdapterProcess
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.house import BASE, GAPS, agree, command, part

pytestmark = pytest.mark.faults

DEVICES = 300
RULE = {
    "host": "localhost",
    "namespaces": {"sosa": "http://www.w3.org/ns/sosa/", "gateway": "http://lamplighter.example/ns/gateway#"},
    "queries": {
        "MOTION": {
            "sparql": "SELECT ?lamp ?value WHERE { ?motion <urn:house:switches> ?lamp . "
            "?reading sosa:madeBySensor ?motion ; sosa:hasSimpleResult ?value }"
        }
    },
    "updates": {
        "SWITCH": {
            "sparql": "DELETE { ?lamp gateway:desiredState ?before } INSERT { ?lamp gateway:desiredState ?value } "
            "WHERE { OPTIONAL { ?lamp gateway:desiredState ?before } }",
            "forcedBindings": {
                "lamp": {"type": "uri", "value": ""},
                "value": {"type": "literal", "datatype": "xsd:boolean", "value": ""},
            },
        }
    },
    "extended": {"lamplighter": {"aggregators": {"motion": {"query": "MOTION", "added": "SWITCH"}}}},
}


class Site:
    """A house, its broker, a gateway and an MQTT adapter of its own process."""

    def __init__(self, house: House, broker: Mosquitto, gateway: GatewayProcess, chance: random.Random) -> None:
        self.house, self.broker, self.gateway, self._chance = house, broker, gateway, chance
        self.adapter = AdapterProcess(gateway, "mqtt", gateway.config)
        self._silent: list[HouseDevice] = []

    def pair(self) -> None:
        """A rule switches a lamp with each motion sensor."""
        motions = [one for one in self.house.devices if type(one).__name__ == "ZigbeeMotion"]
        lamps = [one for one in self.house.devices if type(one).__name__ == "ZigbeeLamp"]
        pairs = (
            f"<{BASE}sensor/{part((*motion.identity, 'occupancy'))}> <urn:house:switches> "
            f"<{BASE}actuator/{part((*lamp.identity, 'state'))}>"
            for motion, lamp in zip(motions, lamps, strict=False)
        )
        self.gateway.update(f"INSERT DATA {{ {' . '.join(pairs)} }}")

    def live(self) -> list[str]:
        """An hour of events. Returns what happened."""
        events = {
            "hands": self._switch, "commands": self._command, "silence": self._silence, "end of silence": self._end,
            "broker": self._restart_broker, "gateway": self._kill_gateway, "adapter": self._kill_adapter,
            "gateway and adapter": self._kill_both,
        }  # fmt: skip
        happened = [
            self._chance.choice(list(events) if self._chance.random() < 0.6 else ["hands", "commands"])
            for _ in range(self._chance.randint(2, 6))
        ]
        for name in happened:
            events[name]()
        return happened

    def _switch(self) -> None:
        self.house.switch(self._chance.randint(1, DEVICES))

    def _command(self) -> None:
        for choice in self._chance.sample(settable(self.house.devices), self._chance.randint(1, DEVICES // 4)):
            command(self.gateway, choice)

    def _silence(self) -> None:
        speaking = [one for one in self.house.devices if not one.is_silent]
        for device in self._chance.sample(speaking, self._chance.randint(1, DEVICES // 10)):
            self.house.silence(device)
            self._silent.append(device)

    def _end(self) -> None:
        for device in self._silent:
            self.house.end_silence(device)
        self._silent.clear()

    def _restart_broker(self) -> None:
        before = self.house.connections
        self.broker.stop(self._chance.choice((signal.SIGTERM, signal.SIGKILL)))
        self._switch()
        self.broker.start()
        wait_for(lambda: self.house.connections > before, what="the house at the broker")

    def _kill_gateway(self) -> None:
        self._away(self.gateway.end, self.gateway.start)

    def _kill_adapter(self) -> None:
        self._away(self.adapter.end, self.adapter.start)

    def _kill_both(self) -> None:
        self._away(self.gateway.end, lambda: self._kill_adapter() or self.gateway.start())

    def _away(self, end: Callable[[signal.Signals], object], start: Callable[[], object]) -> None:
        end(signal.SIGKILL)
        if self._chance.random() < 0.8:
            self._switch()
        start()


@contextmanager
def site(folder: Path, chance: random.Random) -> Iterator[Site]:
    settings = ("allow_anonymous true", "persistence true", "max_queued_messages 0")
    (folder / "apps").mkdir()
    (folder / "apps" / "motion.jsap").write_text(json.dumps(RULE))
    with mosquitto(settings=settings) as broker, House(DEVICES, broker.port, chance=chance) as house:
        table = {"host": "127.0.0.1", "port": broker.port, "adopt": "all", "devices_max": DEVICES}
        with GatewayProcess(folder, mqtt=table, coap={"enabled": False}) as gateway:
            found = Site(house, broker, gateway, chance)
            found.adapter.start()
            try:
                yield found
            finally:
                found.adapter.end(signal.SIGKILL)


@pytest.mark.timeout(7200)
def test_dataset_agrees_with_the_house_after_random_hours(tmp_path: Path, amounts: Amounts) -> None:
    hours, seed = amounts.of(5), int(os.environ.get("HOUSE_SEED") or random.randrange(2**32))
    with site(tmp_path, random.Random(seed)) as running:
        gateway, house = running.gateway, running.house
        agree(gateway, house, f"all states, seed {seed}", reports=True)
        running.pair()
        for hour in range(hours):
            said = f"seed {seed}, hour {hour}: {running.live()}"
            print(said, flush=True)
            # By questions and by what the broker keeps, without a further report.
            agree(gateway, house, said, gaps=GAPS)
            agree(gateway, house, f"{said}, and reports", reports=True)
