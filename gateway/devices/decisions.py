"""Decisions about devices: the one implementation behind the command ``lamplighter devices`` and ``POST /devices``.

`adapters.devices.registry` has the updates. Each changes nothing if its device is not any more as it was read, so the
devices are read again afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, get_args

import msgspec

from lamplighter.adapters.devices.desired import by_hand_update, desired_update, differences, states_query
from lamplighter.adapters.devices.device import Actuator, Device, place
from lamplighter.adapters.devices.draft import THING, plain
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.devices.problems import Problems, left_out_problems
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.mapping.rules import CommandRule
from lamplighter.adapters.mapping.tables import ByHand, CommandTable
from lamplighter.adapters.mqtt.sender import not_permitted, permits
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.gateway.devices.directory import SWITCHED, NamedThing
from lamplighter.ontology.vocabulary import (
    ACTUATOR,
    BY_HAND,
    CONNECTED,
    LAST_SEEN,
    ONLINE,
    SUBSCRIBED,
    UNREACHABLE,
    broker_iri,
)

CONTACTS = {ONLINE: "online", LAST_SEEN: "last_seen", UNREACHABLE: "unreachable"}
# How long an adoption waits for the MQTT adapter.
SUBSCRIBED_S = 5.0
NOT_READ = "the MQTT adapter does not read its topics yet; see `lamplighter status`"
STATES = ("proposed", "adopted", "retired", "ignored")
Row = tuple[Term | None, ...]

# Of a command: which states it takes. They mean the same for a topic and for a resource.
_STATE_KEYS = ("payload", "values", "minimum", "maximum")
_ON_OFF = {"on": "true", "off": "false", "true": "true", "false": "false"}
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,9})?")


class DeviceDataset(Protocol):
    async def rows(self, query: str) -> list[Row]:
        """The result of a SELECT query."""
        ...

    async def update(self, text: str) -> None:
        """Returns when the update is durable."""
        ...


class NotDecidedError(ValueError):
    """The device changed while the decision was made, so nothing was changed. The same decision may succeed now."""


@dataclass(frozen=True)
class DesiredState:
    """A desired state that was set. name: of the actuator, for people."""

    name: str
    actuator: Term
    state: Term


@dataclass(frozen=True)
class StateMismatch:
    """An actuator that reports another state than the desired one."""

    actuator: Actuator
    desired: str
    reported: str


class Devices:
    """The devices of a running gateway. commands: the setting `mqtt.commands`. The methods raise ValueError, which says
    what is wrong, and the errors of the dataset."""

    def __init__(self, dataset: DeviceDataset, base_iri: str, commands: Sequence[str]) -> None:
        self.registry = Registry(base_iri)
        self._dataset = dataset
        self._commands = commands
        self._unread: set[str] = set()

    async def entries(self) -> tuple[list[Entry], list[str]]:
        """The devices, by state and name; and what is wrong with those that cannot be read."""
        rows = await self._dataset.rows(self.registry.query)
        return await asyncio.to_thread(self._entries_of, rows)  # many take long

    async def entry(self, identity: str) -> Entry | None:
        """The device with an identity, if it is there and can be read."""
        try:
            query = self.registry.query_of(identity)
        except ValueError:
            return None
        rows = await self._dataset.rows(query)
        return next((one for one in self._entries_of(rows)[0] if one.identity == identity), None)

    def _entries_of(self, rows: Sequence[Row]) -> tuple[list[Entry], list[str]]:
        found, faults = [], []
        for row in rows:
            try:
                found.append(self.registry.entry(row))
            except ValueError as error:
                faults.append(str(error))
        found.sort(key=lambda entry: (STATES.index(entry.adoption), entry.name.casefold(), entry.identity))
        return found, faults

    async def differing(self, entries: Sequence[Entry]) -> dict[str, list[StateMismatch]]:
        """By the identity of a device: its actuators that report another state than the desired one."""
        found = differences(await self._dataset.rows(states_query()))
        told: dict[str, list[StateMismatch]] = {}
        for entry in entries:
            states = [(one, found.get(self.registry.actuator_iri(one))) for one in entry.device.actuators]
            told[entry.identity] = [
                StateMismatch(one, lexical(state[0]), lexical(state[1])) for one, state in states if state is not None
            ]
        return told

    async def contacts(self, entry: Entry | None = None) -> dict[Term, dict[str, str]]:
        """What the dataset says of whether devices answer: `CONTACTS` by their IRIs. entry: only of that device."""
        device = "?device" if entry is None else self.registry.device_iri(entry.device)
        only = "" if entry is None else f"BIND({device} AS ?device)"
        names = " ".join(map(iri, CONTACTS))
        query = f"SELECT ?device ?name ?value WHERE {{ VALUES ?name {{ {names} }} {device} ?name ?value {only} }}"
        found: dict[Term, dict[str, str]] = defaultdict(dict)
        for device_iri, name, value in await self._dataset.rows(query):
            if device_iri and name and value:
                found[device_iri][CONTACTS[lexical(name)]] = lexical(value)
        return found

    # --- decisions ---

    async def adopt(self, entries: Sequence[Entry], area: str | None = None) -> list[Entry | NotDecidedError]:
        """What became of devices that were to be adopted, in order. area: the room or place to put them into."""
        found = await self._decide(entries, "adopted", lambda entry: self.registry.adoption(entry, area=area))
        adopted = [one if isinstance(one, NotDecidedError) or _has(one, None, area) else _still(one) for one in found]
        await self._wait_for_subscriptions([one for one in adopted if isinstance(one, Entry)])
        return adopted

    async def _wait_for_subscriptions(self, entries: Sequence[Entry]) -> None:
        """Returns when the MQTT adapter reads the topics of the devices at brokers that are connected, or after
        `SUBSCRIBED_S`; then `refused_topics` says so of the others."""
        query = f"SELECT ?broker WHERE {{ ?broker <{CONNECTED}> true }}"
        connected = {row[0] for row in await self._dataset.rows(query)} if entries else set()
        waiting = {
            self.registry.device_iri(one.device): one
            for one in entries
            if iri(broker_iri(self.registry.base_iri, one.device.broker)) in connected and message_topics(one.device)
        }
        query = f"SELECT ?device ?revision WHERE {{ ?device <{SUBSCRIBED}> ?revision }}"
        end, pause_s = asyncio.get_running_loop().time() + SUBSCRIBED_S, 0.02
        while waiting:
            for device, revision in await self._dataset.rows(query):
                if device in waiting and revision is not None and lexical(revision) == waiting[device].revision:
                    del waiting[device]
            if not waiting or asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(pause_s)  # the adapter is another process, whose progress the dataset has
            pause_s = min(2 * pause_s, 0.5)
        self._unread = {one.identity for one in waiting.values()}

    async def take(self, device: Device, before: Entry | None) -> Entry | None:
        """Adopts a device that an operator describes, in place of `before`; None if another change came first."""
        text = self.registry.announced(before, device, "all")
        if text is not None:
            await self._dataset.update(text)
        found = await self.entry(device.identity)
        if found is not None and found.adoption == "ignored" and found.device == device:
            await self._dataset.update(self.registry.adoption(found))
            found = await self.entry(device.identity)
        return found if found is not None and found.device == device and found.adoption == "adopted" else None

    async def list_left_out(self, device: Device, lines: Sequence[str]) -> None:
        """Lists what is not used of the description of a device, instead of what was listed before."""
        problems = left_out_problems(device.source, device.broker, device.thing, device.identity, lines)
        listed = Problems(self.registry.base_iri)
        await self._dataset.update(listed.replacing(device.source, device.identity, problems, datetime.now(UTC)))

    async def ignore(self, entries: Sequence[Entry]) -> list[Entry | NotDecidedError]:
        """What became of devices that were to be ignored, in order."""
        return await self._decide(entries, "ignored", self.registry.ignoring)

    async def rename(self, entry: Entry, name: str | None = None, area: str | None = None) -> Entry:
        """Gives a name, an area, or both; an empty text gives back the announced one. Raises NotDecidedError."""
        if name is None and area is None:
            raise ValueError("write the new name, the area, or both")
        await self._dataset.update(self.registry.naming(entry, name=name, area=area))
        found = _now(entry, await self.entry(entry.identity))
        if isinstance(found, NotDecidedError):
            raise found
        if not _has(found, name, area):
            raise _still(found)
        return found

    async def remove(self, entry: Entry) -> None:
        """Removes a device with its description, rules and live observations. Raises NotDecidedError."""
        await self._dataset.update(self.registry.removal(entry))
        now = await self.entry(entry.identity)
        if now is not None and not _is_proposed_again(entry, now):
            raise _still(now)

    async def set(self, entry: Entry, actuator: str | None, state: str) -> DesiredState:
        """Sets the desired state of an actuator of an adopted device."""
        _check_adopted(entry)
        return await self._set_of(entry, named_actuator(entry.device, actuator), state)

    async def set_named(self, named: NamedThing, state: str) -> DesiredState:
        """The same of an actuator by its own name. What a ``[[command]]`` rule takes, its adapter knows."""
        entry = None if named.device is None else await self.entry(named.device)
        if entry is not None:
            for one in entry.device.actuators:
                if lexical(self.registry.actuator_iri(one)) == named.iri:
                    _check_adopted(entry)
                    return await self._set_of(entry, one, state)
        return await self._set_state(named.id, iri(named.iri), state_term(state))

    async def _set_of(self, entry: Entry, found: Actuator, state: str) -> DesiredState:
        if "topic" in found.command and entry.device.source == THING:
            check_permitted(found.command["topic"], self._commands)
        wanted = wanted_state(found, state)
        target = self.registry.actuator_iri(found)
        return await self._set_state(f"{entry.name}, {word(found.kind)}", target, wanted, f"{target} a <{ACTUATOR}> . ")

    async def say_by_hand(self, entry: Entry, actuator: str | None, what: str) -> ByHand:
        """Says what becomes of states that a person gives the device by hand. actuator: None for all of the device."""
        if what not in get_args(ByHand):
            raise ValueError(f"write {' or '.join(get_args(ByHand))}")
        _check_adopted(entry)
        device = entry.device
        found = device.actuators if actuator is None else [named_actuator(device, actuator)]
        if not found:
            raise ValueError("it has no actuators")
        chosen: ByHand = "follow" if what == "follow" else "hold"
        for one in found:
            await self._dataset.update(by_hand_update(self.registry.actuator_iri(one), chosen))
        return chosen

    async def by_hand(self, entry: Entry) -> dict[str, ByHand]:
        """What becomes of states that a person gives the actuators of a device by hand, by their keys."""
        actuators = {self.registry.actuator_iri(one): one for one in entry.device.actuators}
        values = f"VALUES ?actuator {{ {' '.join(actuators)} }}"
        query = f"SELECT ?actuator ?what WHERE {{ {values} ?actuator <{BY_HAND}> ?what }}"
        said = {actuator: lexical(what) for actuator, what in await self._dataset.rows(query) if actuator and what}
        return {one.key: _by_hand(one, said.get(node, "")) for node, one in actuators.items()}

    async def _set_state(self, name: str, actuator: Term, state: Term, condition: str = "") -> DesiredState:
        await self._dataset.update(desired_update(actuator, state, condition))
        return DesiredState(name, actuator, state)

    async def _decide(
        self, entries: Sequence[Entry], state: str, update: Callable[[Entry], str]
    ) -> list[Entry | NotDecidedError]:
        for entry in entries:
            await self._dataset.update(update(entry))
        if len(entries) == 1:
            found = {entry.identity: await self.entry(entry.identity) for entry in entries}
        else:
            found = {entry.identity: entry for entry in (await self.entries())[0]} if entries else {}
        told = [_now(before, found.get(before.identity)) for before in entries]
        return [one if isinstance(one, NotDecidedError) or one.adoption == state else _still(one) for one in told]

    def refused_topics(self, device: Device) -> list[str]:
        """Why actuators of a device cannot be switched with these settings. Adoption permits the topics of one that
        announced itself."""
        if device.source != THING:
            return [NOT_READ] if device.identity in self._unread else []
        topics = dict.fromkeys(one.command["topic"] for one in device.actuators if "topic" in one.command)
        return [not_permitted(topic) for topic in topics if not permits(self._commands, topic)]


def _check_adopted(entry: Entry) -> None:
    if entry.adoption != "adopted":
        raise ValueError(f"it is {entry.adoption}; adopt it with `lamplighter devices adopt`")


def message_topics(device: Device) -> list[str]:
    """The topics of its values."""
    return [one.table["topic"] for one in device.sensors if "topic" in one.table]


def _by_hand(actuator: Actuator, said: str) -> ByHand:
    """said: by the actuator's own triple, if there is one."""
    kind = KINDS.get(word(actuator.kind))
    default = "follow" if kind is not None and kind.follows and "topic" in actuator.command else "hold"
    return "follow" if (said or actuator.command.get("by_hand", default)) == "follow" else "hold"


