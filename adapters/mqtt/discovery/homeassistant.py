"""Home Assistant's MQTT discovery -> devices.

``<prefix>/<component>/[<node>/]<object>/config`` announces one entity, ``<prefix>/device/<object>/config`` a device
with its entities in ``components``. Keys may be abbreviated, and ``~`` stands for a base topic. An empty payload
withdraws what the topic announced. The entities with the same first identifier are one device.

Templates are Jinja there. Only paths are understood: ``{{ value }}``, ``{{ value_json.a['b'][0] }}``, with the filters
of `_FILTERS`. An entity with another template is a problem and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import DeviceTexts, Draft, json_text, number, own_kind, plain
from lamplighter.adapters.mqtt.discovery.announced import Announced, Format, Group, Joined, json_object, merged
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.light_templates import command_pieces

NAME = "homeassistant"
PREFIX = "homeassistant"
"""Of the topics; the setting `discovery_prefix` may name others."""
LIFETIME_S_MAX = 31_536_000
COMPONENTS_MAX = 200
"""Entities of one announcement."""

_KEYS = {
    "act_t": "action_topic",
    "act_tpl": "action_template",
    "atype": "automation_type",
    "av_tones": "available_tones",
    "avty": "availability",
    "avty_mode": "availability_mode",
    "avty_t": "availability_topic",
    "avty_tpl": "availability_template",
    "b_tpl": "blue_template",
    "bat_lev_t": "battery_level_topic",
    "bat_lev_tpl": "battery_level_template",
    "bri_cmd_t": "brightness_command_topic",
    "bri_cmd_tpl": "brightness_command_template",
    "bri_scl": "brightness_scale",
    "bri_stat_t": "brightness_state_topic",
    "bri_tpl": "brightness_template",
    "bri_val_tpl": "brightness_value_template",
    "clr_temp_cmd_t": "color_temp_command_topic",
    "clr_temp_cmd_tpl": "color_temp_command_template",
    "clr_temp_k": "color_temp_kelvin",
    "clr_temp_stat_t": "color_temp_state_topic",
    "clr_temp_tpl": "color_temp_template",
    "clr_temp_val_tpl": "color_temp_value_template",
    "clrm": "color_mode",
    "clrm_stat_t": "color_mode_state_topic",
    "clrm_val_tpl": "color_mode_value_template",
    "cmd_off_tpl": "command_off_template",
    "cmd_on_tpl": "command_on_template",
    "cmd_t": "command_topic",
    "cmd_tpl": "command_template",
    "cmps": "components",
    "cod_arm_req": "code_arm_required",
    "cod_dis_req": "code_disarm_required",
    "cod_trig_req": "code_trigger_required",
    "cont_type": "content_type",
    "curr_hum_t": "current_humidity_topic",
    "curr_hum_tpl": "current_humidity_template",
    "curr_temp_t": "current_temperature_topic",
    "curr_temp_tpl": "current_temperature_template",
    "def_ent_id": "default_entity_id",
    "dev": "device",
    "dev_cla": "device_class",
    "dir_cmd_t": "direction_command_topic",
    "dir_cmd_tpl": "direction_command_template",
    "dir_stat_t": "direction_state_topic",
    "dir_val_tpl": "direction_value_template",
    "dsp_prc": "display_precision",
    "e": "encoding",
    "en": "enabled_by_default",
    "ent_cat": "entity_category",
    "ent_pic": "entity_picture",
    "evt_typ": "event_types",
    "exp_aft": "expire_after",
    "fan_mode_cmd_t": "fan_mode_command_topic",
    "fan_mode_cmd_tpl": "fan_mode_command_template",
    "fan_mode_stat_t": "fan_mode_state_topic",
    "fan_mode_stat_tpl": "fan_mode_state_template",
    "fanspd_lst": "fan_speed_list",
    "flsh": "flash",
    "flsh_tlng": "flash_time_long",
    "flsh_tsht": "flash_time_short",
    "frc_upd": "force_update",
    "fx_cmd_t": "effect_command_topic",
    "fx_cmd_tpl": "effect_command_template",
    "fx_list": "effect_list",
    "fx_stat_t": "effect_state_topic",
    "fx_tpl": "effect_template",
    "fx_val_tpl": "effect_value_template",
    "g_tpl": "green_template",
    "hs_cmd_t": "hs_command_topic",
    "hs_cmd_tpl": "hs_command_template",
    "hs_stat_t": "hs_state_topic",
    "hs_val_tpl": "hs_value_template",
    "hum_cmd_t": "target_humidity_command_topic",
    "hum_cmd_tpl": "target_humidity_command_template",
    "hum_stat_t": "target_humidity_state_topic",
    "hum_state_tpl": "target_humidity_state_template",
    "ic": "icon",
    "img_e": "image_encoding",
    "img_t": "image_topic",
    "init": "initial",
    "json_attr": "json_attributes",
    "json_attr_t": "json_attributes_topic",
    "json_attr_tpl": "json_attributes_template",
    "l_ver_t": "latest_version_topic",
    "l_ver_tpl": "latest_version_template",
    "lrst_t": "last_reset_topic",
    "lrst_val_tpl": "last_reset_value_template",
    "max_hum": "max_humidity",
    "max_k": "max_kelvin",
    "max_mirs": "max_mireds",
    "migr_discvry": "migrate_discovery",
    "min_hum": "min_humidity",
    "min_k": "min_kelvin",
    "min_mirs": "min_mireds",
    "mode_cmd_t": "mode_command_topic",
    "mode_cmd_tpl": "mode_command_template",
    "mode_stat_t": "mode_state_topic",
    "mode_stat_tpl": "mode_state_template",
    "o": "origin",
    "obj_id": "object_id",
    "off_dly": "off_delay",
    "on_cmd_type": "on_command_type",
    "ops": "options",
    "opt": "optimistic",
    "osc_cmd_t": "oscillation_command_topic",
    "osc_cmd_tpl": "oscillation_command_template",
    "osc_stat_t": "oscillation_state_topic",
    "osc_val_tpl": "oscillation_value_template",
    "p": "platform",
    "pct_cmd_t": "percentage_command_topic",
    "pct_cmd_tpl": "percentage_command_template",
    "pct_stat_t": "percentage_state_topic",
    "pct_val_tpl": "percentage_value_template",
    "pl": "payload",
    "pl_avail": "payload_available",
    "pl_cls": "payload_close",
    "pl_dir_fwd": "payload_direction_forward",
    "pl_dir_rev": "payload_direction_reverse",
    "pl_home": "payload_home",
    "pl_inst": "payload_install",
    "pl_lock": "payload_lock",
    "pl_not_avail": "payload_not_available",
    "pl_not_home": "payload_not_home",
    "pl_off": "payload_off",
    "pl_on": "payload_on",
    "pl_open": "payload_open",
    "pl_osc_off": "payload_oscillation_off",
    "pl_osc_on": "payload_oscillation_on",
    "pl_paus": "payload_pause",
    "pl_prs": "payload_press",
    "pl_rst": "payload_reset",
    "pl_rst_hum": "payload_reset_humidity",
    "pl_rst_mode": "payload_reset_mode",
    "pl_rst_pct": "payload_reset_percentage",
    "pl_rst_pr_mode": "payload_reset_preset_mode",
    "pl_stop": "payload_stop",
    "pl_stop_tilt": "payload_stop_tilt",
    "pl_toff": "payload_turn_off",
    "pl_ton": "payload_turn_on",
    "pl_trig": "payload_trigger",
    "pl_unlk": "payload_unlock",
    "pos": "reports_position",
    "pos_clsd": "position_closed",
    "pos_open": "position_open",
    "pos_t": "position_topic",
    "pos_tpl": "position_template",
    "pow_cmd_t": "power_command_topic",
    "pow_cmd_tpl": "power_command_template",
    "pr_mode_cmd_t": "preset_mode_command_topic",
    "pr_mode_cmd_tpl": "preset_mode_command_template",
    "pr_mode_stat_t": "preset_mode_state_topic",
    "pr_mode_val_tpl": "preset_mode_value_template",
    "pr_modes": "preset_modes",
    "ptrn": "pattern",
    "r_tpl": "red_template",
    "rel_s": "release_summary",
    "rel_u": "release_url",
    "ret": "retain",
    "rgb_cmd_t": "rgb_command_topic",
    "rgb_cmd_tpl": "rgb_command_template",
    "rgb_stat_t": "rgb_state_topic",
    "rgb_val_tpl": "rgb_value_template",
    "rgbw_cmd_t": "rgbw_command_topic",
    "rgbw_cmd_tpl": "rgbw_command_template",
    "rgbw_stat_t": "rgbw_state_topic",
    "rgbw_val_tpl": "rgbw_value_template",
    "rgbww_cmd_t": "rgbww_command_topic",
    "rgbww_cmd_tpl": "rgbww_command_template",
    "rgbww_stat_t": "rgbww_state_topic",
    "rgbww_val_tpl": "rgbww_value_template",
    "set_pos_t": "set_position_topic",
    "set_pos_tpl": "set_position_template",
    "spd_rng_max": "speed_range_max",
    "spd_rng_min": "speed_range_min",
    "src_type": "source_type",
    "stat_cla": "state_class",
    "stat_closing": "state_closing",
    "stat_clsd": "state_closed",
    "stat_jam": "state_jammed",
    "stat_locked": "state_locked",
    "stat_locking": "state_locking",
    "stat_off": "state_off",
    "stat_on": "state_on",
    "stat_open": "state_open",
    "stat_opening": "state_opening",
    "stat_stopped": "state_stopped",
    "stat_t": "state_topic",
    "stat_tpl": "state_template",
    "stat_unlocked": "state_unlocked",
    "stat_unlocking": "state_unlocking",
    "stat_val_tpl": "state_value_template",
    "stype": "subtype",
    "sug_dsp_prc": "suggested_display_precision",
    "sup_clrm": "supported_color_modes",
    "sup_dur": "support_duration",
    "sup_feat": "supported_features",
    "sup_vol": "support_volume_set",
    "swing_mode_cmd_t": "swing_mode_command_topic",
    "swing_mode_cmd_tpl": "swing_mode_command_template",
    "swing_mode_stat_t": "swing_mode_state_topic",
    "swing_mode_stat_tpl": "swing_mode_state_template",
    "t": "topic",
    "temp_cmd_t": "temperature_command_topic",
    "temp_cmd_tpl": "temperature_command_template",
    "temp_hi_cmd_t": "temperature_high_command_topic",
    "temp_hi_cmd_tpl": "temperature_high_command_template",
    "temp_hi_stat_t": "temperature_high_state_topic",
    "temp_hi_stat_tpl": "temperature_high_state_template",
    "temp_lo_cmd_t": "temperature_low_command_topic",
    "temp_lo_cmd_tpl": "temperature_low_command_template",
    "temp_lo_stat_t": "temperature_low_state_topic",
    "temp_lo_stat_tpl": "temperature_low_state_template",
    "temp_stat_t": "temperature_state_topic",
    "temp_stat_tpl": "temperature_state_template",
    "temp_unit": "temperature_unit",
    "tilt_clsd_val": "tilt_closed_value",
    "tilt_cmd_t": "tilt_command_topic",
    "tilt_cmd_tpl": "tilt_command_template",
    "tilt_opnd_val": "tilt_opened_value",
    "tilt_opt": "tilt_optimistic",
    "tilt_status_t": "tilt_status_topic",
    "tilt_status_tpl": "tilt_status_template",
    "tit": "title",
    "trns": "transition",
    "uniq_id": "unique_id",
    "unit_of_meas": "unit_of_measurement",
    "url_t": "url_topic",
    "url_tpl": "url_template",
    "val_tpl": "value_template",
    "whit_cmd_t": "white_command_topic",
    "whit_scl": "white_scale",
    "xy_cmd_t": "xy_command_topic",
    "xy_cmd_tpl": "xy_command_template",
    "xy_stat_t": "xy_state_topic",
    "xy_val_tpl": "xy_value_template",
}
"""Abbreviations of keys, as Home Assistant's documentation of MQTT discovery lists them."""
_DEVICE_KEYS = {
    "cns": "connections",
    "ids": "identifiers",
    "mdl": "model",
    "mf": "manufacturer",
    "sa": "suggested_area",
    "hw": "hw_version",
    "sw": "sw_version",
    "sn": "serial_number",
    "cu": "configuration_url",
    "mdl_id": "model_id",
}
_HARMLESS = frozenset(
    {
        # of every entity, for its user interface and its own registry
        "name", "object_id", "default_entity_id", "unique_id", "icon", "entity_picture", "enabled_by_default",
        "entity_category", "origin", "migrate_discovery", "force_update", "optimistic", "tilt_optimistic", "initial",
        "suggested_display_precision", "display_precision", "device_class", "state_class", "platform", "schema",
        "qos", "retain", "device", "~",
        # of devices and the software that announces them
        "sw_version", "hw_version", "serial_number", "configuration_url", "model_id", "via_device",
        # steps and choices of a user interface, and lists of what a text may be
        "step", "mode", "precision", "temp_step", "event_types", "source_type", "title",
        # payloads of commands that the vocabulary has no state for, such as of the slats alone
        "tilt_opened_value", "tilt_closed_value", "payload_stop_tilt", "payload_reset",
    }
)  # fmt: skip
"""Keys that say nothing of a value, a state or a command."""

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

