"""Messages of Zigbee2MQTT, Tasmota, Shelly and ESPHome, as these publish them, with the rules that read them."""

from __future__ import annotations

import pytest

from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import UNIT
from tests.support.mapping_rules import readings, rules, values
from tests.support.tables import each_row

ZIGBEE2MQTT = rules(
    """
    [[stream]]
    topic = "zigbee2mqtt/{device}"
    payload = "number"
    feature = "room/{device}"
    [[stream.read]]
    member = "temperature"
    property = "ex:temperature"
    unit = "°C"
    [[stream.read]]
    member = "humidity"
    property = "ex:humidity"
    unit = "%"
    [[stream.read]]
    member = "battery"
    property = "ex:battery"
    unit = "%"
    on_repeat = "ignore"
    [[stream.read]]
    member = "occupancy"
    property = "lighting:presence"
    payload = "boolean"
    [[stream.read]]
    member = "contact"
    property = "ex:open"
    payload = "boolean"
    on = ["false"]
    off = ["true"]
    [[stream.read]]
    member = "update.state"
    property = "ex:update"
    payload = "text"
    [[stream.read]]
    member = "action"
    property = "ex:action"
    on_repeat = "event"
    words = {single = "ex:SinglePress", double = "ex:DoublePress"}
    [[stream]]
    topic = "zigbee2mqtt/{device}/availability"
    payload = "boolean"
    member = "state"
    property = "gateway:online"
    """
)


def test_zigbee2mqtt_sensor_gives_a_reading_per_member() -> None:
    message = '{"battery":97,"humidity":48.2,"linkquality":120,"temperature":21.37,"voltage":3005}'
    assert values(ZIGBEE2MQTT, "zigbee2mqtt/hall", message) == {
        "zigbee2mqtt/hall/temperature": "21.37",
        "zigbee2mqtt/hall/humidity": "48.2",
        "zigbee2mqtt/hall/battery": "97",
    }


def test_members_of_one_message_share_feature_and_platform() -> None:
    first, second, _ = readings(ZIGBEE2MQTT, "zigbee2mqtt/hall", '{"battery":97,"humidity":48.2,"temperature":21.37}')
    assert first.stream.feature == second.stream.feature == "<http://gateway.example/room/hall>"
    assert first.stream.platform == second.stream.platform == "<http://gateway.example/platform/zigbee2mqtt/hall>"
    assert (first.stream.unit, second.stream.unit) == (f"<{UNIT}DEG_C>", f"<{UNIT}PERCENT>")


@each_row(
    ("message", "sensor", "value"),
    [
        ('{"occupancy":true,"illuminance":14}', "occupancy", "true"),
        ('{"contact":false}', "contact", "true"),
        ('{"battery":null}', "battery", "unknown"),
        ('{"action":"double"}', "action", "http://example.org/ns#DoublePress"),
        ('{"update":{"installed_version":1,"state":"idle"}}', "update.state", "idle"),
    ],
)
def test_zigbee2mqtt_partial_messages(message: str, sensor: str, value: str) -> None:
    assert values(ZIGBEE2MQTT, "zigbee2mqtt/hall", message) == {f"zigbee2mqtt/hall/{sensor}": value}


@pytest.mark.parametrize("message", ['{"state":"online"}', '{"state":"Online"}'])
def test_zigbee2mqtt_availability(message: str) -> None:
    assert values(ZIGBEE2MQTT, "zigbee2mqtt/hall/availability", message) == {"zigbee2mqtt/hall/availability": "true"}


def test_word_that_is_not_listed_is_an_error_that_does_not_quote_it() -> None:
    with pytest.raises(PayloadError, match=r"^action: not a word of the table words$"):
        values(ZIGBEE2MQTT, "zigbee2mqtt/hall", '{"action":"hold"}')


TASMOTA = rules(
    """
    [[stream]]
    topic = "tele/{device}/SENSOR"
    payload = "number"
    time = "member Time"
    time_zone = "+01:00"
    read = [
        {member = "DS18B20.Temperature", property = "ex:temperature", unit = "Cel"},
        {member = "AM2301.Temperature", property = "ex:temperature", unit = "Cel", dead_band = 0.2},
        {member = "ENERGY.Power", property = "ex:power", unit = "W"},
        {member = "ENERGY.Total", property = "ex:energy", unit = "kWh"},
        {member = 'ANALOG.A0', property = "ex:moisture", scale = 0.1, offset = -2},
    ]
    [[stream]]
    topic = "tele/{device}/LWT"
    payload = "boolean"
    property = "gateway:online"
    [[stream]]
    topic = "stat/{device}/{relay:POWER[0-9]*}"
    payload = "boolean"
    property = "ex:switch"
    """
)


