"""The records of a device that announced itself. Pure data; `adapters.devices.draft` makes and checks them.

A device has rule tables, as `mapping/*.toml` has them: a sensor has a ``[[stream]]`` table, an actuator a
``[[command]]`` table and the stream table of its state. IRIs in tables are paths below the base IRI of the gateway, or
prefixed names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

# A rule table with the keys of its TOML form. Not to be modified.
Table = dict[str, Any]


def place(table: Table) -> str:
    """Where a table reads or writes: its topic (MQTT), or its resource (CoAP)."""
    found: str = table["resource"] if "resource" in table else table["topic"]
    return found


class Sensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value that the device publishes.

    key: unique in the device and stable; it is part of the IRI. kind: the observed property: a prefixed name of
    `ontology/kinds.ttl`, or a path (``property/...``) where no kind fits. label: for people.
    """

    key: str
    kind: str
    label: str
    table: Table


class Actuator(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state of the device that can be set.

    key, kind, label: as for sensors; kind is the property that the actuator acts on. command: how a desired state
    becomes a message. state: the stream table that reads the state back, if the device publishes it. minimum, maximum:
    of a number, as announced.
    """

    key: str
    kind: str
    label: str
    command: Table
    state: Table | None = None
    minimum: float | None = None
    maximum: float | None = None


class Availability(msgspec.Struct, frozen=True, omit_defaults=True):
    """Topics that say whether the device is online.

    topics: tables with topic, broker, member (names of a JSON path, optional), bare (the words may also come without
    JSON; optional), on and off: lists of payloads. mode:
    online if "all" topics say so, if "any" does, or as the "latest" message says.
    """

    topics: tuple[Table, ...]
    mode: Literal["all", "any", "latest"] = "all"


# The key of a sensor's table with pairs of topic and payload; it is no key of a rule.
ASKS = "asks"


class Ask(msgspec.Struct, frozen=True):
    """A message after which the device sends its state."""

    topic: str
    payload: str


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device as it announced itself.

    id: stable (IEEE address, MAC, serial number), never the friendly name; one segment of an IRI. source: the format of
    the announcement; source and id are the identity. broker: name of the broker; of a CoAP device, its base URI. name,
    manufacturer, model, area: as announced, for people; empty if unknown. endpoint: the identifier of its registration,
    if that is not `id`, because the device was adopted before it registered. thing: the id of its Thing Description, if
    one described it; `id` is a segment of it.
    """

    id: str
    source: str
    broker: str
    name: str
    manufacturer: str = ""
    model: str = ""
    area: str = ""
    sensors: tuple[Sensor, ...] = ()
    actuators: tuple[Actuator, ...] = ()
    availability: Availability | None = None
    endpoint: str = ""
    thing: str = ""

    @property
    def identity(self) -> str:
        """Unique in the gateway, such as ``zigbee2mqtt/0x00158d0001e82a4c``."""
        return f"{self.source}/{self.id}"

    @property
    def asks(self) -> tuple[Ask, ...]:
        """Messages that make it send its state."""
        # They stand in the tables of sensors, of which earlier versions pass over what they do not know.
        found = (one for sensor in self.sensors for one in sensor.table.get(ASKS, ()))
        return tuple(Ask(*one) for one in found if isinstance(one, list) and [*map(type, one)] == [str, str])

    def with_asks(self, asks: Iterable[Ask]) -> Device:
        """The same device with these messages; a device without sensors has no state to ask for."""
        if not self.sensors:
            return self
        first, *others = (
            msgspec.structs.replace(one, table={key: value for key, value in one.table.items() if key != ASKS})
            for one in self.sensors
        )
        if listed := [[ask.topic, ask.payload] for ask in asks]:
            first = msgspec.structs.replace(first, table=first.table | {ASKS: listed})
        return msgspec.structs.replace(self, sensors=(first, *others))

    def to_json(self) -> str:
        """Equal devices have equal texts, however they were made."""
        # Defaults are left out that are the same object as the default; those that were decoded always are.
        decoded = msgspec.json.decode(msgspec.json.encode(self), type=Device)
        return msgspec.json.encode(decoded, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str) -> Device:
        """Raises ValueError if the text is not that of a device."""
        try:
            return msgspec.json.decode(text, type=cls)  # msgspec.ValidationError and DecodeError are ValueErrors
        except RecursionError as error:
            raise ValueError("the record of a device is nested too deep") from error


class Problem(msgspec.Struct, frozen=True):
    """Why an announcement, or a part of one, is not used. device: its identity, empty if unknown.

    about: of a problem that lasts: what it is about. A further one about the same replaces it, and one without a reason
    ends it.
    """

    source: str
    broker: str
    topic: str
    reason: str
    device: str = ""
    about: str = ""