_SHARED_STARTS = ("availability", "payload_")
_SHARED = frozenset({"~", "state_topic", "command_topic", "qos"})
"""Keys of a device-based announcement that its entities share."""

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


def format_of(prefixes: Sequence[str]) -> Format:
    """The format with these prefixes of its topics."""

    def below(topic: str) -> str:
        return next((topic[len(prefix) + 1 :] for prefix in prefixes if topic.startswith(f"{prefix}/")), "")

    def covers(topic: str) -> bool:
        rest = below(topic)
        return rest.endswith("/config") and rest.count("/") in (2, 3)

    return Format(
        NAME,
        tuple(f"{prefix}/{levels}/config" for prefix in prefixes for levels in ("+/+", "+/+/+")),
        covers=covers,
        announced=lambda broker, topic, payload: announced(broker, topic, below(topic), payload),
        joined=joined,
        # The birth message of Home Assistant: devices that retain nothing announce themselves and send their states.
        state_asks=tuple((f"{prefix}/status", "online") for prefix in prefixes),
    )


def filters_of_topic(topic: str) -> list[str]:
    """What another prefix subscribes to for a topic of announcements; nothing for other topics."""
    levels = topic.split("/")
    varying = [count for count in (2, 3) if levels[-1] == "config" and len(levels) > count + 1]
    return ["/".join([*levels[: -count - 1], *["+"] * count, "config"]) for count in varying]


