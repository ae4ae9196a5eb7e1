"""Devices that describe themselves by what they send: each message shows values that the device has.

A part is one value, at a topic and in its JSON document; what is not used is a part as well. A device is known once it
has sent something, and keeps what it had in an earlier run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamplighter.adapters.devices.draft import DeviceTexts, Draft, Payload, plain, segment
from lamplighter.adapters.mqtt.discovery.announced import Announced, Group, Joined
from lamplighter.adapters.mqtt.discovery.declared import Declared
from lamplighter.adapters.mqtt.discovery.measured import Meaning, meaning

MEMBERS_MAX = 90
"""Of one message: a device has at most 100 parts."""
ITEMS_MAX = 8
DEPTH_MAX = 4
PART_CHARS_MAX = 300
_ABOUT, _LEFT_OUT = "about", "-"
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class MessageOrigin:
    """Where the values of a message are read: its topic, or a filter that all radios have in common, and the members
    that its messages have."""

    topic: str
    where: Mapping[str, str | int] = field(default_factory=dict)


def paths(value: Any, path: Path = (), depth: int = DEPTH_MAX) -> Iterator[tuple[Path, Payload | None]]:
    """The paths to single values with their kinds; None: what is too deep, or a list that is too long. Null is left
    out: it has no kind."""
    if isinstance(value, Declared):
        if depth == 0:
            value.settle()
            yield path, None
            return
        for name, inner in value.read_all():
            yield from paths(inner, (*path, name), depth - 1)
    elif isinstance(value, list):
        if len(value) > ITEMS_MAX or depth == 0:
            yield path, None
            return
        for number, inner in enumerate(value):
            yield from paths(inner, (*path, number), depth - 1)
    elif isinstance(value, bool):
        yield path, "boolean"
    elif isinstance(value, int | float):
        yield path, "number"
    elif isinstance(value, str) and path:
        yield path, "text"


def settle(values: Iterable[object]) -> None:
    """Says that what is left out of these objects is told elsewhere, or is that of others."""
    for value in values:
        if isinstance(value, Declared):
            value.settle()


def learned_parts(
    group: Group,
    about: Mapping[str, str],
    origin: MessageOrigin,
    values: Any,
    left_out: Sequence[str],
    *,
    within: Path = (),
) -> Announced:
    """The parts that a message shows. about: name, manufacturer and model of the device, equal in each of its messages;
    values: the object with its values, which is at the path `within`; left_out: names of what is not used. Raises
    ValueError if no device can have the name of the group."""
    segment(group)
    place = [origin.topic, dict(origin.where)]
    parts: dict[tuple[Group, str], Any] = {}
    for count, (path, payload) in enumerate(paths(values, within)):
        if count >= MEMBERS_MAX:
            left_out = [*left_out, f"more than {MEMBERS_MAX} values of a message"]
            break
        # Of a value that changes its kind, both kinds are parts: the device changes once, not with each message.
        name = json.dumps([payload, *path], ensure_ascii=False)
        if payload is None or len(name) > PART_CHARS_MAX:
            left_out = [*left_out, ".".join(map(str, path))]
        else:
            parts[group, name] = place
    parts |= {(group, _LEFT_OUT + plain(name)): None for name in left_out}
    parts[group, _ABOUT] = dict(about)
    return Announced(parts, adds=True)


def learned_device(
    format_name: str,
    broker: str,
    group: Group,
    parts: Mapping[str, Any],
    *,
    within: Path = (),
    known: Mapping[str, Meaning] | None = None,
    harmless: Container[str] = (),
    complete: Callable[[Draft], None] = lambda draft: None,
) -> Joined:
    """The device of parts of `learned_parts`. within: the path that no name needs; known: meanings by the last name of
    a path that precede the usual ones; harmless: last names that say nothing of values and states; complete: adds what
    no message shows, such as commands."""
    about = parts.get(_ABOUT, {})
    texts = DeviceTexts(about.get("name", ""), about.get("manufacturer", ""), about.get("model", ""))
    draft = Draft(format_name, group, broker=broker, topic=group, about=texts)
    draft.leave_out(name.removeprefix(_LEFT_OUT) for name in parts if name.startswith(_LEFT_OUT))
    for path, kinds, topic, where in _values(parts):
        said = next(str(step) for step in reversed(path) if isinstance(step, str))
        if said in harmless:
            continue
        own = path[len(within) :] if path[: len(within)] == within else path
        key = ".".join(map(str, own))
        try:
            found = (known or {}).get(said) or meaning(said, _kind(said, kinds))
        except ValueError as error:
            draft.problem(f"{plain(key)}: {error}")
            continue
        more = found.keys | ({"where": where} if where else {})
        label = key.replace(".", " ").replace("_", " ")
        draft.sensor(key, found.kind, topic, found.payload, label=label, member=path, unit=found.unit, **more)
    complete(draft)
    return Joined.of(draft, draft.problems, whole=False)


def _values(parts: Mapping[str, Any]) -> Iterator[tuple[Path, set[Payload], str, dict[str, str | int]]]:
    """Path, kinds, topic and choice of messages of each value, in order of the paths."""
    kinds: dict[Path, set[Payload]] = {}
    places: dict[Path, tuple[str, dict[str, str | int]]] = {}
    for name in parts:
        if name.startswith("["):
            payload, *steps = json.loads(name)
            kinds.setdefault(tuple(steps), set()).add(payload)
            places[tuple(steps)] = parts[name]
    for path in sorted(kinds, key=str):
        yield path, kinds[path], *places[path]


def _kind(name: str, kinds: set[Payload]) -> Payload:
    """The kind of a value that was of these kinds: that of which the name has a usual meaning, so that a word such as
    "error" makes no texts of temperatures; else a text."""
    if len(kinds) == 1:
        return min(kinds)
    order: tuple[Payload, ...] = ("number", "boolean")
    usual = (one for one in order if one in kinds and meaning(name, one).kind.startswith("gateway:"))
    return next(usual, "text")
