"""The command `init`: writes an application from a template, and the mapping rules of devices that one names.

On a terminal it asks for what is missing. It overwrites no file unless `--force` is given.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from lamplighter.adapters.devices.draft import segment
from lamplighter.adapters.mapping import load_mapping, uris
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, PayloadError
from lamplighter.engine.protocol.jsap import parse
from lamplighter.engine.terms import iri
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import ask, print_json
from lamplighter.gateway.cli.init_options import declare_templates
from lamplighter.gateway.cli.options import SYSTEM_CONFIG, config_file, config_folder
from lamplighter.gateway.cli.templates import (
    TEMPLATES,
    Choice,
    DailySpan,
    Dimming,
    Template,
    mapping_text,
    profile_text,
)
from lamplighter.gateway.local_time.times import TimeOfDay
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.state.delayed import delay_us
from lamplighter.ontology.vocabulary import COAP_RESOURCE

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SEGMENT = r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
_NAME = re.compile(_SEGMENT)
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_SPAN = re.compile(r"(\d+)\s*(s|m|min|h)")
_DIGITS_MAX = 15  # of a temperature, before and behind the point
_UNITS = {"s": "S", "m": "M", "min": "M", "h": "H"}


def add_init_command(command: Adder) -> None:
    declare_templates(command("init", None, data=False), _init)


def _init(options: argparse.Namespace) -> int:
    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not _is_unicode(text):
                raise ConfigurationError(f"--{name.replace('_', '-')}: write UTF-8")
    config = config_file(options)
    settings, folder = read_settings(config), config_folder(options)
    template = TEMPLATES[options.template]
    if not options.actuators and sys.stdin.isatty() and sys.stdout.isatty():
        _ask(options, template)
    choice, tables = _choice(options, template, settings)
    files = {folder / "apps" / f"{choice.name}.jsap": profile_text(template.profile(choice, template.properties))}
    if tables:
        comment = f"Devices of apps/{choice.name}.jsap. docs/devices.md explains the keys."
        files[folder / "mapping" / f"{choice.name}.toml"] = _readable_rules(mapping_text(tables, comment), choice)
    parse(files[folder / "apps" / f"{choice.name}.jsap"].encode())
    _write(files, overwrite=options.force)
    follows = {"properties": template.properties, "room": choice.room, "sensors": choice.sensors}
    notes = _notes(settings, config, choice, mapped=bool(tables))
    following, later = _following(options, config), _once_it_runs(options, choice)
    if options.json:
        wrote = list(map(str, files))
        print_json({"wrote": wrote, "follows": follows, "notes": notes, "next": following, "once_it_runs": later})
        return 0
    for path in files:
        print(f"wrote {path}")
    if template.properties:
        which = f"in {choice.room}" if choice.room else ", ".join(choice.sensors) or "all of the gateway"
        print(f"it follows sensors of {' and '.join(template.properties)}: {which}")
    for line in notes:
        print(line)
    print("next:")
    for line in following:
        print(f"  {line}")
    if later:
        print("and, once it runs:")
    for line in later:
        print(f"  {line}")
    return 0


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: other bytes of the command line are halves of pairs (PEP 383)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- options ---


def _ask(options: argparse.Namespace, template: Template) -> None:
    """Asks for what the options leave open. An empty answer leaves it open."""
    options.actuators = _answers(f"The {template.actuator}, a name such as kitchen")
    if template.properties:
        _ask_for_sensors(options)
    if options.coap is None and options.command_topic is None:
        address = _answer(
            f"How the {template.actuator} is told its state: coap://... or an MQTT topic (empty: the gateway knows it)"
        )
        if address is not None:
            setattr(options, "coap" if address.startswith("coap:") else "command_topic", address)


def _ask_for_sensors(options: argparse.Namespace) -> None:
    if options.room is None and not options.sensors:
        options.room = _answer("The room whose sensors count, such as kitchen (empty: choose sensors)")
        if options.room is None:
            options.sensors = _answers("The sensors that count (empty: all sensors of this kind)")
    if options.topic is None:
        options.topic = _answer("MQTT topic of a sensor that the gateway does not know yet (empty: none)")
        if options.topic is not None and options.member is None:
            options.member = _answer("Its JSON member with the value (empty: the payload is the value)")


def _answer(question: str) -> str | None:
    try:
        return ask(f"{question}: ").strip() or None
    except EOFError:  # control and D
        return None


def _answers(question: str) -> list[str]:
    return (_answer(f"{question}; several with spaces between them") or "").split()


def _choice(options: argparse.Namespace, template: Template, settings: Settings) -> tuple[Choice, dict[str, Any]]:
    """The application, and its mapping tables. Raises ConfigurationError."""
    base = settings.gateway.base_iri
    if not _NAME.fullmatch(options.name):
        raise ConfigurationError(f"--name {options.name}: use letters, digits, - and _")
    if not options.actuators:
        raise ConfigurationError(f"add --{template.actuator} NAME, the {template.actuator} to switch, such as kitchen")
    actuators = [_iri(name, base, "actuator", f"--{template.actuator}") for name in options.actuators]
    room = None if options.room is None else _room(options.room, base)
    sensors = [_iri(name, base, "sensor", "--sensor") for name in options.sensors or ()]
    if (options.coap or options.command_topic) and len(actuators) > 1:
        raise ConfigurationError(f"--coap and --command-topic are of one {template.actuator}; name one")
    tables: dict[str, Any] = {}
    if options.topic is not None:
        if len(sensors) > 1:
            raise ConfigurationError("--topic is of one sensor; name one with --sensor, and map the others later")
        mapped = sensors[0] if sensors else f"{base}sensor/{options.name}"
        if room is None and not sensors:
            sensors = [mapped]
        tables["stream"] = _stream(options, template, base, mapped, room)
    elif options.member or options.true or options.false:
        raise ConfigurationError("--member and the words of a sensor need --topic")
    if options.command_topic is not None:
        tables["command"] = _command(options, base, actuators[0])
    elif options.command_payload or options.command_values:
        raise ConfigurationError("--command-payload and --command-value need --command-topic")
    if options.coap is not None:
        try:
            options.coap = uris.coap(options.coap)
        except PayloadError as error:
            raise ConfigurationError(f"--coap: {error}") from error
    states = [_number(getattr(options, state), f"--{state}") for state in template.states]
    choice = Choice(
        name=options.name,
        base_iri=base,
        actuator=template.actuator,
        actuators=actuators,
        delay=_duration(options.delay, f"--{template.delay[0]}") if template.delay else "",
        states=(states[0], states[1]) if states else ("true", "false"),
        room=room if not options.sensors else None,
        sensors=sensors,
        confirmed=options.unconfirmed == "ignore",
        span=_span(options, "from", "until") if template.span else None,
        dimming=_dimming(options, base) if template.dims else None,
    )
    return choice, tables


def _span(options: argparse.Namespace, begin: str, end: str) -> DailySpan:
    texts = []
    for option in (begin, end):
        text: str = getattr(options, option.replace("-", "_"))
        try:
            TimeOfDay.parse(text)
        except ValueError as error:
            raise ConfigurationError(f"--{option}: {error}") from error
        texts.append(text)
    return DailySpan(texts[0], texts[1], options.weekdays or ())


def _dimming(options: argparse.Namespace, base: str) -> Dimming | None:
    if not options.dimmers:
        return None
    dimmers = [_iri(name, base, "actuator", "--dimmer") for name in options.dimmers]
    levels = _number(options.dim_level, "--dim-level"), _number(options.level, "--level")
    return Dimming(dimmers, levels, _span(options, "dim-from", "dim-until"))


def _stream(
    options: argparse.Namespace, template: Template, base: str, sensor: str, room: str | None
) -> dict[str, object]:
    table: dict[str, object] = {"topic": options.topic}
    if options.member:
        table["member"] = options.member
    table |= {"property": template.properties[0], "payload": "boolean", "sensor": _short(sensor, base)}
    if options.true:
        table["on"] = options.true
    if options.false:
        table["off"] = options.false
    if room is not None:
        table["feature"] = _short(room, base)
    return table


def _command(options: argparse.Namespace, base: str, actuator: str) -> dict[str, object]:
    table: dict[str, object] = {"actuator": _short(actuator, base), "topic": options.command_topic}
    if options.command_payload is not None:
        table["payload"] = options.command_payload
    values = dict(pair.partition("=")[::2] for pair in options.command_values or ())
    if values:
        table["values"] = values
    return table


def _iri(name: str, base: str, folder: str, option: str) -> str:
    """The IRI of a name: below the base IRI, in a folder unless it has one."""
    if not _SCHEME.match(name):
        if not _PATH.fullmatch(name):
            raise ConfigurationError(f"{option} {name}: use letters, digits, - and _, or give an IRI")
        return f"{base}{name}" if "/" in name else f"{base}{folder}/{name}"
    try:
        return iri(name)[1:-1]
    except ValueError as error:
        raise ConfigurationError(f"{option} {name}: {error}") from error


def _room(name: str, base: str) -> str:
    """The IRI of a room: an IRI or a path, or the name of the area that devices have."""
    if not name.strip() or _SCHEME.match(name) or "/" in name:
        return _iri(name, base, "area", "--room")
    return f"{base}area/{segment(name)}"


def _short(address: str, base: str) -> str:
    """A path below the base IRI where the address is one, as mapping files have it."""
    path = address.removeprefix(base)
    return path if _PATH.fullmatch(path) else address


def _duration(text: str, option: str) -> str:
    """ISO 8601 for 30s, 5min or 1h, or for what is ISO 8601 already."""
    span = _SPAN.fullmatch(text.strip().lower())
    duration = f"PT{span[1]}{_UNITS[span[2]]}" if span else text
    try:
        delay_us(duration)
    except MalformedRequestError as error:
        raise ConfigurationError(f"{option} {text}: write a time such as 30s, 5min, 1h or PT30S") from error
    return duration


def _number(text: str, option: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise ConfigurationError(f"{option} {text}: write a number such as 21 or 20.5") from error
    if not number.is_finite() or abs(number.adjusted()) > _DIGITS_MAX or len(text) > 2 * _DIGITS_MAX:
        raise ConfigurationError(f"{option} {text}: write a number such as 21 or 20.5")
    return f"{number:f}"


def _readable_rules(text: str, choice: Choice) -> str:
    """The text of a mapping file, if the gateway can read it. Raises ConfigurationError."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"{choice.name}.toml"
        (Path(folder) / name).write_text(text, encoding="utf-8")
        try:
            load_mapping(Path(folder), choice.base_iri)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(folder, "mapping")) from error
    return text