def _now(before: Entry, found: Entry | None) -> Entry | NotDecidedError:
    if found is None:
        return NotDecidedError(f"{before.identity} is not there any more: it changed meanwhile; try again")
    return found


def _is_proposed_again(before: Entry, now: Entry) -> bool:
    """Whether a device may have been removed, and was announced since. If it had changed, it was not removed."""
    changed = before.adoption == "proposed" and before.device != now.device
    return now.adoption == "proposed" and not changed


def _has(entry: Entry, name: str | None, area: str | None) -> bool:
    """Whether a device has the name and the area that it was to get; None: any."""
    given = ((name, entry.given_name), (area, entry.given_area))
    return all(wanted is None or plain(wanted) == has for wanted, has in given)


def _still(entry: Entry) -> NotDecidedError:
    return NotDecidedError(f"{entry.identity} is still {entry.adoption}: it changed meanwhile; try again")


# --- actuators and states -----------------------------------------------------------------------------------


def word(kind: str) -> str:
    """A property as a word for people."""
    return kind.partition(":")[2] or kind.removeprefix("property/")


def named_actuator(device: Device, text: str | None) -> Actuator:
    """The actuator that a person means: by what it controls, its key or its label; None: the only one, or the one that
    is switched. Raises ValueError, which says what to write."""
    found = [
        one
        for one in device.actuators
        if (word(one.kind) in SWITCHED if text is None else text.casefold() in _names(one))
    ]
    if len(found) == 1:
        return found[0]
    if text is None and len(device.actuators) == 1:
        return device.actuators[0]
    if not device.actuators:
        raise ValueError("it has no actuators")
    words = Counter(word(one.kind) for one in device.actuators)
    names = (word(one.kind) if words[word(one.kind)] == 1 else one.key for one in found or device.actuators)
    raise ValueError(f"write one of {', '.join(names)} as ACTUATOR")


