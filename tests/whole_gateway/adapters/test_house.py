"""A simulated house at a real broker: what the dataset says of a device is what it has, or a gap of the table."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from lamplighter.adapters.devices.draft import segment
from lamplighter.demo.house import MAKES, House, HouseDevice, Value
from lamplighter.demo.house.play import settable
from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.amounts import Amounts
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.gateway_process import GatewayProcess, mqtt_gateway, wait_for

BASE = "http://lamplighter.local/"
NAMES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> "
VALUES = NAMES + "SELECT ?part ?value { ?o sosa:madeBySensor ?part ; sosa:hasSimpleResult ?value }"
REPORTED = NAMES + "SELECT ?part ?value { ?part gateway:reportedState ?value }"
ONLINE = NAMES + "SELECT ?device ?online { ?device gateway:online ?online }"
DEVICES = NAMES + "SELECT ?device { ?device a gateway:Device }"
COMMANDS = [
    "+/set",
    "+/+/set",
    "+/+/+/set",
    "+/+/+/command",
    "+/+/+/+/command",
    "cmnd/+/+",
    "+/rpc",
    "spBv1.0/+/NCMD/+",
]
NOT_RETAINED = "it does not retain its states at QoS 0, and is not asked for them after a connection"
GAPS = {make.__name__: NOT_RETAINED for make in MAKES if not make.retained}
"""Makes that may differ after the gateway was away while they changed, until they report again, and why."""
POLL_S, REPORT_S = 0.2, 1.0
Key = tuple[str, str, str]


@contextmanager
def broker() -> Iterator[Mosquitto]:
    with mosquitto(settings=("allow_anonymous true", "persistence true", "max_queued_messages 0")) as running:
        yield running


def is_same(said: str, value: Value) -> bool:
    if isinstance(value, bool):
        return said == ("true" if value else "false")
    if isinstance(value, str):
        return said == value
    return abs(Decimal(said) - Decimal(str(value))) < Decimal("0.01")


def differing(gateway: GatewayProcess, house: House) -> dict[Key, tuple[Value, list[str]]]:
    """What the dataset says otherwise than it is, or does not say: the true value and what is said."""
    said: dict[str, list[str]] = {}
    for row in (*gateway.rows(VALUES), *gateway.rows(REPORTED)):
        said.setdefault(row["part"].partition(BASE)[2].partition("/")[2], []).append(row["value"])
    found: dict[Key, tuple[Value, list[str]]] = {}
    for (source, identifier, name), value in house.truth().items():
        values = said.get(f"{source}/{segment(identifier)}/{segment(name)}", [])
        if not values or not all(is_same(text, value) for text in values):
            found[source, identifier, name] = value, values
    return found


def agree(
    gateway: GatewayProcess,
    house: House,
    what: str,
    *,
    but: Callable[[Key], bool] = lambda key: False,
    reports: bool = False,
) -> None:
    """Waits until all entities agree. but: those that need not; reports: devices report meanwhile, as at times they
    do."""
    last: dict[Key, tuple[Value, list[str]]] = {}
    reported = time.monotonic()

    def holds() -> bool:
        nonlocal reported
        if reports and time.monotonic() - reported > REPORT_S:
            house.report()
            reported = time.monotonic()
        last.clear()
        time.sleep(POLL_S)  # each time asks for the whole house
        last.update({key: found for key, found in differing(gateway, house).items() if not but(key)})
        return not last

    try:
        wait_for(holds, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}: {dict(list(last.items())[:10])}") from None


def command(gateway: GatewayProcess, choice: tuple[HouseDevice, str, Value]) -> None:
    """Sets the desired state of an actuator, as a user does."""
    device, name, value = choice
    source, identifier = device.identity
    node = f"<{BASE}actuator/{source}/{segment(identifier)}/{segment(name)}>"
    state = str(value).lower() if isinstance(value, bool) else str(value)
    gateway.update(
        f"{NAMES} DELETE {{ {node} gateway:desiredState ?old }} INSERT {{ {node} gateway:desiredState {state} }} "
        f"WHERE {{ OPTIONAL {{ {node} gateway:desiredState ?old }} }}"
    )


def test_what_is_said_of_a_house_is_true(tmp_path: Path, amounts: Amounts) -> None:
    count, seed = amounts.of(300, least=2 * len(MAKES)), random.randrange(2**32)
    chance = random.Random(seed)
    with broker() as running, House(count, running.port, chance=chance) as house:
        gateway = mqtt_gateway(tmp_path, running.port, adopt="all", commands=COMMANDS, devices_max=count)
        makes = {(*device.identity, name): type(device).__name__ for device in house.devices for name in device.truth}

        def is_gap(key: Key) -> bool:
            return makes[key] in GAPS

        with gateway:
            agree(gateway, house, f"the retained states, seed {seed}", but=is_gap)
            # Those that retain nothing are known from what they say next.
            agree(gateway, house, f"all states, seed {seed}", reports=True)
            assert len(gateway.rows(DEVICES)) == count

            house.switch(count)
            agree(gateway, house, f"what hands switched, seed {seed}")
            for choice in chance.sample(settable(house.devices), count // 2):
                command(gateway, choice)
            agree(gateway, house, f"what commands switched, seed {seed}")

            silent = chance.sample(house.devices, max(2, count // 20))
            for device in silent:
                house.silence(device)
            gone = {f"{BASE}device/{d.identity[0]}/{segment(d.identity[1])}" for d in silent if d.online(False)}
            wait_for(
                lambda: gone == {row["device"] for row in gateway.rows(ONLINE) if row["online"] == "false"},
                what=f"who is offline, seed {seed}",
            )

            before = house.connections
            running.stop()
            house.switch(count // 4)  # nobody hears it, but from what the devices say when they connect
            running.start()
            wait_for(lambda: house.connections > before, what="the house at the broker")
            agree(gateway, house, f"the retained states after a restart of the broker, seed {seed}", but=is_gap)
            for device in silent:
                house.end_silence(device)
            house.switch_each()
            agree(gateway, house, f"all states after a restart of the broker, seed {seed}", reports=True)

            gateway.end(signal.SIGKILL)
            house.switch(count // 4)
            gateway.start()
            agree(gateway, house, f"the retained states after a kill, seed {seed}", but=is_gap)
            left = Counter(makes[key] for key in differing(gateway, house))
            assert set(left) <= set(GAPS), left
            house.switch_each()
            agree(gateway, house, f"all states after a kill, seed {seed}", reports=True)
