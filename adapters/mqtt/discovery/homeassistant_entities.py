"""What the entities of Home Assistant have in common: values, commands and availability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lamplighter.adapters.devices.device import Table
from lamplighter.adapters.devices.draft import Draft, json_text, number, own_kind, plain
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.homeassistant_keys import KEYS
from lamplighter.adapters.mqtt.discovery.homeassistant_templates import ValuePlace, command_keys, value_place

LIFETIME_S_MAX = 31_536_000

_NIL_TEXTS = ("None", "unavailable", "unknown")
"""States of which Home Assistant says that there is none. Of numbers and booleans, all rules know such words."""


class AnnouncedEntity:
    """One entity of an announcement, which is read into the draft of its device."""

    def __init__(self, draft: Draft, name: str, config: Declared) -> None:
        self._draft = draft
        self._config = config
        base = config.get("~")
        if isinstance(base, str):
            for key, value in dict(config).items():
                if isinstance(value, str) and key.endswith("topic"):
                    config[key] = _based(value, base)
        self.key = json_text(config.get("unique_id")) or name
        self._label = plain(config.get("name")) or name.replace("_", " ")
        self._retain = config.get("retain") is True
        qos = config.get("qos", 1)
        self._qos = qos if isinstance(qos, int) and not isinstance(qos, bool) else 1

    def value(self, kind: str, topic: str, template: str, payload: str, suffix: str = "", **more: Any) -> Table | None:
        """The sensor of a topic, if the announcement has the topic."""
        if self._config.get(topic) is None:
            return None
        place = value_place(self._config.get(template))
        return self._sensor(kind, self._config[topic], place, payload, suffix, **more)

    def _sensor(
        self, kind: str, topic: object, place: ValuePlace, payload: Any, suffix: str, **more: Any
    ) -> Table | None:
        if payload == "text" and kind != "gateway:event":
            listed = {text for one in self._config.values() if isinstance(one, list) for text in map(json_text, one)}
            if words := [word for word in _NIL_TEXTS if word not in listed]:
                more["no_value"] = words
        return self._draft.sensor(
            self._named(suffix), kind, topic, payload, label=self._said(suffix), **place.keys, **more
        )

    def act(
        self,
        kind: str,
        topic: str = "command_topic",
        template: str = "command_template",
        suffix: str = "",
        payload: str | None = None,
        values: Mapping[str, object] | None = None,
        **more: Any,
    ) -> None:
        """The actuator of a command topic, if the announcement has the topic. payload: instead of the template."""
        if self._config.get(topic) is None:
            return
        said: dict[str, Any] = {"payload": payload, "values": values}
        if payload is None:
            said = command_keys(self._config.get(template), values)
        self._draft.actuator(
            self._named(suffix),
            kind,
            self._config[topic],
            label=self._said(suffix),
            **said,
            qos=self._qos,
            retain=self._retain,
            **more,
        )

    def _named(self, suffix: str) -> str:
        return f"{self.key}.{suffix}" if suffix else self.key

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
            self._draft.leave_out([f"items of {key}"], self.key)
        return {text: text for one in listed if (text := json_text(one))}

    def _own_kind(self) -> str:
        """By the entity's name: `set temperature offset` of any device is one property."""
        return own_kind(self._label.lower().replace(" ", "_"))

    def _lamp(self, role: str = "part", **more: Any) -> Table:
        """What an actuator is of this light."""
        return {"of": self.key, "role": role} | more

    def _on_off(self, kind: str, state_template: str = "value_template", lamp: Table | None = None) -> None:
        """Switches and what else is on or off."""
        on, off = self._get("payload_on", "ON"), self._get("payload_off", "OFF")
        state = self.value(
            kind,
            "state_topic",
            state_template,
            "boolean",
            on=words_of(self._get("state_on", on)),
            off=words_of(self._get("state_off", off)),
        )
        self.act(kind, values={"true": on, "false": off}, state=state, lamp=lamp)

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

    def _lifetime(self, key: str) -> dict[str, Any]:
        """The key of a rule for the seconds that a state lasts."""
        seconds = self._config.get(key)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LIFETIME_S_MAX:
            if seconds:
                self._draft.problem(f"{plain(self.key)}: {key} is not a number of seconds up to {LIFETIME_S_MAX}")
            return {}
        return {f"{key}_s": seconds}

    def read_availability(self) -> None:
        mode = self._config.get("availability_mode")
        self._draft.mode = mode if mode in ("all", "any", "latest") else "latest"
        for config in self._availability_tables():
            topic, template = config.get("topic"), config.get("value_template")
            on, off = config.get("payload_available", "online"), config.get("payload_not_available", "offline")
            place = value_place(template)
            if any(isinstance(step, int) for step in place.path):
                place = ValuePlace(template=template)
            member = [str(step) for step in place.path]
            self._draft.online(topic, words_of(on), words_of(off), member, template=place.template)

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
                found.rename(KEYS)
                if isinstance(base, str) and isinstance(topic := found.get("topic"), str):
                    found["topic"] = _based(topic, base)
                yield found


def words_of(word: object) -> list[object]:
    """A payload in the spellings that it has: Home Assistant compares with Python's text of JSON booleans."""
    return [word, word.lower()] if word in ("True", "False") and isinstance(word, str) else [word]


def _based(topic: str, base: str) -> str:
    """A topic with the base in place of a ``~`` at its start or end."""
    if topic.startswith("~"):
        return f"{base[:1000]}{topic[1:]}"
    if topic.endswith("~"):
        return f"{topic[:-1]}{base[:1000]}"
    return topic
