"""The command ``lamplighter devices``: devices that announced themselves, and the decisions about them.

It asks and updates the running gateway; `adapters.devices.registry` has the updates. The MQTT adapter follows the rules
of an adopted device as soon as they are in the dataset.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args
from urllib.parse import quote

from lamplighter.adapters.coap.discovery import device_to_propose, distinct
from lamplighter.adapters.devices.device import Device, place
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.devices.registry import Entry, named
from lamplighter.adapters.mapping.tables import ByHand
from lamplighter.engine.errors import (
    ConfigurationError,
    PayloadError,
    RefusedError,
    UnknownResourceError,
    UpstreamError,
)
from lamplighter.engine.terms import lexical
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import confirm, print_json, print_result, shorten, table
from lamplighter.gateway.cli.devices_coap import add_discover_arguments, add_key_arguments, found_devices, make_key
from lamplighter.gateway.cli.devices_unread import add_unread_arguments, list_unread
from lamplighter.gateway.cli.endpoint import RunningDataset, add_reach_options, call_gateway
from lamplighter.gateway.cli.options import add_confirmation, add_json, add_mode, complete_names
from lamplighter.gateway.devices.decisions import NOT_READ, STATES, Devices, NotDecidedError, Row, StateMismatch, word
from lamplighter.gateway.devices.listing import DeviceList, decision_json, in_room
from lamplighter.gateway.texts import did_you_mean, nearest, printable


def add_devices_commands(command: Adder) -> None:
    devices = command("devices", _list)
    devices.set_defaults(state=None, room=None, json=False)
    modes = devices.add_subparsers(title="subcommands", metavar="SUBCOMMAND", dest="mode")

    listing = add_mode(modes, "list", "list the devices (also without a subcommand)", _list)
    listing.add_argument("--state", choices=STATES, help="only devices in this state")
    complete_names(listing.add_argument("--room", help="only devices in this room"), "room")
    discover = add_mode(modes, "discover", "search the network for CoAP devices, and propose them", _discover)
    add_discover_arguments(discover)
    show = add_mode(modes, "show", "show the sensors, actuators and topics of a device", _show)
    _add_device(show)
    adopt = add_mode(modes, "adopt", "use a device: its readings are stored, and its actuators can be switched", _adopt)
    adopt.add_argument("device", nargs="?", metavar="ID", help="identity or name, or a part that only one device has")
    adopt.add_argument("--all", action="store_true", help="all proposed devices")
    complete_names(adopt.add_argument("--room", help="the room or place of the device, such as Kitchen"), "room")
    ignore = add_mode(modes, "ignore", "ignore a device: it is not proposed again", _ignore)
    _add_device(ignore)
    rename = add_mode(modes, "rename", "give a device a name, a room, or both; its IRIs stay", _rename)
    _add_device(rename)
    rename.add_argument("name", nargs="?", metavar="NAME", help='the new name; "" gives back the announced one')
    rename.add_argument("--room", help='the new room; "" gives back the announced one')
    setting = add_mode(modes, "set", "switch an adopted device, or set another state of it", _set_state)
    setting.add_argument(
        "device", metavar="ID", help="identity or name, or the actuator of a [[command]] rule, such as actuator/kitchen"
    )
    setting.add_argument(
        "actuator", nargs="?", metavar="ACTUATOR", help="what to set, such as brightness, if the device has several"
    )
    setting.add_argument("state", metavar="STATE", help="on, off, or a state that `devices show ID` lists")
    by_hand = add_mode(modes, "by-hand", "keep (follow) or revert (hold) what is switched by hand", _by_hand)
    _add_device(by_hand)
    by_hand.add_argument("actuator", nargs="?", metavar="ACTUATOR", help="only this one, such as brightness")
    by_hand.add_argument(
        "what",
        choices=get_args(ByHand),
        help="follow: its state becomes the desired one; hold: the desired state is sent again",
    )
    remove = add_mode(modes, "remove", "remove a device with its description, rules and live observations", _remove)
    _add_device(remove)
    add_confirmation(remove)
    key = add_mode(modes, "key", "make a key (OSCORE) for a CoAP device, and give the device's half once", make_key)
    add_key_arguments(key)
    problems = add_mode(
        modes, "problems", "list announcements and messages that were not used, with the reasons", _problems
    )
    unread = add_mode(modes, "unread", "list topics that no rule reads, with proposed rules", list_unread)
    add_unread_arguments(unread)
    for name, what in (
        ("discover", "the devices found"),
        ("show", "the device, as GET /devices/<id>,"),
        *((name, "what was done") for name in ("adopt", "ignore", "rename", "set", "by-hand", "remove")),
    ):
        add_json(modes.choices[name], what, below=True)
    for parser, what in ((devices, "device"), (listing, "device"), (problems, "problem")):
        parser.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=f"print one JSON object per {what} and line"
        )
    for parser in (devices, *(one for name, one in modes.choices.items() if name != "key")):
        add_reach_options(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    text = "name or identity, or a part that only one device has"
    complete_names(parser.add_argument("device", metavar="NAME", help=text), "device")


class _CalledDataset:
    """The running gateway's dataset for `Devices`. A command has nothing else to do while it waits."""

    def __init__(self, running: RunningDataset) -> None:
        self._running = running

    async def rows(self, query: str) -> list[Row]:
        return self._running.rows(query)

    async def update(self, text: str) -> None:
        self._running.update(text)


