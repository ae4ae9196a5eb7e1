"""The command ``lamplighter devices``: devices that announced themselves, and the decisions about them.

It asks and updates the running gateway; `adapters.devices.registry` has the updates. The MQTT adapter follows the rules
of an adopted device as soon as they are in the dataset.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from lamplighter.adapters.coap.discovery import distinct, offered
from lamplighter.adapters.devices.desired import desired_update, differences, states_query
from lamplighter.adapters.devices.device import Actuator, Device, place
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.devices.registry import Entry, Registry, named, revision
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.mapping.rules import CommandRule
from lamplighter.adapters.mapping.tables import CommandTable
from lamplighter.adapters.mqtt.sender import not_permitted, permits
from lamplighter.engine.errors import ConfigurationError, PayloadError, UpstreamError
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.gateway.cli.commands import add_mode, printable, shortened, table
from lamplighter.gateway.cli.confirmation import add_confirmation, confirmed
from lamplighter.gateway.cli.devices_discover import add_discover_arguments, found_devices
from lamplighter.gateway.cli.devices_key import add_key_arguments, make_key
from lamplighter.gateway.cli.running_dataset import RunningDataset
from lamplighter.ontology.vocabulary import LAST_SEEN, ONLINE, UNREACHABLE

_STATES = ("proposed", "adopted", "retired", "ignored")

Adder = Callable[..., argparse.ArgumentParser]


def add_devices_commands(command: Adder) -> None:
    """Declares the command. command: as in `gateway.__main__`."""
    devices = command("devices", "list, adopt, ignore and rename devices that announce themselves over MQTT", _list)
    devices.set_defaults(state=None, json=False)
    modes = devices.add_subparsers(title="subcommands", dest="mode")

    listing = add_mode(modes, "list", "list the devices (also without a subcommand)", _list)
    listing.add_argument("--state", choices=_STATES, help="only devices in this state")
    listing.add_argument("--json", action="store_true", help="print one JSON object per device and line")
    discover = add_mode(modes, "discover", "search the network for CoAP devices, and propose them", _discover)
    add_discover_arguments(discover)
    show = add_mode(modes, "show", "show the sensors, actuators and topics of a device", _show)
    _add_device(show)
    adopt = add_mode(modes, "adopt", "use a device: its readings are stored, and its actuators can be switched", _adopt)
    adopt.add_argument("device", nargs="?", metavar="ID", help="identity or name, or a part that only one device has")
    adopt.add_argument("--all", action="store_true", help="all proposed devices")
    adopt.add_argument("--area", help="the room or place of the device, such as Kitchen")
    ignore = add_mode(modes, "ignore", "ignore a device: it is not proposed again", _ignore)
    _add_device(ignore)
    rename = add_mode(modes, "rename", "give a device a name, an area, or both; its IRIs stay", _rename)
    _add_device(rename)
    rename.add_argument("name", nargs="?", metavar="NAME", help='the new name; "" gives back the announced one')
    rename.add_argument("--area", help='the new area; "" gives back the announced one')
    setting = add_mode(modes, "set", "switch an adopted device, or set another state of it", _set)
    setting.add_argument(
        "device", metavar="ID", help="identity or name, or the actuator of a [[command]] rule, such as actuator/kitchen"
    )
    setting.add_argument(
        "actuator", nargs="?", metavar="ACTUATOR", help="what to set, such as brightness, if the device has several"
    )
    setting.add_argument("state", metavar="STATE", help="on, off, or a state that `devices show ID` lists")
    remove = add_mode(modes, "remove", "remove a device with its description, rules and live observations", _remove)
    _add_device(remove)
    add_confirmation(remove)
    key = add_mode(modes, "key", "make a key (OSCORE) for a CoAP device, and give the device's half once", make_key)
    add_key_arguments(key)
    add_mode(modes, "problems", "list announcements and messages that were not used, with the reasons", _problems)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="ID", help="identity or name, or a part that only one device has")


class _Gateway(RunningDataset):
    """The devices of the running gateway."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.registry = Registry(self.settings.gateway.base_iri)
        self.problems = Problems(self.settings.gateway.base_iri)
        self._differences: dict[Term, tuple[Term, Term]] | None = None

    def entries(self) -> list[Entry]:
        """The devices, by state and name. Those that cannot be read are named on standard error."""
        found = []
        for row in self.rows(self.registry.query):
            try:
                found.append(self.registry.entry(row))
            except ValueError as error:
                print(f"not shown: a device in the dataset cannot be read: {printable(str(error))}", file=sys.stderr)
        return sorted(found, key=lambda entry: (_STATES.index(entry.adoption), entry.name.casefold(), entry.identity))

    def differing(self, entry: Entry) -> _Differing:
        """The actuators of a device that report another state than the desired one."""
        if self._differences is None:
            self._differences = differences(self.rows(states_query()))
        found = self._differences
        states = {one.key: (one, found.get(self.registry.actuator_iri(one))) for one in entry.device.actuators}
        return {
            key: (one, lexical(state[0]), lexical(state[1]))
            for key, (one, state) in states.items()
            if state is not None
        }

    def contact(self, entry: Entry) -> list[tuple[str, str]]:
        """What the dataset says of whether a device answers, with titles."""
        titles = ((ONLINE, "online"), (LAST_SEEN, "last contact"), (UNREACHABLE, "unreachable"))
        properties = " ".join(iri(name) for name, _ in titles)
        device = self.registry.device_iri(entry.device)
        query = f"SELECT ?name ?value {{ VALUES ?name {{ {properties} }} {device} ?name ?value }}"
        found = {lexical(name): lexical(value) for name, value in self.rows(query) if name and value}
        return [(title, found[name]) for name, title in titles if name in found]

    def named(self, text: str) -> Entry:
        """Raises ConfigurationError, which says what to write."""
        try:
            return named(self.entries(), text)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error


