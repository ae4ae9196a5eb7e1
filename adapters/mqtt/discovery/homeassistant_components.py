"""Components of Home Assistant but lights: sensors, switches, covers, climate, and what else a house has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lamplighter.adapters.devices.draft import Draft, json_text, plain
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.homeassistant_appliances import READERS, ApplianceEntity
from lamplighter.adapters.mqtt.discovery.homeassistant_entities import AnnouncedEntity, words_of
from lamplighter.adapters.mqtt.discovery.homeassistant_keys import BINARY, INVERTED, MEASURED
from lamplighter.adapters.mqtt.discovery.homeassistant_lights import LightEntity
from lamplighter.adapters.mqtt.discovery.homeassistant_templates import ValuePlace, value_place

_TEXTS = {"date", "enum", "timestamp"}
"""Device classes of sensors whose values are no numbers."""
_EVENT_TYPE = r'"event_type" ?: ?"([^"]{1,80})"'
"""In the JSON text that the template of an event gives."""


def read_entity(draft: Draft, name: str, config: Declared) -> bool:
    """Reads an entity into the draft of its device. Returns whether it is understood; if not, that is a problem."""
    component = config.get("platform")
    name_of = component if isinstance(component, str) else ""
    kind = LightEntity if name_of == "light" else ApplianceEntity if name_of in READERS else UsualEntity
    entity = kind(draft, name, config)
    try:
        if not isinstance(config.get("~", ""), str):
            raise ValueError("the base topic ~ is not a text")
        if isinstance(entity, LightEntity):
            entity.light()
        elif isinstance(entity, ApplianceEntity):
            READERS[name_of](entity)
        elif name_of in _READERS:
            _READERS[name_of](entity)
        else:
            raise ValueError(f"the component {plain(component)!r} is not supported")
        entity.read_availability()
    except ValueError as error:
        draft.problem(f"{plain(entity.key)}: {error}")
        return False
    return True


class UsualEntity(AnnouncedEntity):
    def binary_sensor(self) -> None:
        device_class = self._config.get("device_class")
        on, off = words_of(self._get("payload_on", "ON")), words_of(self._get("payload_off", "OFF"))
        kind = BINARY.get(device_class) if isinstance(device_class, str) else None
        if isinstance(device_class, str) and device_class in INVERTED:
            kind, on, off = INVERTED[device_class], off, on
        self._require("state_topic")
        found = f"gateway:{kind}" if kind else self._own_kind()
        lasts = self._lifetime("off_delay") | self._lifetime("expire_after")
        if (kind or "") in INVERTED.values() and "off_delay_s" in lasts:
            self._draft.problem(f"{plain(self.key)}: off_delay of this device class is not used")
            del lasts["off_delay_s"]
        self.value(found, "state_topic", "value_template", "boolean", on=on, off=off, **lasts)

    def sensor(self) -> None:
        device_class, unit = self._config.get("device_class"), self._config.get("unit_of_measurement")
        kind = MEASURED.get(device_class) if isinstance(device_class, str) else None
        numeric = kind or unit or self._config.get("state_class")
        payload = "text" if not numeric or (isinstance(device_class, str) and device_class in _TEXTS) else "number"
        self._require("state_topic")
        found = f"gateway:{kind}" if kind else self._own_kind()
        self._choices("options")  # which texts come
        lasts = self._lifetime("expire_after")
        self.value(found, "state_topic", "value_template", payload, unit=unit, **lasts)

    def event(self) -> None:
        self._require("state_topic")
        place = value_place(self._config.get("value_template"))
        more: dict[str, Any] = {}
        if place.template is not None:
            more["pattern"] = _EVENT_TYPE
        elif not place.path:
            place = ValuePlace(("event_type",))
        self._sensor("gateway:event", self._config["state_topic"], place, "text", "", on_repeat="event", **more)

    def switch(self) -> None:
        self._require("command_topic")
        self._on_off("gateway:switch")

    def siren(self) -> None:
        self._require("command_topic")
        self._on_off("gateway:siren", "state_value_template")

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
        if any(own) or self._get("state_topic", "") != self._config.get("position_topic"):
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
            on=words_of(self._get("state_locked", "LOCKED")),
            off=words_of(self._get("state_unlocked", "UNLOCKED")),
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


_READERS: dict[str, Callable[[UsualEntity], None]] = {
    "binary_sensor": UsualEntity.binary_sensor,
    "button": UsualEntity.button,
    "climate": UsualEntity.climate,
    "cover": UsualEntity.cover,
    "device_tracker": UsualEntity.device_tracker,
    "event": UsualEntity.event,
    "fan": UsualEntity.fan,
    "humidifier": UsualEntity.humidifier,
    "lock": UsualEntity.lock,
    "number": UsualEntity.number,
    "scene": UsualEntity.scene,
    "select": UsualEntity.select,
    "sensor": UsualEntity.sensor,
    "siren": UsualEntity.siren,
    "switch": UsualEntity.switch,
    "text": UsualEntity.text,
    "valve": UsualEntity.valve,
}