class _Gateway(RunningDataset):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        dataset = _CalledDataset(self)
        self.devices = Devices(dataset, self.settings.gateway.base_iri, self.settings.mqtt.commands)
        self.listing = DeviceList(self.devices, dataset)
        self.registry = self.devices.registry
        self.problems = Problems(self.settings.gateway.base_iri)

    def entries(self) -> list[Entry]:
        """The devices, by state and name. Those that cannot be read are named on standard error."""
        found, faults = asyncio.run(self.devices.entries())
        for fault in faults:
            print(f"not shown: a device in the dataset cannot be read: {printable(fault)}", file=sys.stderr)
        return found

    def differing(self, entries: Sequence[Entry]) -> dict[str, list[StateMismatch]]:
        return asyncio.run(self.devices.differing(entries))

    def contact(self, entry: Entry) -> list[tuple[str, str]]:
        """What the dataset says of whether a device answers, with titles."""
        found = asyncio.run(self.devices.contacts(entry)).get(self.registry.device_iri(entry.device), {})
        titles = (("online", "online"), ("last_seen", "last contact"), ("unreachable", "unreachable"))
        return [(title, found[name]) for name, title in titles if name in found]

    def named(self, text: str) -> Entry:
        """Raises UnknownResourceError, and ConfigurationError for a text that fits several; both say what to write."""
        entries = self.entries()
        try:
            return named(entries, text)
        except LookupError as error:
            names = nearest(text, (name for entry in entries for name in (entry.name, entry.identity)))
            raise UnknownResourceError(f"{error.args[0]}{did_you_mean(names)}") from error
        except ValueError as error:
            raise ConfigurationError(str(error)) from error


def _list(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entries = [one for one in gateway.entries() if options.state in (None, one.adoption)]
    if options.room is not None:
        entries = in_room(entries, options.room)
    differing = gateway.differing(entries)
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


_TITLES = ("ID", "NAME", "ROOM", "MODEL", "STATE", "HAS")
_DIFFERS = "NOT AS DESIRED"  # title of a column that is there if a device reports another state than the desired one


def _differences(differing: Sequence[StateMismatch]) -> str:
    found = (f"{word(one.actuator.kind)}: {one.desired}, reports {one.reported}" for one in differing)
    return shorten("; ".join(found))


def _row(entry: Entry) -> tuple[str, ...]:
    device = entry.device
    return (
        entry.identity,
        shorten(entry.name),
        shorten(entry.area),
        shorten(f"{device.manufacturer} {device.model}".strip()),
        entry.adoption,
        shorten(", ".join(_kinds(device))),
    )


def _kinds(device: Device) -> Iterator[str]:
    """What a device observes and does, in words."""
    # A transition goes along with what a lamp is told, and is nothing that it does.
    acting = [actuator.kind for actuator in device.actuators if actuator.kind != "gateway:transition"]
    acts, counted = set(acting), Counter(acting)
    counted += Counter([sensor.kind for sensor in device.sensors if sensor.kind not in acts])
    for kind, count in counted.items():
        yield word(kind) if count == 1 else f"{count} {word(kind)}"


def _as_json(entry: Entry, differing: Sequence[StateMismatch]) -> dict[str, Any]:
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
        "not_as_desired": {one.actuator.key: {"desired": one.desired, "reported": one.reported} for one in differing},
    }


