"""A simulated house beside a gateway: what the dataset says of its devices, and what they are."""

from __future__ import annotations

import time
from collections.abc import Collection
from decimal import Decimal

from lamplighter.adapters.devices.draft import segment
from lamplighter.demo.house import House, HouseDevice, Value
from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.gateway_process import GatewayProcess, wait_for

BASE = "http://lamplighter.local/"
NAMES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> "
VALUES = NAMES + "SELECT ?part ?value { ?o sosa:madeBySensor ?part ; sosa:hasSimpleResult ?value }"
REPORTED = NAMES + "SELECT ?part ?value { ?part gateway:reportedState ?value }"
UNCONFIRMED = NAMES + (
    "SELECT DISTINCT ?part { ?stream gateway:liveObservation ?o ; gateway:receivedFrom/gateway:since ?since . "
    "?o sosa:madeBySensor ?part OPTIONAL { ?o sosa:resultTime ?last } FILTER(!BOUND(?last) || ?last < ?since) }"
)
GAPS = {
    "ZigbeeMotion": "a device with a battery answers no questions, and its state is not retained",
    "RadioThermometer": "a radio repeats nothing, and cannot be asked",
}
"""Makes that may differ after an absence until they report again, and why. What differs is unconfirmed."""
POLL_S, REPORT_S = 0.2, 1.0
Key = tuple[str, str, str]


def part(key: Key) -> str:
    """The IRI of a sensor or actuator, behind its first word."""
    source, identifier, name = key
    return f"{source}/{segment(identifier)}/{segment(name)}"


def is_same(said: str, value: Value) -> bool:
    if isinstance(value, bool):
        return said == ("true" if value else "false")
    if isinstance(value, str):
        return said == value
    return abs(Decimal(said) - Decimal(str(value))) < Decimal("0.01")


def makes_of(house: House) -> dict[Key, str]:
    """The name of the make of each value."""
    return {(*device.identity, name): type(device).__name__ for device in house.devices for name in device.truth}


def differing(gateway: GatewayProcess, house: House) -> dict[Key, tuple[Value, list[str]]]:
    """What the dataset says otherwise than it is, or does not say: the true value and what is said."""
    said: dict[str, list[str]] = {}
    for row in (*gateway.rows(VALUES), *gateway.rows(REPORTED)):
        said.setdefault(_path(row["part"]), []).append(row["value"])
    found: dict[Key, tuple[Value, list[str]]] = {}
    for key, value in house.truth().items():
        values = said.get(part(key), [])
        if not values or not all(is_same(text, value) for text in values):
            found[key] = value, values
    return found


def unconfirmed(gateway: GatewayProcess) -> set[str]:
    """The sensors whose values nothing has confirmed, as `part` gives them."""
    return {_path(row["part"]) for row in gateway.rows(UNCONFIRMED)}


def _path(thing: str) -> str:
    return thing.partition(BASE)[2].partition("/")[2]


def agree(
    gateway: GatewayProcess,
    house: House,
    what: str,
    *,
    gaps: Collection[str] = (),
    reports: bool = False,
) -> None:
    """Waits until all entities agree. gaps: makes whose values need not if they are unconfirmed; reports: devices
    report meanwhile, as at times they do."""
    makes = makes_of(house)
    last: dict[Key, tuple[Value, list[str]]] = {}
    reported = time.monotonic()

    def holds() -> bool:
        nonlocal reported
        if reports and time.monotonic() - reported > REPORT_S:
            house.report()
            reported = time.monotonic()
        last.clear()
        time.sleep(POLL_S)  # each time asks for the whole house
        last.update(differing(gateway, house))
        doubtful = unconfirmed(gateway) if gaps else set()
        for key in [one for one in last if makes[one] in gaps and (part(one) in doubtful or not last[one][1])]:
            del last[key]
        return not last

    try:
        wait_for(holds, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}: {dict(list(last.items())[:10])}") from None


def command(gateway: GatewayProcess, choice: tuple[HouseDevice, str, Value]) -> None:
    """Sets the desired state of an actuator, as a user does."""
    device, name, value = choice
    node = f"<{BASE}actuator/{part((*device.identity, name))}>"
    state = str(value).lower() if isinstance(value, bool) else str(value)
    gateway.update(
        f"{NAMES} DELETE {{ {node} gateway:desiredState ?old }} INSERT {{ {node} gateway:desiredState {state} }} "
        f"WHERE {{ OPTIONAL {{ {node} gateway:desiredState ?old }} }}"
    )