def announced(broker: str, topic: str, below: str, payload: bytes) -> Announced:
    """The entities of an announcement, each a part of its device. below: its topic behind the prefix. Raises
    ValueError."""
    levels = below.split("/")
    component, name = levels[0], "/".join(levels[1:-1])
    if not payload:
        return Announced()
    config = json_object(payload)
    config.rename(_KEYS)
    device = _device_texts(config)
    if any(_ZIGBEE2MQTT.fullmatch(one) for one in device["identifiers"]):
        return Announced()  # its own list tells more, and announces removals
    shared: frozenset[str] = frozenset()
    if component != "device":
        config["platform"] = component
        entities = {name.replace("/", "_"): config}
    else:
        shared = frozenset(key for key in config if key.startswith(_SHARED_STARTS) or key in _SHARED)
        entities = _components(config, shared)
    own = device["identifiers"]
    identifier = own[0] if own else plain(json_text(config.get("unique_id"))) or name.replace("/", "_")
    draft = Draft(
        NAME,
        identifier,
        broker=broker,
        topic=topic,
        about=DeviceTexts(
            name=device["name"] or plain(config.get("name")),
            manufacturer=device["manufacturer"],
            model=device["model"],
            area=device["area"],
        ),
    )
    for key, entity in entities.items():
        understood = _Entity(draft, key, entity, topic).read()
        if entity is not config:
            config.mark(shared & entity.read_names)
            entity.mark(shared)
            if understood:
                draft.leave_out(entity.omissions(_HARMLESS), plain(json_text(entity.get("unique_id"))) or key)
            entity.settle()
    label = plain(json_text(config.get("unique_id"))) or name if component != "device" else ""
    if component == "device" or understood:
        draft.leave_out(config.omissions(_HARMLESS), label)
    return Announced({(draft.id, topic): Joined.of(draft)}, draft.problems)