def _show(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    device = entry.device
    if options.json:
        print_json(asyncio.run(gateway.listing.one(entry)))
        return 0
    facts = [
        ("name", entry.name if entry.name == device.name else f"{entry.name} (announced as {device.name})"),
        ("IRI", lexical(gateway.registry.device_iri(device))),
        ("state", entry.adoption),
        ("room", entry.area or "-"),
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
                one.table.get("member") or one.table.get("template", ""),
            )
            for one in device.sensors
        ]
        print("\n" + table([("OBSERVES", "SENSOR", "UNIT", title, "MEMBER"), *_printables(rows)]), end="")
    if device.actuators:
        by_hand = asyncio.run(gateway.devices.by_hand(entry))
        reported = {one["iri"]: _report_text(one) for one in asyncio.run(gateway.listing.one(entry))["actuators"]}
        acts = [
            (
                one.kind,
                lexical(gateway.registry.actuator_iri(one)),
                shorten(
                    ", ".join(one.command["values"]) if "values" in one.command else _bounds(one.minimum, one.maximum)
                ),
                reported[lexical(gateway.registry.actuator_iri(one))],
                by_hand[one.key],
                place(one.command),
            )
            for one in device.actuators
        ]
        print(
            "\n" + table([("CONTROLS", "ACTUATOR", "STATES", "REPORTED", "BY HAND", title), *_printables(acts)]), end=""
        )
        _warn_of_refused_topics(gateway, device)
    return 0


def _report_text(actuator: dict[str, Any]) -> str:
    """What the device reports, when, and whether that is confirmed. actuator: as `DeviceList.one` has it."""
    if "reported" not in actuator:
        return "-"
    time = actuator.get("reported_time", "")[:19]
    doubt = "(unconfirmed)" if actuator.get("confirmed") is False else ""
    return " ".join(part for part in (shorten(actuator["reported"]), time, doubt) if part)


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None and maximum is None:
        return "any"
    return f"{'' if minimum is None else f'{minimum:g}'} to {'' if maximum is None else f'{maximum:g}'}".strip()


