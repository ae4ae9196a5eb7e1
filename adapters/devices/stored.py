"""Checks a record of a device that was read from the dataset.

A client that may write the graph of proposals can write any record there. A record is used only if
`adapters.devices.draft` can have made it, because its parts become IRIs, subscriptions and updates of the adapter.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lamplighter.adapters.devices.device import Actuator, Device, Sensor, Table
from lamplighter.adapters.devices.draft import (
    ACTUATORS_MAX,
    ASKS_MAX,
    AVAILABILITY_TOPICS_MAX,
    SENSORS_MAX,
    THING,
    checked_base,
    checked_filter,
    checked_resource,
    checked_topic,
    checked_words,
    member_path,
    plain,
    resource_base,
    segment,
)
from lamplighter.adapters.mapping.jinja import value_template

_SOURCE = re.compile(r"[a-z][a-z0-9]{0,31}")
# The source of devices whose tables have resources instead of topics.
_COAP = "coap"
_KIND = re.compile(r"gateway:[A-Za-z0-9]{1,64}|property/([^/]+)")


def check_record(device: Device) -> None:
    """Raises ValueError with what is wrong."""
    _require(segment(device.id) == device.id, "id")
    _require(_SOURCE.fullmatch(device.source) is not None, "source")
    for text in (device.name, device.manufacturer, device.model, device.area, device.broker):
        _require(plain(text) == text, "a text for people")
    described = segment(device.thing) if device.thing else ""
    _require(described == (device.id if device.source == THING else ""), "the id of a Thing Description")
    _require(not device.endpoint or segment(device.endpoint) == device.endpoint, "an endpoint")
    _require(len(device.sensors) <= SENSORS_MAX and len(device.actuators) <= ACTUATORS_MAX, "the number of parts")
    if device.source == _COAP:
        checked_base(device.broker)
        _require(device.availability is None, "an availability")
    _require(len(device.asks) <= ASKS_MAX, "the number of questions for its state")
    for ask in device.asks:
        checked_topic(ask.topic)
    parts: tuple[Sensor | Actuator, ...] = (*device.sensors, *device.actuators)
    for part in parts:
        kind = _KIND.fullmatch(part.kind)
        _require(segment(part.key) == part.key and plain(part.label) == part.label, "a key or label")
        _require(kind is not None and (kind[1] is None or segment(kind[1]) == kind[1]), "a kind")
    for sensor in device.sensors:
        _require(sensor.table.get("sensor") == f"sensor/{device.identity}/{sensor.key}", "the IRI of a sensor")
        _check_stream(device, sensor.table)
    for actuator in device.actuators:
        table = actuator.command
        _require(table.get("actuator") == f"actuator/{device.identity}/{actuator.key}", "the IRI of an actuator")
        _require(isinstance(table.get("values", {}), dict), "the values of a command")
        _require("query" not in table, "a query")
        _check_place(device, table)
        if actuator.state is not None:
            _check_stream(device, actuator.state)
    if device.availability is not None:
        _require(len(device.availability.topics) <= AVAILABILITY_TOPICS_MAX, "the number of topics")
        for table in device.availability.topics:
            _check_availability(device, table)


def _check_stream(device: Device, table: Table) -> None:
    kind = table.get("property")
    _require(isinstance(kind, str) and _KIND.fullmatch(kind) is not None, "a property")
    for key in ("member", "unit", "template"):
        _require(isinstance(table.get(key, ""), str), f"a {key}")
    _require(isinstance(table.get("where", {}), dict), "a choice of messages")
    _check_place(device, table, checked_filter)


def _check_place(device: Device, table: Table, check_topic: Callable[[object], str] = checked_topic) -> None:
    """Checks where a value is read, or where a state is written."""
    if device.source == _COAP:
        checked_resource(device.broker, table.get("resource"))
        _require(not {"topic", "path", "broker"} & table.keys(), "another place than the resource")
        return
    if device.source == THING and "resource" in table:
        resource = table["resource"]
        _require(isinstance(resource, str) and not {"topic", "path", "broker"} & table.keys(), "a place")
        checked_resource(resource_base(resource), resource)
        return
    topic = table.get("topic")
    _require(table.get("broker") == device.broker, "a broker")
    if isinstance(topic, str) and device.source == "sparkplug":
        topic = topic.replace("/+/", "/NDATA/", 1)  # births, data and deaths are one stream
    check_topic(topic)


def _check_availability(device: Device, table: Table) -> None:
    _require(table.get("broker") == device.broker, "a broker")
    checked_topic(table.get("topic"))
    for words in (table.get("on"), table.get("off")):
        _require(isinstance(words, list) and checked_words(words) == words, "the words of a topic")
    if "member" in table:
        _require(isinstance(table["member"], list), "a member")
        member_path(table["member"])
    if "template" in table:
        _require(isinstance(table["template"], str), "a template")
        value_template(table["template"])


def _require(well: bool, what: str) -> None:
    if not well:
        raise ValueError(f"the record of a device is not one of discovery: {what}")