def joined(broker: str, group: Group, parts: Mapping[str, Any]) -> Joined:
    return merged(parts[topic] for topic in sorted(parts))


FORMAT = format_of((PREFIX,))


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


def _device_texts(config: Declared) -> dict[str, Any]:
    found = config.get("device")
    device = found if isinstance(found, Declared) else Declared({})
    device.rename(_DEVICE_KEYS)
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


def _components(config: Declared, shared: Container[str]) -> dict[str, Declared]:
    """The entities of a device-based announcement, each with the keys that it shares."""
    components = config.get("components")
    if not isinstance(components, Declared) or not components:
        raise ValueError("an announcement of a device has its entities in the object 'components'")
    if len(components) > COMPONENTS_MAX:
        raise ValueError(f"'components' has more than {COMPONENTS_MAX} entities")
    common = {key: value for key, value in config.items() if key in shared}
    found = {}
    for key in [key for key, entity in components.items() if isinstance(entity, dict)]:
        entity = components[key]
        entity.rename(_KEYS)
        # An entity with nothing but its platform is withdrawn.
        if set(entity) - {"platform"}:
            for name, value in common.items():
                entity.setdefault(name, value)
            found[str(key)] = entity
    return found


def _words(word: object) -> list[object]:
    """A payload in the spellings that it has: Home Assistant compares with Python's text of JSON booleans."""
    return [word, word.lower()] if word in ("True", "False") and isinstance(word, str) else [word]


