"""Each make of the simulated house, with mutated announcements and payloads: no wrong value, crash or silence.

What a payload says is read a second time here, by a table of the documentation of each make that shares nothing with
the discovery of the gateway.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from random import Random
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.literals import nil_reason
from lamplighter.adapters.mapping import Births, Mapping, StreamRule, StreamTable
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.demo.house import MAKES, HouseDevice
from lamplighter.demo.house.makes import DeviceMessage, ZigbeeLamp
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.amounts import Amounts
from tests.support.mutations import mutated, mutated_bytes, mutated_document

BASE = "http://e/"
FULL, IN_USUAL_RUNS = 20_000, 400
"""Cases of each make in the fault tier, and in `make test`."""
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
Value = bool | Decimal | str
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Rule:
    """What a topic says: key of the value, path in JSON (None: the payload is the value), and its meaning."""

    topic: str
    key: str
    path: tuple[str, ...] | None
    meaning: Callable[[Any], Value | None]


def number(raw: Any) -> Value | None:
    if isinstance(raw, str) and _NUMBER.fullmatch(raw.strip()):
        raw = raw.strip()
    elif isinstance(raw, bool) or not isinstance(raw, int | Decimal):
        return None
    try:
        return Decimal(raw)
    except InvalidOperation:
        return None


def words(on: str, off: str) -> Callable[[Any], Value | None]:
    def meaning(raw: Any) -> Value | None:
        text = spelled(raw).strip().lower()
        return True if text == on else False if text == off else None

    return meaning


def choice(**known: str) -> Callable[[Any], Value | None]:
    return lambda raw: known.get(spelled(raw).strip())


def spelled(raw: Any) -> str:
    return {True: "true", False: "false"}[raw] if isinstance(raw, bool) else str(raw)


def percent(zero: int, full: int) -> Callable[[Any], Value | None]:
    def meaning(raw: Any) -> Value | None:
        found = number(raw)
        if not isinstance(found, Decimal):
            return None
        whole = Context(prec=400)
        try:
            return whole.divide((found - zero) * 100, Decimal(full - zero)).quantize(Decimal(1), ROUND_HALF_UP, whole)
        except InvalidOperation:
            return None  # more digits than any device has

    return meaning


def rules_of(device: HouseDevice) -> list[Rule]:
    """By the documentation of the make."""
    name, number_ = getattr(device, "name", ""), device.number
    on_off = words("on", "off")
    inverted = number_ % 2 == 1
    shutter: Callable[[Any], Value | None] = (
        (lambda raw: None if (found := number(raw)) is None else 100 - Decimal(found)) if inverted else number
    )
    zigbee, hall = f"zigbee2mqtt/lamp{number_}", f"zigbee2mqtt/hall/motion{number_}"
    notified = f"{name}/events/rpc"
    known: dict[str, list[tuple[str, str, tuple[str, ...] | None, Callable[[Any], Value | None]]]] = {
        "ZigbeeLamp": [(zigbee, "state", ("state",), on_off), (zigbee, "brightness", ("brightness",), number)],
        "ZigbeeMotion": [
            (hall, "occupancy", ("occupancy",), words("true", "false")),
            (hall, "illuminance", ("illuminance",), number),
        ],
        "TasmotaPlug": [
            (f"stat/plug{number_}/POWER", "POWER", None, on_off),
            (f"tele/plug{number_}/SENSOR", "ENERGY.Power", ("ENERGY", "Power"), number),
        ],
        "TasmotaShutter": [
            (f"stat/shutter{number_}/RESULT", "ShutterPosition1", ("Shutter1", "Position"), shutter),
        ],
        "FirstShelly": [
            (f"shellies/{name}/relay/0", "relay.0", None, choice_of_switch),
            (f"shellies/{name}/relay/0/power", "relay.0.power", None, number),
        ],
        "LaterShelly": [
            (notified, "switch.0.output", ("params", "switch:0", "output"), words("true", "false")),
            (notified, "switch.0.apower", ("params", "switch:0", "apower"), number),
        ],
        "EsphomeBoard": [
            (f"{name}/switch/relay/state", f"{name}relay", None, on_off),
            (f"{name}/sensor/t/state", f"{name}t", None, number),
        ],
        "JsonLamp": [
            (f"lamps/{name}", name, ("state",), on_off),
            (f"lamps/{name}", f"{name}.brightness", ("brightness",), number),
        ],
        "Curtain": [
            (f"curtains/{name}/pos", f"{name}.position", None, percent(255, 0)),
            (f"curtains/{name}/state", name, None, choice(auf="open", zu="closed", opening="opening")),
        ],
        "RadioThermometer": [
            (f"home/radio{radio}/BTtoMQTT/{name}", f"{name}-tempc", ("tempc",), number) for radio in (1, 2)
        ],
        "SparkplugMotor": [],
    }
    return [Rule(*one) for one in known[type(device).__name__]]


def choice_of_switch(raw: Any) -> Value | None:
    text = spelled(raw).strip().lower()
    return True if text in ("on", "true", "1") else False if text in ("off", "false", "0") else None


def second_reading(device: HouseDevice, topic: str, payload: bytes) -> dict[str, Value]:
    """What the payload says, by keys."""
    found: dict[str, Value] = {}
    for rule in rules_of(device):
        if rule.topic != topic:
            continue
        try:
            raw: Any = payload.decode()
            if rule.path is not None:
                raw = json.loads(raw, parse_float=Decimal)
                for step in rule.path:
                    raw = raw[step]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            continue
        value = rule.meaning(raw)
        if value is not None:
            found[rule.key] = value
    if topic.startswith("spBv1.0/"):
        for name, value in sparkplug(payload):
            found[name] = value
    return found


def sparkplug(payload: bytes) -> Iterator[tuple[str, Value]]:
    """Values of data with the alias 7, which is `temperature` of the type Double."""
    try:
        for field, metric in protobuf(payload):
            if field != 2 or not isinstance(metric, bytes):
                continue
            members = list(protobuf(metric))
            aliases = [one for at, one in members if at == 2 and isinstance(one, int)]
            names = [one for at, one in members if at == 1 and isinstance(one, bytes)]
            name = names[-1].decode() if names else "temperature" if aliases[-1:] == [7] else None
            kinds = [one for at, one in members if at == 4 and isinstance(one, int)]
            is_null = any(one for at, one in members if at == 7 and isinstance(one, int))
            if name != "temperature" or is_null:
                continue
            value: Value | None = None
            for at, one in members:
                if at in (10, 11) and isinstance(one, int):
                    value = Decimal(signed(one, kinds[-1] if kinds and kinds[-1] else 10))
                elif at == 12 and isinstance(one, bytes) and len(one) == 4:
                    value = finite(struct.unpack("<f", one)[0])
                elif at == 13 and isinstance(one, bytes) and len(one) == 8:
                    value = finite(struct.unpack("<d", one)[0])
                elif at == 14 and isinstance(one, int):
                    value = bool(one)
            texts = [one for at, one in members if at == 15 and isinstance(one, bytes)]
            value = texts[-1].decode() if texts else value
            if value is not None:
                yield name, value
    except (ValueError, IndexError):
        return


def signed(value: int, kind: int) -> int | bool:
    if kind == 11:
        return bool(value)
    bits = {1: 8, 2: 16, 3: 32, 4: 64}.get(kind)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def finite(value: float) -> Decimal | None:
    return Decimal(repr(value)) if value - value == 0 else None


def protobuf(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message. Raises IndexError or ValueError where it is broken."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value & (2**64 - 1)
            if shift > 63:
                raise ValueError

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}.get(key & 7) or (varint() if key & 7 == 2 else -1)
        if length < 0 and key & 7 != 2:
            raise ValueError
        if at + length > len(data):
            raise IndexError
        yield key >> 3, data[at : at + length]
        at += length


# --- the gateway's side ---


def announced(device: HouseDevice) -> list[DeviceMessage]:
    messages = [*device.announcements(), *device.report()]
    if isinstance(device, ZigbeeLamp):
        messages.insert(0, DeviceMessage("zigbee2mqtt/bridge/devices", json.dumps([device.listed()])))
    return messages


def payload_of(message: DeviceMessage) -> bytes:
    return message.payload.encode() if isinstance(message.payload, str) else message.payload


def records(messages: list[tuple[str, bytes]]) -> tuple[dict[str, Device], int]:
    """The devices of these messages by identity, and how many things were told."""
    known = Announcements(FORMATS, devices_max=20)
    found: dict[str, Device] = {}
    told = 0
    for topic, payload in messages:
        changes = known.read("", topic, payload)
        found |= {device.identity: device for device in changes.devices}
        found = {identity: device for identity, device in found.items() if identity not in changes.gone}
        told += len(changes.problems) + len(changes.left_out)
    return found, told


def mapping_of(record: Device) -> Mapping:
    rules = Registry(BASE).rules(record)
    return Mapping(
        [
            StreamRule(msgspec.convert(rule["stream"], StreamTable), prefixes=PREFIXES, base_iri=BASE, place=path)
            for path, rule in rules.items()
            if "stream" in rule
        ]
    )


def first_reading(mapping: Mapping, topic: str, payload: bytes, births: Births) -> tuple[dict[str, str], int]:
    """The gateway's values by keys, but for those of which it says that there is none, and how many it cannot read."""
    values: dict[str, str] = {}
    refused = 0
    for one in mapping.readings(topic, payload, retained=False, received=NOON, births=births):
        if isinstance(one, Reading) and nil_reason(one.value) is not None:
            continue
        if isinstance(one, Reading):
            values[lexical(one.stream.sensor).rpartition("/")[2]] = lexical(one.value)
        else:
            assert isinstance(one, PayloadError)
            refused += 1
    return values, refused


