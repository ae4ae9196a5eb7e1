"""Lights of Home Assistant: of the schemas default, json and template."""

from __future__ import annotations

from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import number, plain
from lamplighter.adapters.mqtt.discovery.homeassistant_entities import AnnouncedEntity
from lamplighter.adapters.mqtt.discovery.homeassistant_templates import ValuePlace
from lamplighter.adapters.mqtt.discovery.light_templates import command_pieces


class LightEntity(AnnouncedEntity):
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
            self._draft.problem(f"{plain(self.key)}: {error}")
            return None

    def _json_light(self) -> None:
        """A light that takes and tells its state as a JSON object."""
        topic = self._config.get("state_topic")
        on, off = '{"state": "ON"}', '{"state": "OFF"}'

        def told(kind: str, member: str, payload: str, suffix: str, **more: Any) -> Table | None:
            return None if topic is None else self._sensor(kind, topic, ValuePlace((member,)), payload, suffix, **more)

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
            self._sensor(f"property/color_{part}", topic, ValuePlace(("color", part)), "number", f"color_{part}")

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
