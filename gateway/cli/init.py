"""The command `init`: makes an application from a template, and the mapping rules of devices that one names.

It writes files, or puts the application into the running gateway with `--run`. On a terminal it asks for what is
missing. It overwrites no file unless `--force` is given.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from lamplighter.engine.errors import ConfigurationError, RefusedError, UpstreamError
from lamplighter.engine.protocol.jsap import parse
from lamplighter.gateway.cli.apps_commands import call_for_json, put_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import ask, print_json
from lamplighter.gateway.cli.init_options import declare_templates, value_name
from lamplighter.gateway.cli.names import directory_of
from lamplighter.gateway.cli.options import SYSTEM_CONFIG, config_file, config_folder
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.templates.catalogue import TEMPLATES, Template, profile_text
from lamplighter.gateway.templates.notes import lacking_settings
from lamplighter.gateway.templates.options import options_of
from lamplighter.gateway.templates.values import MadeApplication, Values, make
from lamplighter.gateway.texts import printable


def add_init_command(command: Adder) -> None:
    declare_templates(command("init", None, data=False), _init)


def _init(options: argparse.Namespace) -> int:
    template = TEMPLATES[options.template]
    if not getattr(options, template.actuator) and sys.stdin.isatty() and sys.stdout.isatty():
        _ask(options, template)
    values = {one.name: getattr(options, value_name(one)) for one in options_of(template)}
    if options.run:
        return _store(options, {name: value for name, value in values.items() if value is not None})
    options.data = None
    config = config_file(options)
    settings, folder = read_settings(config), config_folder(options)
    try:
        directory = directory_of(options)
    except UpstreamError:
        directory = None  # the files are for a gateway that is to come
    made = make(options.template, options.name, values, settings.gateway.base_iri, directory)
    choice = made.choice
    files = {folder / "apps" / f"{choice.name}.jsap": profile_text(made.document)}
    if made.tables:
        files[folder / "mapping" / f"{choice.name}.toml"] = made.rules_text
    parse(files[folder / "apps" / f"{choice.name}.jsap"].encode())
    _write(files, overwrite=options.force)
    _print(options, made, settings, config, files)
    return 0


def _print(
    options: argparse.Namespace, made: MadeApplication, settings: Settings, config: Path | None, files: dict[Path, str]
) -> None:
    choice, properties = made.choice, made.template.properties
    notes = lacking_settings(settings, str(config or "lamplighter.toml"), made)
    following, later = _following(options, config), _once_it_runs(options, made)
    if options.json:
        follows = {"properties": properties, "room": choice.room, "sensors": choice.sensors}
        wrote = list(map(str, files))
        print_json({"wrote": wrote, "follows": follows, "notes": notes, "next": following, "once_it_runs": later})
        return
    for path in files:
        print(f"wrote {path}")
    if made.follows:
        print(f"it follows {made.follows}")
    for line in notes:
        print(line)
    print("next:")
    for line in following:
        print(f"  {line}")
    if later:
        print("and, once it runs:")
    for line in later:
        print(f"  {line}")


def _store(options: argparse.Namespace, values: Values) -> int:
    """Has the running gateway make it."""
    options.data = None
    body = {"name": options.name, "values": values, "put": True, "replace": options.force}
    try:
        content = json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError("write UTF-8") from error
    try:
        made = call_for_json(options, "POST", f"/templates/{options.template}", content)
    except RefusedError as error:
        if error.code != "conflict" or not _is_stored(options):  # one of a file cannot be replaced
            raise
        problem = f"{options.name} runs already; give another --name, or --force to replace it"
        raise RefusedError(error.code, error.status, problem) from error
    if options.json:
        print_json(made)
    else:
        print(put_text(made["put"]))
        if made["follows"]:
            print(printable(f"it follows {made['follows']}"))
        for line in (*made["notes"], *made["warnings"]):
            print(printable(line))
    return 0 if made["put"]["problem"] is None else 1


def _is_stored(options: argparse.Namespace) -> bool:
    found = call_for_json(options, "GET", "/applications")["applications"]
    return any(one["name"] == options.name and one["origin"] == "stored" for one in found)


# --- questions ---


def _ask(options: argparse.Namespace, template: Template) -> None:
    """Asks for what the options leave open. An empty answer leaves it open."""
    setattr(options, template.actuator, _answers(f"The {template.actuator}, a name such as kitchen"))
    if template.properties:
        _ask_for_sensors(options)
    if options.coap is None and options.command_topic is None:
        address = _answer(
            f"How the {template.actuator} is told its state: coap://... or an MQTT topic (empty: the gateway knows it)"
        )
        if address is not None:
            setattr(options, "coap" if address.startswith("coap:") else "command_topic", address)


def _ask_for_sensors(options: argparse.Namespace) -> None:
    if options.room is None and not options.sensor:
        options.room = _answer("The room whose sensors count, such as kitchen (empty: choose sensors)")
        if options.room is None:
            options.sensor = _answers("The sensors that count (empty: all sensors of this kind)")
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
    """A name may have spaces in it."""
    return [one.strip() for one in (_answer(f"{question}; several with commas between them") or "").split(",") if one]


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


def _following(options: argparse.Namespace, config: Path | None) -> list[str]:
    with_config = f" --config {shlex.quote(str(options.config))}" if options.config else ""
    lines = [f"lamplighter check{with_config}"]
    if config == SYSTEM_CONFIG:
        lines.append("sudo systemctl reload-or-restart lamplighter-gateway lamplighter-mqtt lamplighter-coap")
    else:
        lines.append(f"lamplighter run --all{with_config}")
    return lines


def _once_it_runs(options: argparse.Namespace, made: MadeApplication) -> list[str]:
    if not made.coap_update:
        return []
    with_config = f" --config {shlex.quote(str(options.config))}" if options.config else ""
    return [f"lamplighter update{with_config} {shlex.quote(made.coap_update)}"]