class _Entity:
    """One entity of an announcement, which is read into the draft of its device.

    It is one class because it has a method for each component of Home Assistant, and all read the same configuration.
    """

    def __init__(self, draft: Draft, name: str, config: Declared, topic: str) -> None:
        self._draft = draft
        self._config = config
        base = config.get("~")
        if isinstance(base, str):
            for key, value in dict(config).items():
                if isinstance(value, str) and key.endswith("topic"):
                    config[key] = _based(value, base)
        self._key = json_text(config.get("unique_id")) or name
        self._label = plain(config.get("name")) or name.replace("_", " ")
        self._retain = config.get("retain") is True
        qos = config.get("qos", 1)
        self._qos = qos if isinstance(qos, int) and not isinstance(qos, bool) else 1

    def read(self) -> bool:
        """Reads it. Returns whether it is understood; if it is not, that is a problem."""
        component = self._config.get("platform")
        reader = _READERS.get(component) if isinstance(component, str) else None
        if reader is None:
            self._draft.problem(f"{plain(self._key)}: the component {plain(component)!r} is not supported")
            return False
        try:
            if not isinstance(self._config.get("~", ""), str):
                raise ValueError("the base topic ~ is not a text")
            reader(self)
            self._availability()
        except ValueError as error:
            self._draft.problem(f"{plain(self._key)}: {error}")
            return False
        return True

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
        if listed is None:
            return None
        if not isinstance(listed, list):
            raise ValueError(f"{key} is not a list")
        if any(one is not None and not json_text(one) for one in listed):
            self._draft.leave_out([f"items of {key}"], self._key)
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
        self._choices("options")  # which texts come
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
        unit, coldest, warmest = self._color_temperatures()
        warm = self.value(
            "gateway:colorTemperature",
            "color_temp_state_topic",
            "color_temp_value_template",
            "number",
            "color_temp",
            unit=unit,
        )
        self.act(
            "gateway:colorTemperature",
            "color_temp_command_topic",
            "color_temp_command_template",
            "color_temp",
            state=warm,
            minimum=coldest,
            maximum=warmest,
            lamp=self._lamp("mode", order=1),
        )
        mode = self._lamp("mode", order=1)
        for name in ("rgb", "hs", "xy", "rgbw", "rgbww"):
            kind = "gateway:color" if name == "rgb" else f"property/color_{name}"
            color = self.value(kind, f"{name}_state_topic", f"{name}_value_template", "text", name)
            self.act(kind, f"{name}_command_topic", f"{name}_command_template", name, state=color, lamp=mode)
        self.value("property/color_mode", "color_mode_state_topic", "color_mode_value_template", "text", "color_mode")
        white = self._get("white_scale", 255)
        self.act("property/white", "white_command_topic", "", "white", "{value}", minimum=0, maximum=white)
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
            unit, coldest, warmest = self._color_temperatures()
            kind, bounds = "gateway:colorTemperature", dict[str, Any](minimum=coldest, maximum=warmest)
            warm = told(kind, "color_temp", "number", "color_temp", unit=unit)
            bounds["lamp"] = self._lamp("mode", order=1)
            self.act(kind, suffix="color_temp", payload='{"state": "ON", "color_temp": {value}}', state=warm, **bounds)
        if set(map(str, modes)) & {"rgb", "rgbw", "rgbww"}:
            payload = '{"state": "ON", "color": {"r": {red}, "g": {green}, "b": {blue}}}'
            self.act("gateway:color", suffix="rgb", payload=payload, lamp=self._lamp("mode", order=1, name="rgb"))
        if len(modes) > 1:
            told("property/color_mode", "color_mode", "text", "color_mode")
        self._json_colors(topic, set(map(str, modes)))
        if self._config.get("effect") is True or "effect_list" in self._config:
            effect = told("gateway:effect", "effect", "text", "effect")
            choices = self._choices("effect_list")
            payload = '{"state": "ON", "effect": {json}}'
            lamp = self._lamp("mode", order=1)
            self.act("gateway:effect", suffix="effect", payload=payload, state=effect, values=choices, lamp=lamp)

    def _json_colors(self, topic: object, modes: set[str]) -> None:
        """The parts of the object `color` in the modes of the light: rgb, rgbw and rgbww are 0 to 255, hs degrees and
        percent, xy of CIE 1931."""
        of_modes = {
            "hs": ("h", "s"), "xy": ("x", "y"), "rgb": ("r", "g", "b"), "rgbw": ("r", "g", "b", "w"),
            "rgbww": ("r", "g", "b", "c", "w"),
        }  # fmt: skip
        parts = dict.fromkeys(part for mode, names in of_modes.items() if mode in modes for part in names)
        for part in parts if topic is not None else ():
            self._sensor(f"property/color_{part}", topic, ("color", part), "number", f"color_{part}")

    def _color_temperatures(self) -> tuple[str, float | None, float | None]:
        """Unit of the colour temperature, its least and its greatest number. The bounds may be in the other unit."""
        kelvin = self._config.get("color_temp_kelvin") is True
        names = ("min_kelvin", "max_kelvin") if kelvin else ("min_mireds", "max_mireds")
        others = ("max_mireds", "min_mireds") if kelvin else ("max_kelvin", "min_kelvin")
        bounds = []
        for name, other in zip(names, others, strict=True):
            bound, opposite = number(self._config.get(name)), number(self._config.get(other))
            if bound is None and opposite:
                bound = float(round(1_000_000 / opposite))
            bounds.append(bound)
        return "K" if kelvin else "mired", bounds[0], bounds[1]

    def cover(self) -> None:
        self._opened("gateway:cover")
        place = self._percent("position_closed", "position_open")
        self._percentage(
            "gateway:position", "position_topic", "position_template", "set_position_topic", "set_position_template",
            "position", place,
        )  # fmt: skip
        tilt = self._percent("tilt_min", "tilt_max")
        self._percentage(
            "gateway:tilt", "tilt_status_topic", "tilt_status_template", "tilt_command_topic", "tilt_command_template",
            "tilt", tilt,
        )  # fmt: skip

    def valve(self) -> None:
        if self._config.get("reports_position") is True:
            self._require("command_topic")
            place = self._percent("position_closed", "position_open")
            self._percentage(
                "gateway:position", "state_topic", "value_template", "command_topic", "command_template", "", place
            )
        else:
            self._opened("gateway:valve")

    def _opened(self, kind: str) -> None:
        """Covers and valves: the words of the device for OPEN, CLOSE and STOP."""
        states = ("open", "opening", "closed", "closing", "stopped")
        own = [self._config.get(f"state_{state}") for state in states]
        # Where the device has words of its own, its state is told in the usual ones.
        if any(word is not None and not json_text(word) for word in own):
            raise ValueError("a word of state_open, state_closed and so on is not a text")
        words = {json_text(word) or state: state for word, state in zip(own, states, strict=True)}
        more: dict[str, Any] = {"words": words} if any(own) else {}
        self.value(kind, "state_topic", "value_template", "text", **more)
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
        # The lowest speed is one step above 0.
        speed = self._percent("speed_range_min", "speed_range_max", 1, below=1)
        self._percentage(
            "gateway:fanSpeed", "percentage_state_topic", "percentage_value_template", "percentage_command_topic",
            "percentage_command_template", "speed", speed,
        )  # fmt: skip
        self._mode("gateway:preset", "preset_mode", "preset_modes", "preset", "value")

    def _percent(self, low: str, high: str, default: int = 0, *, below: int = 0) -> dict[str, Any]:
        """The keys of a table that makes percent of the range of a device. low, high: keys of the numbers for 0 %, from
        which `below` is taken, and for 100 %. Raises ValueError."""
        ends = number(self._get(low, default)), number(self._get(high, 100))
        if ends[0] is None or ends[1] is None or ends[0] - below == ends[1]:
            raise ValueError(f"{low} and {high} are not two numbers")
        zero, full = ends[0] - below, ends[1]
        if (zero, full) == (0, 100):
            return {}
        scale = 100 / (full - zero)
        return {"scale": float(f"{scale:.12g}"), "offset": float(f"{-zero * scale:.12g}")}

    def _percentage(
        self, kind: str, state: str, template: str, command: str, command_template: str, suffix: str, percent: Any
    ) -> None:
        """A value in percent, and its actuator. percent: of `_percent`."""
        whole = {"digits": 0} if percent else {}
        table = self.value(kind, state, template, "number", suffix, unit="%", **percent, **whole)
        self.act(kind, command, command_template, suffix, state=table, minimum=0, maximum=100, **percent)

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
        for found in [] if listed is None else listed[:16] if isinstance(listed, list) else [listed]:
            if not isinstance(found, Declared):
                raise ValueError("availability is not an object, or a list of objects")
            else:
                found.rename(_KEYS)
                if isinstance(base, str) and isinstance(topic := found.get("topic"), str):
                    found["topic"] = _based(topic, base)
                yield found


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
