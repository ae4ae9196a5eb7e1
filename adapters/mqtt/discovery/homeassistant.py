"""Home Assistant's MQTT discovery -> devices.

``homeassistant/<component>/[<node>/]<object>/config`` announces one entity, ``homeassistant/device/<object>/config`` a
device with its entities in ``components``. Keys may be abbreviated, and ``~`` stands for a base topic. An empty payload
withdraws what the topic announced. The entities with the same first identifier are one device.

Templates are Jinja there. Only paths are understood: ``{{ value }}``, ``{{ value_json.a['b'][0] }}``, with the filters
of `_FILTERS`. An entity with another template is a problem and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lamplighter.adapters.devices.device import Device, Table
from lamplighter.adapters.devices.draft import Draft, json_text, own_kind, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object, merged
from lamplighter.adapters.mqtt.discovery.light_templates import command_pieces

NAME = "homeassistant"
PREFIX = "homeassistant"
LIFETIME_S_MAX = 31_536_000
COMPONENTS_MAX = 200
"""Entities of one announcement."""

_KEYS = {
    "act_t": "action_topic",
    "act_tpl": "action_template",
    "avty": "availability",
    "avty_mode": "availability_mode",
    "avty_t": "availability_topic",
    "avty_tpl": "availability_template",
    "bri_cmd_t": "brightness_command_topic",
    "bri_cmd_tpl": "brightness_command_template",
    "bri_scl": "brightness_scale",
    "bri_stat_t": "brightness_state_topic",
    "bri_val_tpl": "brightness_value_template",
    "clr_temp_cmd_t": "color_temp_command_topic",
    "clr_temp_cmd_tpl": "color_temp_command_template",
    "clr_temp_k": "color_temp_kelvin",
    "clr_temp_stat_t": "color_temp_state_topic",
    "clr_temp_val_tpl": "color_temp_value_template",
    "cmd_t": "command_topic",
    "cmd_tpl": "command_template",
    "cmps": "components",
    "curr_hum_t": "current_humidity_topic",
    "curr_hum_tpl": "current_humidity_template",
    "curr_temp_t": "current_temperature_topic",
    "curr_temp_tpl": "current_temperature_template",
    "dev": "device",
    "dev_cla": "device_class",
    "exp_aft": "expire_after",
    "fan_mode_cmd_t": "fan_mode_command_topic",
    "fan_mode_cmd_tpl": "fan_mode_command_template",
    "fan_mode_stat_t": "fan_mode_state_topic",
    "fan_mode_stat_tpl": "fan_mode_state_template",
    "fx_cmd_t": "effect_command_topic",
    "fx_cmd_tpl": "effect_command_template",
    "fx_list": "effect_list",
    "fx_stat_t": "effect_state_topic",
    "fx_val_tpl": "effect_value_template",
    "hum_cmd_t": "target_humidity_command_topic",
    "hum_cmd_tpl": "target_humidity_command_template",
    "hum_stat_t": "target_humidity_state_topic",
    "hum_state_tpl": "target_humidity_state_template",
    "max_hum": "max_humidity",
    "min_hum": "min_humidity",
    "mode_cmd_t": "mode_command_topic",
    "mode_cmd_tpl": "mode_command_template",
    "mode_stat_t": "mode_state_topic",
    "mode_stat_tpl": "mode_state_template",
    "o": "origin",
    "obj_id": "object_id",
    "off_dly": "off_delay",
    "ops": "options",
    "p": "platform",
    "pct_cmd_t": "percentage_command_topic",
    "pct_cmd_tpl": "percentage_command_template",
    "pct_stat_t": "percentage_state_topic",
    "pct_val_tpl": "percentage_value_template",
    "pl_avail": "payload_available",
    "pl_cls": "payload_close",
    "pl_lock": "payload_lock",
    "pl_not_avail": "payload_not_available",
    "pl_off": "payload_off",
    "pl_on": "payload_on",
    "pl_open": "payload_open",
    "pl_prs": "payload_press",
    "pl_stop": "payload_stop",
    "pl_unlk": "payload_unlock",
    "pos": "reports_position",
    "pos_t": "position_topic",
    "pos_tpl": "position_template",
    "pr_mode_cmd_t": "preset_mode_command_topic",
    "pr_mode_cmd_tpl": "preset_mode_command_template",
    "pr_mode_stat_t": "preset_mode_state_topic",
    "pr_mode_val_tpl": "preset_mode_value_template",
    "pr_modes": "preset_modes",
    "ret": "retain",
    "rgb_cmd_t": "rgb_command_topic",
    "rgb_cmd_tpl": "rgb_command_template",
    "rgb_stat_t": "rgb_state_topic",
    "rgb_val_tpl": "rgb_value_template",
    "set_pos_t": "set_position_topic",
    "set_pos_tpl": "set_position_template",
    "spd_rng_max": "speed_range_max",
    "spd_rng_min": "speed_range_min",
    "stat_cla": "state_class",
    "stat_clsd": "state_closed",
    "stat_locked": "state_locked",
    "stat_off": "state_off",
    "stat_on": "state_on",
    "stat_open": "state_open",
    "stat_t": "state_topic",
    "stat_tpl": "state_template",
    "stat_unlocked": "state_unlocked",
    "stat_val_tpl": "state_value_template",
    "sup_clrm": "supported_color_modes",
    "t": "topic",
    "temp_cmd_t": "temperature_command_topic",
    "temp_cmd_tpl": "temperature_command_template",
    "temp_stat_t": "temperature_state_topic",
    "temp_stat_tpl": "temperature_state_template",
    "temp_unit": "temperature_unit",
    "tilt_cmd_t": "tilt_command_topic",
    "tilt_cmd_tpl": "tilt_command_template",
    "tilt_status_t": "tilt_status_topic",
    "tilt_status_tpl": "tilt_status_template",
    "uniq_id": "unique_id",
    "unit_of_meas": "unit_of_measurement",
    "val_tpl": "value_template",
}
_DEVICE_KEYS = {
    "cns": "connections",
    "ids": "identifiers",
    "mdl": "model",
    "mf": "manufacturer",
    "sa": "suggested_area",
}

_BINARY = {
    "battery": "batteryLow",
    "battery_charging": "charging",
    "carbon_monoxide": "carbonMonoxideAlarm",
    "cold": "coldAlarm",
    "gas": "gasAlarm",
    "heat": "heatAlarm",
    "light": "lightDetected",
    "moisture": "leak",
    "motion": "motion",
    "occupancy": "occupancy",
    "plug": "plugged",
    "power": "plugged",
    "presence": "occupancy",
    "problem": "fault",
    "running": "running",
    "smoke": "smoke",
    "sound": "soundDetected",
    "tamper": "tamper",
    "update": "updateAvailable",
    "vibration": "vibration",
}
_INVERTED = {
    "door": "contact",
    "garage_door": "contact",
    "lock": "lock",
    "opening": "contact",
    "window": "contact",
}
"""Device classes of binary sensors that are on while something is open: gateway:contact and gateway:lock are false."""

_MEASURED = {
    "absolute_humidity": "absoluteHumidity",
    "apparent_power": "apparentPower",
    "aqi": "airQuality",
    "atmospheric_pressure": "pressure",
    "battery": "battery",
    "carbon_dioxide": "carbonDioxide",
    "carbon_monoxide": "carbonMonoxide",
    "conductivity": "conductivity",
    "current": "current",
    "distance": "distance",
    "duration": "duration",
    "energy": "energy",
    "energy_storage": "energy",
    "frequency": "frequency",
    "gas": "gasVolume",
    "humidity": "humidity",
    "illuminance": "illuminance",
    "irradiance": "irradiance",
    "moisture": "soilMoisture",
    "ph": "acidity",
    "pm1": "pm1",
    "pm10": "pm10",
    "pm25": "pm25",
    "power": "power",
    "power_factor": "powerFactor",
    "precipitation": "precipitation",
    "precipitation_intensity": "precipitationRate",
    "pressure": "pressure",
    "reactive_power": "reactivePower",
    "signal_strength": "signalStrength",
    "sound_pressure": "soundPressure",
    "speed": "speed",
    "temperature": "temperature",
    "volatile_organic_compounds": "volatileCompounds",
    "volatile_organic_compounds_parts": "volatileCompounds",
    "voltage": "voltage",
    "volume_flow_rate": "volumeFlow",
    "water": "waterVolume",
    "weight": "weight",
    "wind_direction": "windDirection",
    "wind_speed": "windSpeed",
}
_NIL_TEXTS = ("None", "unavailable", "unknown")
"""States of which Home Assistant says that there is none. Of numbers and booleans, all rules know such words."""
_TEXTS = {"date", "enum", "timestamp"}
"""Device classes of sensors whose values are no numbers."""

_FILTERS = re.compile(
    r"(?:\s*\|\s*(?:(?:float|int|round|default)\s*(?:\(\s*(?:-?[0-9.]+|'[^'{}]*'|\"[^\"{}]*\")?\s*\))?|is_defined|string))*"
)
"""Filters that choose no other value: conversions, defaults for missing members, and rounding, which is not applied."""
_HEAD = re.compile(r"\s*\{\{-?\s*value(_json)?")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[\s*(?:'([^'\\]*)'|\"([^\"\\]*)\"|([0-9]{1,3}))\s*\]")
_TAIL = re.compile(r"\s*-?\}\}\s*")
_VALUE = re.compile(r"\{\{-?\s*value\s*(?:\|\s*(?:int|float|string|round)\s*(?:\(\s*[0-9]*\s*\))?\s*)*-?\}\}")

_ZIGBEE2MQTT = re.compile(r"zigbee2mqtt_0x[0-9a-fA-F]+")


class DeviceClasses(NamedTuple):
    """Of a kind: of a binary sensor, empty if there is none, and whether it is on while the kind is false; of sensors
    with numbers."""

    binary: str
    inverted: bool
    measured: tuple[str, ...]


def device_classes(kind: str) -> DeviceClasses:
    """Those of a kind of `adapters.devices.kinds`, by its name."""
    plain = [name for name, other in _BINARY.items() if other == kind]
    inverted = [name for name, other in _INVERTED.items() if other == kind]
    binary = {"contact": "opening", "occupancy": "occupancy", "plugged": "plug"}.get(kind) or next(
        iter(plain + inverted), ""
    )
    measured = tuple(name for name, other in _MEASURED.items() if other == kind)
    return DeviceClasses(binary, binary in inverted, measured)


def covers(topic: str) -> bool:
    return topic.startswith(f"{PREFIX}/") and topic.endswith("/config") and topic.count("/") in (3, 4)


def announced(broker: str, topic: str, payload: bytes) -> Announced:
    """The entities of an announcement, each a part of its device. Raises ValueError."""
    levels = topic.split("/")
    component, name = levels[1], "/".join(levels[2:-1])
    if not payload:
        return Announced()
    config = _full(json_object(payload), _KEYS)
    device = _device_texts(config)
    if any(_ZIGBEE2MQTT.fullmatch(one) for one in device["identifiers"]):
        return Announced()  # its own list tells more, and announces removals
    if component != "device":
        entities = {name.replace("/", "_"): config | {"platform": component}}
    else:
        entities = _components(config)
    own = device["identifiers"]
    identifier = own[0] if own else plain(json_text(config.get("unique_id"))) or name.replace("/", "_")
    draft = Draft(
        NAME,
        identifier,
        broker=broker,
        topic=topic,
        name=device["name"] or plain(config.get("name")),
        manufacturer=device["manufacturer"],
        model=device["model"],
        area=device["area"],
    )
    for key, entity in entities.items():
        _Entity(draft, key, entity, topic).read()
    return Announced({(draft.id, topic): draft.device()}, draft.problems)


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    devices: list[Device] = [parts[topic] for topic in sorted(parts)]
    return merged(devices)


FORMAT = Format(
    NAME,
    (f"{PREFIX}/+/+/config", f"{PREFIX}/+/+/+/config"),
    covers=covers,
    announced=announced,
    joined=joined,
    # The birth message of Home Assistant: devices that retain nothing announce themselves and send their states.
    state_asks=((f"{PREFIX}/status", "online"),),
)


def template_path(template: object) -> tuple[str | int, ...]:
    """The JSON path of a value template; empty for the whole payload. Raises ValueError for other templates."""
    if template is None:
        return ()
    head = _HEAD.match(template) if isinstance(template, str) and len(template) <= 500 else None
    if head and isinstance(template, str):
        path: list[str | int] = []
        position = head.end()
        while head[1] and (step := _STEP.match(template, position)):
            path.append(int(step[4]) if step[4] else step[1] or step[2] or step[3] or "")
            position = step.end()
        filters = _FILTERS.match(template, position)
        position = filters.end() if filters else position
        if _TAIL.fullmatch(template, position) and bool(path) == bool(head[1]):
            return tuple(path)
    raise ValueError(f"the template {plain(template, 80)!r} is not understood; only paths such as value_json.a.b are")


def command_payload(template: object) -> str:
    """The payload of a command template in our form. Raises ValueError if it has more than the value in it."""
    if template is None:
        return "{value}"
    text = _VALUE.sub("\0", template) if isinstance(template, str) and "\0" not in template else "{%"
    if "{{" in text or "{%" in text or "{#" in text or "{value}" in text or "{json}" in text:
        raise ValueError(f"the command template {plain(template, 80)!r} is not understood; only {{{{ value }}}} is")
    return text.replace("\0", "{value}")


def _full(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The object with full keys."""
    return {names.get(key, key): value for key, value in config.items()}