def _discover(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    try:
        proposals = found_devices(gateway.settings.coap, options.host)
    except PayloadError as error:
        raise ConfigurationError(f"{options.host or 'multicast'}: {error}") from error
    except UpstreamError as error:
        raise UpstreamError(f"{options.host or 'multicast'}: {error}") from error
    known = {entry.identity: entry for entry in gateway.entries()}
    found: list[dict[str, object]] = []
    unused: list[dict[str, str]] = []
    answered = 0
    for proposal in distinct(proposals, known, {}):
        unused += ({"place": one.topic, "reason": one.reason} for one in proposal.problems)
        if proposal.device is None:
            continue
        answered += 1
        device = device_to_propose(proposal.device, known)
        if isinstance(device, str):
            unused.append({"place": proposal.device.broker, "reason": device})
            continue
        entry = known.get(device.identity)
        update = gateway.registry.announced(entry, device, "ask")
        if update is not None:
            gateway.update(update)
        state = "proposed" if entry is None else entry.adoption
        found.append({"id": device.identity, "state": state, "has": list(_kinds(device))})
        if not options.json:
            print(f"{state} {device.identity}: {printable(', '.join(_kinds(device)))}")
    if options.json:
        print_json({"found": found, "not_used": unused})
    else:
        for one in unused:
            print(f"not used: {printable(one['place'])}: {printable(one['reason'])}", file=sys.stderr)
        if not answered:
            print("no device answered with resources that can be used")
    return 0 if answered else 1


def _adopt(options: argparse.Namespace) -> int:
    if options.all == (options.device is not None):
        raise ConfigurationError("write the device to adopt, or --all")
    gateway = _Gateway(options)
    if options.all:
        entries = [entry for entry in gateway.entries() if entry.adoption == "proposed"]
    else:
        entries = [gateway.named(options.device)]
    found = asyncio.run(gateway.devices.adopt(entries, options.room))
    adopted = _without_refusals(found)
    if options.json:
        warned = ({"warnings": gateway.devices.refused_topics(entry.device)} for entry in adopted)
        print_json({"adopted": [decision_json(entry) | more for entry, more in zip(adopted, warned, strict=True)]})
    else:
        if not entries:
            print("no device is proposed; devices announce themselves some seconds after the start of the gateway")
        for entry in adopted:
            print(f"adopted {entry.identity}, {printable(entry.name)}")
            _warn_of_refused_topics(gateway, entry.device)
    return 0 if len(adopted) == len(entries) else 1


def _without_refusals(found: Sequence[Entry | NotDecidedError]) -> list[Entry]:
    """The devices that were decided about. The others are named on standard error."""
    for one in found:
        if isinstance(one, NotDecidedError):
            print(f"lamplighter: {printable(str(one))}", file=sys.stderr)
    return [one for one in found if isinstance(one, Entry)]


def _warn_of_refused_topics(gateway: _Gateway, device: Device) -> None:
    """Says on standard error which actuators cannot be switched with these settings."""
    for reason in gateway.devices.refused_topics(device):
        what = "" if reason == NOT_READ else "cannot be switched: "
        print(f"lamplighter: {device.identity}: {what}{printable(reason)}", file=sys.stderr)


def _ignore(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    ignored = _without_refusals(asyncio.run(gateway.devices.ignore([entry])))
    lines = [f"ignored {one.identity}, {printable(one.name)}" for one in ignored]
    print_result(options, {"ignored": [decision_json(one) for one in ignored]}, lines)
    return 0 if ignored else 1


def _rename(options: argparse.Namespace) -> int:
    if options.name is None and options.room is None:
        raise ConfigurationError("write the new name, or --room, or both")
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    found: list[Entry | NotDecidedError] = []
    try:
        found.append(asyncio.run(gateway.devices.rename(entry, options.name, options.room)))
    except NotDecidedError as error:
        found.append(error)
    renamed = _without_refusals(found)
    lines = [
        f"{one.identity} is called {printable(one.name)}{f', in {printable(one.area)}' if one.area else ''}"
        for one in renamed
    ]
    print_result(options, {"renamed": [decision_json(one) for one in renamed]}, lines)
    return 0 if renamed else 1


def _set_state(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    try:
        entry = gateway.named(options.device)
    except UnknownResourceError as error:
        if options.actuator is not None:
            raise
        name, done = options.device, _set_by_gateway(options, str(error))
    else:
        try:
            wanted = asyncio.run(gateway.devices.set(entry, options.actuator, options.state))
        except ValueError as error:
            raise ConfigurationError(f"{options.device}: {error}") from error
        name = wanted.name
        done = {"id": entry.identity, "actuator": lexical(wanted.actuator), "desired": lexical(wanted.state)}
    line = f"{printable(name)}: the desired state is {printable(done['desired'])}"
    print_result(options, {"set": [done]}, line)
    return 0


def _set_by_gateway(options: argparse.Namespace, no_device: str) -> dict[str, str]:
    """Sets what no device is called: the actuator of a rule, perhaps in a file that only the gateway has. Raises
    UnknownResourceError, and as `call_gateway`."""
    path = f"/devices/{quote(options.device)}"
    content = json.dumps({"action": "set", "state": options.state}).encode()
    try:
        with call_gateway(options, "POST", path, content, {"Content-Type": "application/json"}) as answer:
            return dict(json.load(answer))
    except RefusedError as error:
        if error.status == 404:
            raise UnknownResourceError(f"{no_device}; {error}") from error
        raise


def _by_hand(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    try:
        what = asyncio.run(gateway.devices.say_by_hand(entry, options.actuator, options.what))
    except ValueError as error:
        raise ConfigurationError(f"{options.device}: {error}") from error
    if options.json:
        print_json({"by_hand": [{"id": entry.identity, "by_hand": what}]})
    else:
        does = "becomes the desired state" if what == "follow" else "is changed back to the desired state"
        print(f"{entry.identity}: a state that it gets by hand {does}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    entry = gateway.named(options.device)
    if not confirm(f"Remove {entry.identity}, {printable(entry.name)}, from the dataset?", yes=options.yes):
        return 1
    try:
        asyncio.run(gateway.devices.remove(entry))
        removed = [{"id": entry.identity, "name": entry.name}]
    except NotDecidedError as error:
        removed = []
        _without_refusals([error])
    lines = [f"removed {entry.identity}; it is proposed again if it is still announced"] if removed else []
    print_result(options, {"removed": removed}, lines)
    return 0 if removed else 1


def _problems(options: argparse.Namespace) -> int:
    gateway = _Gateway(options)
    found = gateway.rows(gateway.problems.query)
    if options.json:
        names = ("source", "topic", "device", "reason", "count", "seen")
        for row in found:
            print(
                json.dumps({name: None if one is None else lexical(one) for name, one in zip(names, row, strict=True)})
            )
        return 0
    if not found:
        print("no problems since the adapters started")
        return 0
    rows = []
    for row in found:
        source, topic, device, reason, count, seen = ("" if one is None else lexical(one) for one in row)
        about = device.rpartition("/device/")[2] if device else topic
        rows.append((seen[:19], source, count, shorten(about), reason))
    print(table([("LAST SEEN", "SOURCE", "COUNT", "DEVICE OR TOPIC", "REASON"), *_printables(rows)]), end="")
    return 0


def _printables(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(printable(cell) for cell in row) for row in rows]