def _names(actuator: Actuator) -> set[str]:
    return {text.casefold() for text in (word(actuator.kind), actuator.key, actuator.label)}


def check_permitted(topic: str, permitted: Sequence[str]) -> None:
    """Raises ValueError if the setting `mqtt.commands` does not permit messages to the topic."""
    if not permits(permitted, topic):
        raise ValueError(not_permitted(topic))


def wanted_state(actuator: Actuator, text: str) -> Term:
    """The desired state that a person means. Raises ValueError if the actuator does not take it."""
    words = {word.casefold(): word for word in actuator.command.get("values", ())}
    text = words.get(text.casefold(), text)
    state = literal(text) if text in words.values() and text not in _ON_OFF.values() else state_term(text)
    try:
        keys = {key: actuator.command[key] for key in _STATE_KEYS if key in actuator.command}
        checked = msgspec.convert(keys | {"topic": place(actuator.command)}, CommandTable)
        rule = CommandRule(checked, actuator.key, None, {})
        command_payload(rule, state)
    except PayloadError as error:
        raise ValueError(str(error)) from error
    return state


def state_term(text: str) -> Term:
    """A state as a person writes it: a boolean, a number or a text."""
    text = _ON_OFF.get(text.casefold(), text)
    datatype = XSD + "boolean" if text in _ON_OFF.values() else XSD + "decimal" if _NUMBER.fullmatch(text) else None
    return literal(text, datatype=datatype)