def check(said: str, true: Value, about: object) -> None:
    if isinstance(true, bool):
        assert said == ("true" if true else "false"), about
    elif isinstance(true, str):
        assert said == true, about
    else:
        assert Decimal(said) == true or float(said) == float(true), about


def cases(amounts: Amounts) -> int:
    return FULL if amounts.share >= 1 else IN_USUAL_RUNS


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_mutated_payloads_give_no_wrong_value(make: type[HouseDevice], amounts: Amounts) -> None:
    seed = random.randrange(2**32)
    chance = Random(seed)
    device = make(MAKES.index(make))
    messages = [(message.topic, payload_of(message)) for message in announced(device)]
    ((_, record),) = records(messages)[0].items()
    mapping = mapping_of(record)
    reports = [(topic, payload) for topic, payload in messages if second_reading(device, topic, payload)]
    if make.__name__ == "SparkplugMotor":
        reports = [(message.topic, payload_of(message)) for message in device.changed("temperature")]
    assert reports
    read = 0
    for case in range(cases(amounts)):
        births = Births()
        if make.__name__ == "SparkplugMotor":
            for topic, payload in messages:
                births.records(topic, payload)
        topic, payload = chance.choice(reports)
        payload = mutated(payload, chance) if case else payload
        about = seed, case, topic, payload
        values, refused = first_reading(mapping, topic, payload, births)
        true = second_reading(device, topic, payload)
        for key, said in values.items():
            assert key in true, about
            check(said, true[key], about)
        assert refused or values.keys() == true.keys(), about
        read += len(values)
    assert read


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_mutated_announcements_give_no_wrong_value_and_no_silence(make: type[HouseDevice], amounts: Amounts) -> None:
    seed = random.randrange(2**32)
    chance = Random(seed)
    device = make(MAKES.index(make))
    messages = [(message.topic, payload_of(message)) for message in announced(device)]
    announcing = [
        at for at, (topic, payload) in enumerate(messages) if Announcements(FORMATS, devices_max=1).covers(topic)
    ]
    complete = parts(records(messages)[0])
    for case in range(cases(amounts)):
        changed = list(messages)
        at = chance.choice(announcing)
        topic, payload = messages[at]
        key: object = None
        how = "bytes"
        if payload[:1] in (b"{", b"[") and chance.random() < 0.8:
            document, key, how = mutated_document(json.loads(payload), chance, of_other_type=True)
            changed[at] = topic, json.dumps(document).encode("utf-8", "surrogatepass")
        else:
            changed[at] = topic, mutated_bytes(payload, chance)
        about = seed, case, how, key, changed[at]
        found, told = records(changed)
        # Another sample of telemetry is one of other sensors.
        is_sample = topic.endswith("/sensors")
        if (how == "replaced" and not is_sample) or (how == "bytes" and not is_document(changed[at][1], like=payload)):
            assert told or not (lost := lost_parts(complete, parts(found))) or not changed[at][1], (about, lost)
        if how == "renamed":
            assert told or key in FOR_PEOPLE or is_sample, about
        if how == "bytes" or key in MEANING or (how == "missing" and isinstance(key, int)):
            continue
        for record in found.values():
            mapping, births = mapping_of(record), Births()
            for topic, payload in messages:
                values, _ = first_reading(mapping, topic, payload, births)
                true = second_reading(device, topic, payload)
                for name, said in values.items():
                    if name in true:
                        check(said, true[name], (about, name))