def _list(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entries = [one for one in gateway.entries() if options.state in (None, one.adoption)]
    differing = {entry.identity: gateway.differing(entry) for entry in entries}
    if options.json:
        for entry in entries:
            print(printable(json.dumps(_as_json(entry, differing[entry.identity]), ensure_ascii=False)))
        return 0
    if not entries:
        print(
            "no devices; they appear here when they announce themselves at the broker (mqtt.host, mqtt.discovery), "
            "or by `lamplighter devices discover` (CoAP)"
        )
        return 0
    rows = [(_TITLES, _DIFFERS), *((_row(entry), _differences(differing[entry.identity])) for entry in entries)]
    shown = any(differing.values())
    print(table([(*row, difference) if shown else row for row, difference in rows]), end="")
    proposed = sum(entry.adoption == "proposed" for entry in entries)
    if proposed:
        print(f"{proposed} proposed; adopt with `lamplighter devices adopt ID`, or --all")
    return 0


_TITLES = ("ID", "NAME", "AREA", "MODEL", "STATE", "HAS")
_DIFFERS = "NOT AS DESIRED"
"""Title of a column that is there if a device reports another state than the desired one."""

_Differing = dict[str, tuple[Actuator, str, str]]
"""Actuators by their keys, with the desired and the reported state."""


def _differences(differing: _Differing) -> str:
    found = (f"{_word(one.kind)}: {desired}, reports {said}" for one, desired, said in differing.values())
    return shortened("; ".join(found))


def _row(entry: Entry) -> tuple[str, ...]:
    device = entry.device
    return (
        entry.identity,
        shortened(entry.name),
        shortened(entry.area),
        shortened(f"{device.manufacturer} {device.model}".strip()),
        entry.adoption,
        shortened(", ".join(_kinds(device))),
    )


def _kinds(device: Device) -> Iterator[str]:
    """What a device observes and does, in words."""
    acts = {actuator.kind for actuator in device.actuators}
    counted = Counter([actuator.kind for actuator in device.actuators])
    counted += Counter([sensor.kind for sensor in device.sensors if sensor.kind not in acts])
    for kind, count in counted.items():
        yield _word(kind) if count == 1 else f"{count} {_word(kind)}"


def _word(kind: str) -> str:
    return kind.partition(":")[2] or kind.removeprefix("property/")


def _as_json(entry: Entry, differing: _Differing) -> dict[str, Any]:
    device = entry.device
    return {
        "id": entry.identity,
        "name": entry.name,
        "area": entry.area,
        "state": entry.adoption,
        "broker": device.broker,
        "manufacturer": device.manufacturer,
        "model": device.model,
        "sensors": {sensor.key: sensor.kind for sensor in device.sensors},
        "actuators": {actuator.key: actuator.kind for actuator in device.actuators},
        "not_as_desired": {
            key: {"desired": desired, "reported": said} for key, (_, desired, said) in differing.items()
        },
    }


def _show(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    device = entry.device
    facts = [
        ("name", entry.name if entry.name == device.name else f"{entry.name} (announced as {device.name})"),
        ("IRI", lexical(gateway.registry.device_iri(device))),
        ("state", entry.adoption),
        ("area", entry.area or "-"),
        ("model", f"{device.manufacturer} {device.model}".strip() or "-"),
        ("announced by", f"{device.source}, {'' if device.broker.startswith('coap:') else 'broker '}{device.broker}"),
    ]
    facts += gateway.contact(entry)
    if device.availability is not None:
        topics = ", ".join(found["topic"] for found in device.availability.topics)
        facts.append(("availability", f"{device.availability.mode}: {topics}"))
    print(table([(name, printable(text)) for name, text in facts]), end="")
    title = "TOPIC OR RESOURCE"
    if device.sensors:
        rows = [
            (
                one.kind,
                lexical(gateway.registry.sensor_iri(one)),
                one.table.get("unit", ""),
                place(one.table),
                one.table.get("member", ""),
            )
            for one in device.sensors
        ]
        print("\n" + table([("OBSERVES", "SENSOR", "UNIT", title, "MEMBER"), *_printables(rows)]), end="")
    if device.actuators:
        acts = [
            (
                one.kind,
                lexical(gateway.registry.actuator_iri(one)),
                shortened(
                    ", ".join(one.command["values"]) if "values" in one.command else _bounds(one.minimum, one.maximum)
                ),
                place(one.command),
            )
            for one in device.actuators
        ]
        print("\n" + table([("CONTROLS", "ACTUATOR", "STATES", title), *_printables(acts)]), end="")
        _warn_of_refused_topics(device, gateway.settings.mqtt.commands)
    return 0


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None and maximum is None:
        return "any"
    return f"{'' if minimum is None else f'{minimum:g}'} to {'' if maximum is None else f'{maximum:g}'}".strip()


def _discover(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    try:
        proposals = found_devices(gateway.settings.coap, options.host)
    except (PayloadError, UpstreamError) as error:
        raise ConfigurationError(f"{options.host or 'multicast'}: {error}") from error
    known = {entry.identity: entry for entry in gateway.entries()}
    found = 0
    for proposal in distinct(proposals, known, {}):
        for problem in proposal.problems:
            print(f"not used: {printable(problem.topic)}: {printable(problem.reason)}", file=sys.stderr)
        if proposal.device is None:
            continue
        found += 1
        device = offered(proposal.device, known)
        if isinstance(device, str):
            print(f"{proposal.device.broker} {printable(device)}")
            continue
        entry = known.get(device.identity)
        update = gateway.registry.announced(entry, device, "ask")
        if update is not None:
            gateway.update(update)
        state = "proposed" if entry is None else entry.adoption
        print(f"{state} {device.identity}: {printable(', '.join(_kinds(device)))}")
    if not found:
        print("no device answered with resources that can be used")
        return 1
    return 0


def _adopt(options: argparse.Namespace) -> int:
    if options.all == (options.device is not None):
        raise ConfigurationError("write the device to adopt, or --all")
    gateway = _Gateway(options)
    if options.all:
        entries = [entry for entry in gateway.entries() if entry.adoption == "proposed"]
    else:
        entries = [gateway.named(options.device)]
    if not entries:
        print("no device is proposed")
    for entry in entries:
        gateway.update(gateway.registry.adoption(entry, area=options.area))
    adopted = _decided(gateway, entries, "adopted")
    for entry in adopted:
        _warn_of_refused_topics(entry.device, gateway.settings.mqtt.commands)
    return 0 if len(adopted) == len(entries) else 1


def _decided(gateway: _Gateway, entries: Sequence[Entry], state: str) -> list[Entry]:
    """Prints which of the devices have the state now, and returns them. An update changes nothing if its device has
    announced itself in another way meanwhile."""
    now = {entry.identity: entry for entry in gateway.entries()} if entries else {}
    found = []
    for before in entries:
        entry = now.get(before.identity)
        if entry is not None and entry.adoption == state:
            found.append(entry)
            print(f"{state} {entry.identity}, {printable(entry.name)}")
        else:
            what = "is not there any more" if entry is None else f"is still {entry.adoption}"
            print(f"lamplighter: {before.identity} {what}: it changed meanwhile; try again", file=sys.stderr)
    return found


def _warn_of_refused_topics(device: Device, permitted: Sequence[str]) -> None:
    """Says on standard error which actuators cannot be switched with these settings."""
    for topic in dict.fromkeys(one.command["topic"] for one in device.actuators if "topic" in one.command):
        if not permits(permitted, topic):
            print(
                f"lamplighter: {device.identity} cannot be switched: {printable(not_permitted(topic))}", file=sys.stderr
            )


def _ignore(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    gateway.update(gateway.registry.ignoring(entry))
    return 0 if _decided(gateway, [entry], "ignored") else 1


def _rename(options: argparse.Namespace) -> int:
    if options.name is None and options.area is None:
        raise ConfigurationError("write the new name, or --area, or both")
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    gateway.update(gateway.registry.naming(entry, name=options.name, area=options.area))
    now = gateway.named(entry.identity)
    print(f"{now.identity} is called {printable(now.name)}" + (f", in {printable(now.area)}" if now.area else ""))
    return 0


def _set(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    try:
        if options.device.startswith("actuator/"):  # of a rule: its adapter knows the states
            actuator, state = iri(gateway.registry.base_iri + options.device), state_term(options.state)
            name = options.device
        else:
            entry = gateway.named(options.device)
            if entry.adoption != "adopted":
                raise ValueError(f"it is {entry.adoption}; adopt it with `lamplighter devices adopt`")
            found = named_actuator(entry.device, options.actuator)
            if "topic" in found.command:
                check_permitted(found.command["topic"], gateway.settings.mqtt.commands)
            actuator, state = gateway.registry.actuator_iri(found), wanted_state(found, options.state)
            name = f"{entry.name}, {_word(found.kind)}"
    except ValueError as error:
        raise ConfigurationError(f"{options.device}: {error}") from error
    gateway.update(desired_update(actuator, state))
    print(f"{printable(name)}: the desired state is {printable(lexical(state))}")
    return 0


def named_actuator(device: Device, text: str | None) -> Actuator:
    """The actuator that a person means: by what it controls, its key or its label; None: the only one, or the one that
    is switched. Raises ValueError, which says what to write."""
    found = [
        one
        for one in device.actuators
        if (_word(one.kind) in _SWITCHED if text is None else text.casefold() in _names(one))
    ]
    if len(found) == 1:
        return found[0]
    if text is None and len(device.actuators) == 1:
        return device.actuators[0]
    if not device.actuators:
        raise ValueError("it has no actuators")
    words = Counter(_word(one.kind) for one in device.actuators)
    names = (_word(one.kind) if words[_word(one.kind)] == 1 else one.key for one in found or device.actuators)
    raise ValueError(f"write one of {', '.join(names)} as ACTUATOR")


_SWITCHED = {"cover", "fan", "light", "lock", "siren", "switch", "valve"}


def _names(actuator: Actuator) -> set[str]:
    return {text.casefold() for text in (_word(actuator.kind), actuator.key, actuator.label)}


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


_STATE_KEYS = ("payload", "values", "minimum", "maximum")
"""Of a command: which states it takes. They mean the same for a topic and for a resource."""
_ON_OFF = {"on": "true", "off": "false", "true": "true", "false": "false"}
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,9})?")


def _remove(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    if not confirmed(f"Remove {entry.identity}, {printable(entry.name)}, from the dataset?", yes=options.yes):
        return 1
    gateway.update(gateway.registry.removal(entry))
    now = next((one for one in gateway.entries() if one.identity == entry.identity), None)
    if now is not None and not _is_proposed_again(entry, now):
        print(
            f"lamplighter: {entry.identity} is still {now.adoption}: it changed meanwhile; try again", file=sys.stderr
        )
        return 1
    print(f"removed {entry.identity}; it is proposed again if it is still announced")
    return 0


def _is_proposed_again(before: Entry, now: Entry) -> bool:
    """Whether a device may have been removed, and was announced since. If it had changed, it was not removed."""
    changed = before.adoption == "proposed" and revision(before.device) != revision(now.device)
    return now.adoption == "proposed" and not changed


def _problems(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    found = gateway.rows(gateway.problems.query)
    if not found:
        print("no problems since the MQTT adapter started")
        return 0
    rows = []
    for row in found:
        source, topic, device, reason, count, seen = ("" if one is None else lexical(one) for one in row)
        about = device.rpartition("/device/")[2] if device else topic
        rows.append((seen[:19], source, count, shortened(about), reason))
    print(table([("LAST SEEN", "SOURCE", "COUNT", "DEVICE OR TOPIC", "REASON"), *_printables(rows)]), end="")
    return 0


def _printables(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(printable(cell) for cell in row) for row in rows]