def _device_texts(config: Mapping[str, Any]) -> dict[str, Any]:
    found = config.get("device")
    device = _full(found, _DEVICE_KEYS) if isinstance(found, dict) else {}
    identifiers = device.get("identifiers", [])
    identifiers = identifiers if isinstance(identifiers, list) else [identifiers]
    connections = device.get("connections", [])
    pairs = connections if isinstance(connections, list) else []
    addresses = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    return {
        "identifiers": [text for one in (*identifiers, *addresses) if (text := json_text(one))][:10],
        "name": device.get("name", ""),
        "manufacturer": device.get("manufacturer", ""),
        "model": device.get("model", ""),
        "area": device.get("suggested_area", ""),
    }


def _components(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entities of a device-based announcement, each with the keys that it shares."""
    components = config.get("components")
    if not isinstance(components, dict) or not components:
        raise ValueError("an announcement of a device has its entities in the object 'components'")
    if len(components) > COMPONENTS_MAX:
        raise ValueError(f"'components' has more than {COMPONENTS_MAX} entities")
    shared = {
        key: value
        for key, value in config.items()
        if key.startswith(("availability", "payload_")) or key in ("~", "state_topic", "command_topic", "qos")
    }
    return {
        str(key): shared | _full(entity, _KEYS)
        for key, entity in components.items()
        # An entity with nothing but its platform is withdrawn.
        if isinstance(entity, dict) and set(_full(entity, _KEYS)) - {"platform"}
    }


def _words(word: object) -> list[object]:
    """A payload in the spellings that it has: Home Assistant compares with Python's text of JSON booleans."""
    return [word, word.lower()] if word in ("True", "False") and isinstance(word, str) else [word]


class _Entity:
    """One entity of an announcement, which is read into the draft of its device.

    It is one class because it has a method for each component of Home Assistant, and all read the same configuration.
    """

    def __init__(self, draft: Draft, name: str, config: Mapping[str, Any], topic: str) -> None:
        self._draft = draft
        self._config = dict(config)
        base = config.get("~")
        if isinstance(base, str):
            for key, value in config.items():
                if isinstance(value, str) and key.endswith("topic"):
                    self._config[key] = _based(value, base)
        self._key = json_text(config.get("unique_id")) or name
        self._label = plain(config.get("name")) or name.replace("_", " ")
        self._retain = config.get("retain") is True
        qos = config.get("qos", 1)
        self._qos = qos if isinstance(qos, int) and not isinstance(qos, bool) else 1

    def read(self) -> None:
        component = self._config.get("platform")
        reader = _READERS.get(component) if isinstance(component, str) else None
        if reader is None:
            self._draft.problem(f"{plain(self._key)}: the component {plain(component)!r} is not supported")
            return
        try:
            reader(self)
            self._availability()
        except ValueError as error:
            self._draft.problem(f"{plain(self._key)}: {error}")

    # Parts

    def value(self, kind: str, topic: str, template: str, payload: str, suffix: str = "", **more: Any) -> Table | None:
        """The sensor of a topic, if the announcement has the topic."""
        if self._config.get(topic) is None:
            return None
        path = template_path(self._config.get(template))
        return self._sensor(kind, self._config[topic], path, payload, suffix, **more)

    def _sensor(
        self, kind: str, topic: object, path: tuple[str | int, ...], payload: Any, suffix: str, **more: Any
    ) -> Table | None:
        if payload == "text" and kind != "gateway:event":
            listed = {text for one in self._config.values() if isinstance(one, list) for text in map(json_text, one)}
            if words := [word for word in _NIL_TEXTS if word not in listed]:
                more["no_value"] = words
        return self._draft.sensor(
            self._named(suffix), kind, topic, payload, label=self._said(suffix), member=path, **more
        )

    def act(
        self,
        kind: str,
        topic: str = "command_topic",
        template: str = "command_template",
        suffix: str = "",
        payload: str | None = None,
        **more: Any,
    ) -> None:
        """The actuator of a command topic, if the announcement has the topic."""
        if self._config.get(topic) is None:
            return
        self._draft.actuator(
            self._named(suffix),
            kind,
            self._config[topic],
            label=self._said(suffix),
            payload=command_payload(self._config.get(template)) if payload is None else payload,
            qos=self._qos,
            retain=self._retain,
            **more,
        )

    def _named(self, suffix: str) -> str:
        return f"{self._key}.{suffix}" if suffix else self._key

    def _said(self, suffix: str) -> str:
        return f"{self._label} {suffix.replace('_', ' ')}" if suffix else self._label

    def _get(self, key: str, default: object) -> object:
        found = self._config.get(key)
        return default if found is None else found

    def _choices(self, key: str) -> dict[str, object] | None:
        """The values that a command may have; None if the announcement does not list them."""
        listed = self._config.get(key)
        if not isinstance(listed, list):
            return None
        return {text: text for one in listed if (text := json_text(one))}

    def _own_kind(self) -> str:
        """By the entity's name: `set temperature offset` of any device is one property."""
        return own_kind(self._label.lower().replace(" ", "_"))

    def _lamp(self, role: str = "part", **more: Any) -> Table:
        """What an actuator is of this light."""
        return {"of": self._key, "role": role} | more

    def _on_off(self, kind: str, state_template: str = "value_template", lamp: Table | None = None) -> None:
        """Switches and what else is on or off."""
        on, off = self._get("payload_on", "ON"), self._get("payload_off", "OFF")
        state = self.value(
            kind,
            "state_topic",
            state_template,
            "boolean",
            on=_words(self._get("state_on", on)),
            off=_words(self._get("state_off", off)),
        )
        self.act(kind, values={"true": on, "false": off}, state=state, lamp=lamp)

    # Components

    def binary_sensor(self) -> None:
        device_class = self._config.get("device_class")
        on, off = _words(self._get("payload_on", "ON")), _words(self._get("payload_off", "OFF"))
        kind = _BINARY.get(device_class) if isinstance(device_class, str) else None
        if isinstance(device_class, str) and device_class in _INVERTED:
            kind, on, off = _INVERTED[device_class], off, on
        self._require("state_topic")
        found = f"gateway:{kind}" if kind else self._own_kind()
        lasts = self._lifetime("off_delay") | self._lifetime("expire_after")
        if (kind or "") in _INVERTED.values() and "off_delay_s" in lasts:
            self._draft.problem(f"{plain(self._key)}: off_delay of this device class is not used")
            del lasts["off_delay_s"]
        self.value(found, "state_topic", "value_template", "boolean", on=on, off=off, **lasts)

    def _lifetime(self, key: str) -> dict[str, Any]:
        """The key of a rule for the seconds that a state lasts."""
        seconds = self._config.get(key)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LIFETIME_S_MAX:
            if seconds:
                self._draft.problem(f"{plain(self._key)}: {key} is not a number of seconds up to {LIFETIME_S_MAX}")
            return {}
        return {f"{key}_s": seconds}

    def sensor(self) -> None:
        device_class, unit = self._config.get("device_class"), self._config.get("unit_of_measurement")
        kind = _MEASURED.get(device_class) if isinstance(device_class, str) else None
        numeric = kind or unit or self._config.get("state_class")
        payload = "text" if not numeric or (isinstance(device_class, str) and device_class in _TEXTS) else "number"
        self._require("state_topic")
        found = f"gateway:{kind}" if kind else self._own_kind()
        lasts = self._lifetime("expire_after")
        self.value(found, "state_topic", "value_template", payload, unit=unit, **lasts)

    def event(self) -> None:
        self._require("state_topic")
        path = template_path(self._config.get("value_template")) or ("event_type",)
        self._sensor("gateway:event", self._config["state_topic"], path, "text", "", on_repeat="event")

    def switch(self) -> None:
        self._require("command_topic")
        self._on_off("gateway:switch")

    def siren(self) -> None:
        self._require("command_topic")
        self._on_off("gateway:siren", "state_value_template")

    def light(self) -> None:
        self._require("command_topic")
        schema = self._get("schema", "default")
        if schema == "json":
            self._json_light()
        elif schema == "default":
            # Before or behind the parts, or instead of it the brightness.
            order = {"first": 0, "brightness": 2}.get(str(self._get("on_command_type", "last")), 2)
            instead = {"unless": "brightness"} if self._config.get("on_command_type") == "brightness" else {}
            lamp = self._lamp("switch", order=order, **instead)
            self._on_off("gateway:light", "state_value_template", lamp)
            self._light_parts()
        elif schema == "template":
            self._template_light()
        else:
            raise ValueError(f"lights of the schema {plain(schema)!r} are not supported")

    def _light_parts(self) -> None:
        bright = self.value(
            "gateway:brightness", "brightness_state_topic", "brightness_value_template", "number", "brightness"
        )
        self.act(
            "gateway:brightness",
            "brightness_command_topic",
            "brightness_command_template",
            "brightness",
            state=bright,
            minimum=0,
            maximum=self._get("brightness_scale", 255),
            lamp=self._lamp(order=1, name="brightness"),
        )
        kelvin = self._config.get("color_temp_kelvin") is True
        unit = {"unit": "K" if kelvin else "mired"}
        warm = self.value(
            "gateway:colorTemperature",
            "color_temp_state_topic",
            "color_temp_value_template",
            "number",
            "color_temp",
            **unit,
        )
        self.act(
            "gateway:colorTemperature",
            "color_temp_command_topic",
            "color_temp_command_template",
            "color_temp",
            state=warm,
            minimum=self._config.get("min_kelvin" if kelvin else "min_mireds"),
            maximum=self._config.get("max_kelvin" if kelvin else "max_mireds"),
            lamp=self._lamp("mode", order=1),
        )
        mode = self._lamp("mode", order=1)
        color = self.value("gateway:color", "rgb_state_topic", "rgb_value_template", "text", "rgb")
        self.act("gateway:color", "rgb_command_topic", "rgb_command_template", "rgb", state=color, lamp=mode)
        effect = self.value("gateway:effect", "effect_state_topic", "effect_value_template", "text", "effect")
        self.act(
            "gateway:effect",
            "effect_command_topic",
            "effect_command_template",
            "effect",
            state=effect,
            values=self._choices("effect_list"),
            lamp=mode,
        )

    def _template_light(self) -> None:
        """A light whose command is one text with all its parts."""
        on = command_pieces(self._config.get("command_on_template"))
        names = {name for name, _ in on}
        off = "".join(text for name, text in command_pieces(self._config.get("command_off_template")) if not name)
        self.act(
            "gateway:light",
            payload="{value}",
            # What is sent for on is made of the pieces.
            values={"true": "on", "false": off},
            state=self._template_state("gateway:light", "state_template", "boolean", "", on=["on"], off=["off"]),
            lamp=self._lamp("switch", on=on),
        )
        parts: tuple[tuple[str, str, str, str, Table], ...] = (
            ("brightness", "gateway:brightness", "brightness_template", "part", {"minimum": 0, "maximum": 255}),
            ("color_temp", "gateway:colorTemperature", "color_temp_template", "mode", {}),
            ("effect", "gateway:effect", "effect_template", "mode", {"values": self._choices("effect_list")}),
            ("transition", "gateway:transition", "", "transition", {"minimum": 0}),
        )
        for name, kind, template, role, more in parts:
            if name in names:
                payload = "text" if name == "effect" else "number"
                state = self._template_state(kind, template, payload, name) if template else None
                self.act(
                    kind, suffix=name, payload="{value}", state=state, lamp=self._lamp(role, name=name, on=on), **more
                )
        if "rgb" in names:
            self.act("gateway:color", suffix="rgb", payload="{value}", lamp=self._lamp("mode", name="rgb", on=on))

    def _template_state(self, kind: str, template: str, payload: str, suffix: str, **more: Any) -> Table | None:
        """The sensor of a part, if the announcement says how it is read."""
        if self._config.get(template) is None:
            return None
        try:
            return self.value(kind, "state_topic", template, payload, suffix, **more)
        except ValueError as error:  # it can be switched nevertheless
            self._draft.problem(f"{plain(self._key)}: {error}")
            return None

    def _json_light(self) -> None:
        """A light that takes and tells its state as a JSON object."""
        topic = self._config.get("state_topic")
        on, off = '{"state": "ON"}', '{"state": "OFF"}'

        def told(kind: str, member: str, payload: str, suffix: str, **more: Any) -> Table | None:
            return None if topic is None else self._sensor(kind, topic, (member,), payload, suffix, **more)

        state = told("gateway:light", "state", "boolean", "", on=["ON"], off=["OFF"])
        lamp = self._lamp("switch")
        self.act("gateway:light", payload="{value}", values={"true": on, "false": off}, state=state, lamp=lamp)
        modes = self._config.get("supported_color_modes")
        modes = modes if isinstance(modes, list) else []
        if self._config.get("brightness") is True or set(map(str, modes)) - {"onoff"}:
            bright = told("gateway:brightness", "brightness", "number", "brightness")
            self.act(
                "gateway:brightness",
                suffix="brightness",
                payload='{"state": "ON", "brightness": {value}}',
                state=bright,
                minimum=0,
                maximum=self._get("brightness_scale", 255),
                lamp=self._lamp(order=1),
            )
            payload, rider = '{"transition": {value}}', self._lamp("transition", order=2)
            self.act("gateway:transition", suffix="transition", payload=payload, minimum=0, lamp=rider)
        if "color_temp" in modes:
            unit = "K" if self._config.get("color_temp_kelvin") is True else "mired"
            kind = "gateway:colorTemperature"
            warm = told(kind, "color_temp", "number", "color_temp", unit=unit)
            payload = '{"state": "ON", "color_temp": {value}}'
            self.act(kind, suffix="color_temp", payload=payload, state=warm, lamp=self._lamp("mode", order=1))
        if set(map(str, modes)) & {"rgb", "rgbw", "rgbww"}:
            payload = '{"state": "ON", "color": {"r": {red}, "g": {green}, "b": {blue}}}'
            self.act("gateway:color", suffix="rgb", payload=payload, lamp=self._lamp("mode", order=1, name="rgb"))

    def cover(self) -> None:
        self._opened("gateway:cover")
        place = self.value("gateway:position", "position_topic", "position_template", "number", "position", unit="%")
        self.act("gateway:position", "set_position_topic", "set_position_template", "position", state=place)
        tilt = self.value("gateway:tilt", "tilt_status_topic", "tilt_status_template", "number", "tilt", unit="%")
        self.act("gateway:tilt", "tilt_command_topic", "tilt_command_template", "tilt", state=tilt)

    def valve(self) -> None:
        if self._config.get("reports_position") is True:
            self._require("command_topic")
            place = self.value("gateway:position", "state_topic", "value_template", "number", unit="%")
            self.act("gateway:position", state=place)
        else:
            self._opened("gateway:valve")

    def _opened(self, kind: str) -> None:
        """Covers and valves: the words of the device for OPEN, CLOSE and STOP."""
        self.value(kind, "state_topic", "value_template", "text")
        words = {word: self._config.get(f"payload_{word.lower()}", word) for word in ("OPEN", "CLOSE", "STOP")}
        # JSON null says that the device cannot do it.
        can = {word: text for word, text in words.items() if text is not None}
        self.act(kind, values=can)  # what it reports are other words

    def lock(self) -> None:
        self._require("command_topic")
        state = self.value(
            "gateway:lock",
            "state_topic",
            "value_template",
            "boolean",
            on=_words(self._get("state_locked", "LOCKED")),
            off=_words(self._get("state_unlocked", "UNLOCKED")),
        )
        lock, unlock = self._get("payload_lock", "LOCK"), self._get("payload_unlock", "UNLOCK")
        self.act("gateway:lock", values={"true": lock, "false": unlock}, state=state)

    def fan(self) -> None:
        self._require("command_topic")
        self._on_off("gateway:fan", "state_value_template")
        low, high = self._get("speed_range_min", 1), self._get("speed_range_max", 100)
        speed = self.value("gateway:fanSpeed", "percentage_state_topic", "percentage_value_template", "number", "speed")
        self.act(
            "gateway:fanSpeed",
            "percentage_command_topic",
            "percentage_command_template",
            "speed",
            state=speed,
            minimum=low,
            maximum=high,
        )
        self._mode("gateway:preset", "preset_mode", "preset_modes", "preset", "value")

    def number(self) -> None:
        self._require("command_topic")
        unit, kind = self._config.get("unit_of_measurement"), self._own_kind()
        state = self.value(kind, "state_topic", "value_template", "number", unit=unit)
        self.act(kind, state=state, minimum=self._get("min", 1), maximum=self._get("max", 100))

    def select(self) -> None:
        self._require("command_topic")
        kind = self._own_kind()
        state = self.value(kind, "state_topic", "value_template", "text")
        self.act(kind, state=state, values=self._choices("options"))

    def text(self) -> None:
        self._require("command_topic")
        kind = self._own_kind()
        self.act(kind, state=self.value(kind, "state_topic", "value_template", "text"))

    def button(self) -> None:
        self._require("command_topic")
        self.act("gateway:button", values={"PRESS": self._get("payload_press", "PRESS")})

    def scene(self) -> None:
        self._require("command_topic")
        self.act("gateway:button", values={"PRESS": self._get("payload_on", "ON")})

    def device_tracker(self) -> None:
        self._require("state_topic")
        self.value(
            "gateway:occupancy",
            "state_topic",
            "value_template",
            "boolean",
            on=[self._get("payload_home", "home")],
            off=[self._get("payload_not_home", "not_home")],
        )

    def climate(self) -> None:
        degrees = {"unit": "°F" if self._config.get("temperature_unit") == "F" else "°C"}
        self.value(
            "gateway:temperature",
            "current_temperature_topic",
            "current_temperature_template",
            "number",
            "temperature",
            **degrees,
        )
        self.value(
            "gateway:humidity", "current_humidity_topic", "current_humidity_template", "number", "humidity", unit="%"
        )
        self.value("gateway:climateAction", "action_topic", "action_template", "text", "action")
        self._goal("gateway:targetTemperature", "temperature", ("min_temp", 7), ("max_temp", 35), **degrees)
        self._mode("gateway:climateMode", "mode", "modes", "mode", "state")
        self._mode("gateway:fanMode", "fan_mode", "fan_modes", "fan_mode", "state")
        self._mode("gateway:preset", "preset_mode", "preset_modes", "preset", "value")

    def humidifier(self) -> None:
        self._require("command_topic")
        self._on_off("gateway:switch", "state_value_template")
        self._goal("gateway:targetHumidity", "target_humidity", ("min_humidity", 0), ("max_humidity", 100), unit="%")
        self._mode("gateway:preset", "mode", "modes", "mode", "state")

    def _goal(self, kind: str, name: str, minimum: tuple[str, float], maximum: tuple[str, float], *, unit: str) -> None:
        """A number that the device is to reach. minimum, maximum: members of the announcement, and their defaults."""
        state = self.value(kind, f"{name}_state_topic", f"{name}_state_template", "number", "target", unit=unit)
        self.act(
            kind,
            f"{name}_command_topic",
            f"{name}_command_template",
            "target",
            state=state,
            minimum=self._get(*minimum),
            maximum=self._get(*maximum),
        )

    def _mode(self, kind: str, name: str, choices: str, suffix: str, template: str) -> None:
        state = self.value(kind, f"{name}_state_topic", f"{name}_{template}_template", "text", suffix)
        self.act(
            kind,
            f"{name}_command_topic",
            f"{name}_command_template",
            suffix,
            state=state,
            values=self._choices(choices),
        )

    def _require(self, key: str) -> None:
        if self._config.get(key) is None:
            raise ValueError(f"{key} is missing")

    def _availability(self) -> None:
        mode = self._config.get("availability_mode")
        self._draft.mode = mode if mode in ("all", "any", "latest") else "latest"
        for config in self._availability_tables():
            topic, template = config.get("topic"), config.get("value_template")
            on, off = config.get("payload_available", "online"), config.get("payload_not_available", "offline")
            path = template_path(template)
            if any(isinstance(step, int) for step in path):
                raise ValueError("availability: an index in the template is not supported")
            self._draft.online(topic, _words(on), _words(off), [str(step) for step in path])

    def _availability_tables(self) -> Iterator[dict[str, Any]]:
        listed = self._config.get("availability")
        base = self._config.get("~")
        shared = {
            key: self._config[key] for key in ("payload_available", "payload_not_available") if key in self._config
        }
        if self._config.get("availability_topic") is not None:
            template = self._config.get("availability_template")
            yield shared | {"topic": self._config["availability_topic"], "value_template": template}
        for found in listed[:16] if isinstance(listed, list) else [listed] if isinstance(listed, dict) else []:
            if isinstance(found, dict):
                table = _full(found, _KEYS)
                if isinstance(base, str) and isinstance(table.get("topic"), str):
                    table["topic"] = _based(table["topic"], base)
                yield table


def _based(topic: str, base: str) -> str:
    """A topic with the base in place of a ``~`` at its start or end."""
    if topic.startswith("~"):
        return f"{base[:1000]}{topic[1:]}"
    if topic.endswith("~"):
        return f"{topic[:-1]}{base[:1000]}"
    return topic


_READERS: dict[str, Callable[[_Entity], None]] = {
    "binary_sensor": _Entity.binary_sensor,
    "button": _Entity.button,
    "climate": _Entity.climate,
    "cover": _Entity.cover,
    "device_tracker": _Entity.device_tracker,
    "event": _Entity.event,
    "fan": _Entity.fan,
    "humidifier": _Entity.humidifier,
    "light": _Entity.light,
    "lock": _Entity.lock,
    "number": _Entity.number,
    "scene": _Entity.scene,
    "select": _Entity.select,
    "sensor": _Entity.sensor,
    "siren": _Entity.siren,
    "switch": _Entity.switch,
    "text": _Entity.text,
    "valve": _Entity.valve,
}