MEANING = {"pos_open", "pos_clsd", "sho", "stat_open", "stat_clsd", "ft", "t", "tp", "state", "property"}
"""Keys without which an announcement says something else: by default a scale is 0 to 100, for example."""
FOR_PEOPLE = {"model", "vendor", "name", "dn", "mf", "30"}
"""Keys of texts that people see, and of an option that is off."""


Part = tuple[str, ...]


def parts(found: dict[str, Device]) -> dict[Part, tuple[object, ...]]:
    """What is read and written, with the rest of its tables."""
    known: dict[Part, tuple[object, ...]] = {}
    for record in found.values():
        for sensor in record.sensors:
            table = sensor.table
            rest = tuple(table.get(key) for key in ("unit", "scale", "on", "words"))
            known["read", table["topic"], table.get("member", "")] = rest
        for actuator in record.actuators:
            command = actuator.command
            rest = command.get("values"), actuator.minimum, actuator.maximum, command.get("scale")
            known["write", command["topic"], command["payload"]] = rest
        for table in () if record.availability is None else record.availability.topics:
            known["online", table["topic"]] = ()
    return known


def lost_parts(complete: dict[Part, tuple[object, ...]], found: dict[Part, tuple[object, ...]]) -> list[Part]:
    """Parts that are not there, or have no unit, scale, words, values or bounds any more."""
    return [
        part
        for part, rest in complete.items()
        if part not in found or any(one is not None and now is None for one, now in zip(rest, found[part], strict=True))
    ]


def is_document(payload: bytes, like: bytes) -> bool:
    """Whether a payload may be one of its format, with other texts."""
    try:
        return type(json.loads(payload)) is type(json.loads(like))
    except ValueError:
        return like[:1] not in (b"{", b"[")


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_records_have_no_member_that_version_0_1_refuses(make: type[HouseDevice]) -> None:
    """It does not read a record with another one, and then neither shows the device nor writes its record again."""
    messages = [(message.topic, payload_of(message)) for message in announced(make(MAKES.index(make)))]
    found = list(records(messages)[0].values())
    assert found
    for device in found:
        record = json.loads(device.to_json())
        known = {"id", "source", "broker", "name", "manufacturer", "model", "area", "sensors", "actuators"}
        assert record.keys() <= known | {"availability", "endpoint", "thing"}
        assert {key for one in record["sensors"] for key in one} <= {"key", "kind", "label", "table"}
        parts = {key for one in record.get("actuators", ()) for key in one}
        assert parts <= {"key", "kind", "label", "command", "state", "minimum", "maximum"}
        assert record.get("availability", {}).keys() <= {"topics", "mode"}