# --- files ---


def _write(files: dict[Path, str], *, overwrite: bool) -> None:
    """Writes all files, or none if one exists. Raises ConfigurationError."""
    # A link is not followed: whoever may write the folder could lead it to a file of the user's.
    links = [str(path) for path in files if path.is_symlink()]
    if links:
        raise ConfigurationError(f"{' and '.join(links)} is a link; nothing was written. Give another --name")
    existing = [str(path) for path in files if path.exists()]
    if existing and not overwrite:
        raise ConfigurationError(
            f"{' and '.join(existing)} exists; nothing was written. Give another --name, or --force to overwrite"
        )
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}; run the command as the owner of the folder") from error


def _notes(settings: Settings, config: Path | None, choice: Choice, *, mapped: bool) -> list[str]:
    """What the settings lack for the application. mapped: whether it has mapping rules for MQTT."""
    notes = []
    if choice.kept_span is not None and not settings.place.is_set:
        notes.append(f"set time_zone and position of [place] in {config or 'lamplighter.toml'}")
    if settings.mqtt.model == "event":
        notes.append('warning: it does not see readings over MQTT: mqtt.model is "event", and must be "latest"')
    if mapped and not settings.mqtt.host:
        notes.append(f"set host of [mqtt] in {config or 'lamplighter.toml'}: the broker of the devices")
    return notes


def _following(options: argparse.Namespace, config: Path | None) -> list[str]:
    with_config = f" --config {shlex.quote(str(options.config))}" if options.config else ""
    lines = [f"lamplighter check{with_config}"]
    if config == SYSTEM_CONFIG:
        lines.append("sudo systemctl reload-or-restart lamplighter-gateway lamplighter-mqtt lamplighter-coap")
    else:
        lines.append(f"lamplighter run --all{with_config}")
    return lines


def _once_it_runs(options: argparse.Namespace, choice: Choice) -> list[str]:
    if not options.coap:
        return []
    with_config = f" --config {shlex.quote(str(options.config))}" if options.config else ""
    triple = f"<{choice.actuators[0]}> <{COAP_RESOURCE}> <{options.coap}>"
    return [f"lamplighter update{with_config} {shlex.quote(f'INSERT DATA {{ {triple} }}')}"]