def test_tasmota_sensor_message_with_its_local_time() -> None:
    message = (
        '{"Time":"2026-11-21T12:59:30","ANALOG":{"A0":513},"AM2301":{"Temperature":20.1,"Humidity":55.0},'
        '"ENERGY":{"TotalStartTime":"2025-01-01T00:00:00","Total":12.345,"Power":61,"Voltage":231},"TempUnit":"C"}'
    )
    assert values(TASMOTA, "tele/plug7/SENSOR", message) == {
        "tele/plug7/SENSOR/AM2301.Temperature": "20.1",
        "tele/plug7/SENSOR/ENERGY.Power": "61",
        "tele/plug7/SENSOR/ENERGY.Total": "12.345",
        "tele/plug7/SENSOR/ANALOG.A0": "49.3",
    }
    times = {lexical(reading.time) for reading in readings(TASMOTA, "tele/plug7/SENSOR", message)}
    assert times == {"2026-11-21T11:59:30.000000Z"}


@each_row(
    ("topic", "message", "value"),
    [("tele/a/LWT", "Online", "true"), ("tele/a/LWT", "Offline", "false"), ("stat/a/POWER2", "ON", "true")],
)
def test_tasmota_states(topic: str, message: str, value: str) -> None:
    assert list(values(TASMOTA, topic, message).values()) == [value]


def test_topic_that_an_expression_does_not_match_is_not_covered() -> None:
    assert not TASMOTA.covering("stat/a/RESULT")


SHELLY = rules(
    """
    [[stream]]
    topic = "shellies/{device}/relay/{channel}/power"
    payload = "number"
    property = "ex:power"
    unit = "W"
    [[stream]]
    topic = "shellies/{device}/sensor/{what:temperature|humidity|lux}"
    payload = "number"
    property = "ex:{what}"
    [[stream]]
    topic = "shellies/{device}/online"
    payload = "boolean"
    property = "gateway:online"
    [[stream]]
    topic = "{device}/status/{component#}"
    payload = "number"
    sensor = "shelly/{device}/{component}"
    read = [
        {member = "apower", property = "ex:power", unit = "W", sensor = "shelly/{device}/{component}/apower"},
        {member = "temperature.tC", property = "ex:temperature", unit = "Cel"},
        {member = "output", property = "ex:switch", payload = "boolean"},
    ]
    """
)


def test_shelly_first_generation() -> None:
    assert values(SHELLY, "shellies/shelly1pm-a4/relay/0/power", "12.31") == {
        "shellies/shelly1pm-a4/relay/0/power": "12.31"
    }
    [reading] = readings(SHELLY, "shellies/ht/sensor/humidity", "55.5")
    assert lexical(reading.stream.property) == "http://example.org/ns#humidity"
    assert list(values(SHELLY, "shellies/ht/online", "false").values()) == ["false"]


def test_shelly_second_generation() -> None:
    message = (
        '{"id":0,"source":"MQTT","output":true,"apower":8.9,"voltage":237.5,"aenergy":{"total":6.532,'
        '"by_minute":[45.199,47.141,88.397],"minute_ts":1626935779},"temperature":{"tC":23.5,"tF":74.4}}'
    )
    found = readings(SHELLY, "shellyplus1pm-1/status/switch:0", message)
    assert [(lexical(r.stream.sensor)[23:], lexical(r.value)) for r in found] == [
        ("shelly/shellyplus1pm-1/switch%3A0/apower", "8.9"),
        ("shelly/shellyplus1pm-1/switch%3A0", "23.5"),
        ("shelly/shellyplus1pm-1/switch%3A0", "true"),
    ]


ESPHOME = rules(
    """
    [[stream]]
    topic = "{node}/sensor/{name}/state"
    payload = "number"
    property = "ex:{name}"
    unit = "Cel"
    [[stream]]
    topic = "{node}/text_sensor/{name}/state"
    payload = "number"
    pattern = "^([0-9]+) km"
    property = "ex:{name}"
    optional = true
    """
)


def test_esphome() -> None:
    assert values(ESPHOME, "porch/sensor/outdoor_temperature/state", "-3.25") == {
        "porch/sensor/outdoor_temperature/state": "-3.25"
    }
    assert list(values(ESPHOME, "porch/text_sensor/visibility/state", "12 km (good)").values()) == ["12"]
    assert values(ESPHOME, "porch/text_sensor/visibility/state", "unknown") == {}
    assert values(ESPHOME, "porch/sensor/outdoor_temperature/state", "nan") == {
        "porch/sensor/outdoor_temperature/state": "unknown"
    }
