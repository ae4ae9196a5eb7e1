"""Appliances of Home Assistant: vacuums, mowers, alarm panels, water heaters, updates and triggers of buttons."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lamplighter.adapters.devices.draft import json_text, plain
from lamplighter.adapters.mqtt.discovery.homeassistant_entities import AnnouncedEntity
from lamplighter.adapters.mqtt.discovery.homeassistant_templates import ValuePlace, value_place

_NEWER = "{{ value_json.installed_version != value_json.latest_version }}"
_VERSION_PATTERN = r'"%s" ?: ?"([^"]{1,80})"'
"""In the JSON text that the template of an update gives."""
_VACUUM_COMMANDS = ("start", "pause", "stop", "return_to_base", "clean_spot", "locate")
_ALARM_STATES = ("armed_home", "armed_away", "armed_night", "armed_vacation", "armed_custom_bypass")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_ -]")
_TRIGGER_CHARS_MAX = 80


class ApplianceEntity(AnnouncedEntity):
    """An entity of one of the components here."""

    def vacuum(self) -> None:
        features = self._config.get("supported_features")
        named = [json_text(one) for one in features] if isinstance(features, list) else []
        self._config.mark({"supported_features"} if isinstance(features, list) else ())
        topic = self._config.get("state_topic")
        for kind, member, payload, more in (
            ("gateway:activity", "state", "text", {}),
            ("gateway:battery", "battery_level", "number", {"unit": "%"}),
            ("gateway:fanMode", "fan_speed", "text", {}),
        ):
            if topic is not None and (member != "battery_level" or not named or "battery" in named):
                suffix = "" if member == "state" else member
                self._sensor(kind, topic, ValuePlace((member,)), payload, suffix, **more)
        # What it does then is another word than the command.
        can = {
            name: self._get(f"payload_{name}", name)
            for name in _VACUUM_COMMANDS
            if not named or name.replace("return_to_base", "return_home") in named
        }
        self.act("gateway:activity", values=can)
        speeds = self._choices("fan_speed_list")
        self.act("gateway:fanMode", "set_fan_speed_topic", "", "fan_speed", values=speeds)

    def lawn_mower(self) -> None:
        self.value("gateway:activity", "activity_state_topic", "activity_value_template", "text")
        for name in ("start_mowing", "pause", "dock"):
            topic, template = f"{name}_command_topic", f"{name}_command_template"
            self.act("gateway:button", topic, template, name, values={"PRESS": name})

    def alarm_control_panel(self) -> None:
        self._require("state_topic")
        self._require("command_topic")
        features = self._config.get("supported_features")
        named = [json_text(one) for one in features] if isinstance(features, list) else None
        state = self.value("gateway:alarm", "state_topic", "value_template", "text")
        values = {"disarmed": self._get("payload_disarm", "DISARM")}
        for word in _ALARM_STATES:
            name = word.replace("armed_", "arm_")
            text = self._get(f"payload_{name}", name.upper())
            if named is None or name in named:
                values[word] = text
        trigger = self._get("payload_trigger", "TRIGGER")
        if named is None or "trigger" in named:
            values["triggered"] = trigger
        try:
            self.act("gateway:alarm", values=values, state=state)
        except ValueError as error:  # its state is read nevertheless
            self._draft.problem(f"{plain(self.key)}: {error}")

    def water_heater(self) -> None:
        is_fahrenheit = self._config.get("temperature_unit") == "F"
        unit = "°F" if is_fahrenheit else "°C"
        topic, template = "current_temperature_topic", "current_temperature_template"
        self.value("gateway:temperature", topic, template, "number", "temperature", unit=unit)
        coldest, warmest = (110, 140) if is_fahrenheit else (43.3, 60)
        bounds = ("min_temp", coldest), ("max_temp", warmest)
        self._goal("gateway:targetTemperature", "temperature", *bounds, unit=unit)
        self._mode("gateway:climateMode", "mode", "modes", "mode", "state")
        power = {"true": self._get("payload_on", "ON"), "false": self._get("payload_off", "OFF")}
        self.act("gateway:switch", "power_command_topic", "power_command_template", "power", values=power)

    def update(self) -> None:
        place = value_place(self._config.get("value_template"))
        topic, latest = self._config.get("state_topic"), self._config.get("latest_version_topic")
        if topic is not None:
            self._versions(topic, place, is_alone=latest is None)
        self.value("property/latest_version", "latest_version_topic", "latest_version_template", "text", "latest")
        if self._config.get("payload_install") is not None:
            self.act("gateway:button", values={"INSTALL": self._config["payload_install"]})
        self._config.mark({"command_topic", "release_summary", "release_url", "title"})

    def _versions(self, topic: object, place: ValuePlace, *, is_alone: bool) -> None:
        """The installed version at a topic, and the newest one if no other topic has it: then both are in a JSON
        object, or in the one that a template gives."""
        if place == ValuePlace() and is_alone:
            for name in ("installed_version", "latest_version"):
                suffix = name.removesuffix("_version")
                self._sensor(f"property/{name}", topic, ValuePlace((name,)), "text", suffix)
            newer = ValuePlace(template=_NEWER)
            self._sensor("gateway:updateAvailable", topic, newer, "boolean", "", on=["True"], off=["False"])
        elif place.template is not None and is_alone:
            for name in ("installed_version", "latest_version"):
                more = {"pattern": _VERSION_PATTERN % name}
                self._sensor(f"property/{name}", topic, place, "text", name.removesuffix("_version"), **more)
        else:
            self._sensor("property/installed_version", topic, place, "text", "installed")

    def device_automation(self) -> None:
        """A trigger of a device: an event when its payload comes."""
        self._require("topic")
        if self._config.get("automation_type") != "trigger":
            raise ValueError("automations of another type than trigger are not supported")
        words = [plain(self._config.get(key), _TRIGGER_CHARS_MAX) for key in ("subtype", "type")]
        said = " ".join(word for word in words if word)
        place, payload = value_place(self._config.get("value_template")), self._config.get("payload")
        more: dict[str, Any] = {"on_repeat": "event"}
        if payload is not None:
            text = json_text(payload)
            if not 0 < len(text) <= _TRIGGER_CHARS_MAX or not text.isprintable():
                raise ValueError("the payload of the trigger cannot be used")
            # Other payloads are other triggers, and no fault.
            pattern = "".join(f"\\{sign}" if _NOT_PLAIN.match(sign) else sign for sign in text)
            more |= {"pattern": f"^{pattern}$", "words": {text: said or text}, "optional": True}
        self._sensor("gateway:event", self._config["topic"], place, "text", "", **more)


READERS: dict[str, Callable[[ApplianceEntity], None]] = {
    "alarm_control_panel": ApplianceEntity.alarm_control_panel,
    "device_automation": ApplianceEntity.device_automation,
    "lawn_mower": ApplianceEntity.lawn_mower,
    "update": ApplianceEntity.update,
    "vacuum": ApplianceEntity.vacuum,
    "water_heater": ApplianceEntity.water_heater,
}
