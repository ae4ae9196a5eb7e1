"""The command ``lamplighter check``: everything that a start reads and needs, without starting anything."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from lamplighter.adapters.mqtt.overlaps import loops, overlaps
from lamplighter.engine.errors import ConfigurationError, GatewayError, UpstreamError
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.options import add_assignments, config_file
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.service.configuration import Configuration, RefusedConfigurationError
from lamplighter.gateway.service.preflight import GATEWAY, MachineFindings, credential_names, preflight
from lamplighter.gateway.service.unit_view import UnitView
from lamplighter.gateway.state.applications import Application, DeclaredApplications, application_texts
from lamplighter.gateway.state.stored_applications import StoredApplications, readable
from lamplighter.gateway.texts import printable

REPLAYED_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of snapshot and segments, which are packed, that are replayed for the names while no gateway runs."""


def add_check_command(command: Adder) -> None:
    check = command("check", _check)
    check.add_argument("--json", action="store_true", help="print faults and notes as JSON")
    add_assignments(check)


def _check(options: argparse.Namespace) -> int:
    try:
        configuration, found = check_configuration(options, options.assigned)
        applications, unreadable = _applications(configuration)
        if unreadable:
            raise ConfigurationError("\n".join(f"stored application {name}: {it}" for name, it in unreadable.items()))
    except ConfigurationError as error:
        if options.json:
            print(json.dumps({"valid": False, "faults": str(error).splitlines(), "notes": []}, indent=2))
            return 2
        raise
    if options.json:
        print(
            json.dumps(
                {"valid": True, "faults": [], "notes": _notes(options, configuration, applications, found)}, indent=2
            )
        )
    else:
        _print(options, configuration, applications, found)
    return 0


def _applications(configuration: Configuration) -> tuple[list[Application], dict[str, str]]:
    """All applications that run, and what is wrong with stored ones, which the service of an adapter does not see."""
    data = configuration.data
    stored, faults = readable(() if _is_hidden(data) else StoredApplications(data, Disk()).applications)
    return list(DeclaredApplications(configuration.applications, stored)), faults


def _is_hidden(data: Path) -> bool:
    return data.exists() and not os.access(data, os.R_OK | os.X_OK, effective_ids=True)


def _unknown_names(
    options: argparse.Namespace, configuration: Configuration, applications: Sequence[Application]
) -> list[str]:
    """What applications name that neither a rule nor the dataset has; none where no dataset is known."""
    if not applications or _is_hidden(configuration.data) or not (configuration.data / "log").is_dir():
        return []  # a gateway that has never run knows no devices yet
    # Not above: they load the engine.
    from lamplighter.gateway.cli.names import directory_of, past_directory
    from lamplighter.gateway.history.records import History

    history = History(configuration.data, MachineClock(configuration.settings.gateway.clock_trusted))
    try:
        if history.replay_bytes() > REPLAYED_BYTES_MAX:
            directory = directory_of(options)
        else:
            directory, _ = past_directory(options, history)
    except UpstreamError:
        return ["not looked up: no gateway answers, and its dataset is large; check again while it runs"]
    except (GatewayError, OSError):
        return []  # `verify` says what is wrong with the log
    return [line for one in applications for line in directory.warnings(one.name, application_texts(one))]


def check_configuration(
    options: argparse.Namespace, assigned: Sequence[str] = ()
) -> tuple[Configuration, MachineFindings]:
    """The configuration and the machine, as the service's user finds them. Raises ConfigurationError, which names all
    faults, one a line. assigned: as of `read_settings`."""
    config = config_file(options)
    stored = credential_names()
    with UnitView.of(config, GATEWAY).eyes():
        try:
            configuration = Configuration.read(config, options.data, assigned)
        except RefusedConfigurationError as error:
            raise ConfigurationError("\n".join([str(error), *error.faults])) from error
        found = preflight(configuration.settings, config, configuration.data, stored=stored)
    faults = [*configuration.faults, *found.faults]
    if faults:
        raise ConfigurationError("\n".join(faults))
    return configuration, found


def _notes(
    options: argparse.Namespace,
    configuration: Configuration,
    applications: Sequence[Application],
    found: MachineFindings,
) -> list[str]:
    rules = configuration.mapping
    notes = [f"name: {line}" for line in _unknown_names(options, configuration, applications)]
    notes += [f"overlap: {overlap}" for overlap in overlaps(rules.rules)]
    notes += [f"loop: {loop}" for loop in loops(rules.publishes, rules.rules, rules.commands)]
    if _is_hidden(configuration.data):
        notes.append(f"not checked, only the gateway's user may read it: {configuration.data}")
    notes += found.notes
    if configuration.unread:
        notes.append(f"not checked, only the gateway's user may read it: {configuration.unread}")
    return notes


def _print(
    options: argparse.Namespace,
    configuration: Configuration,
    applications: Sequence[Application],
    found: MachineFindings,
) -> None:
    settings, security = configuration.settings, configuration.settings.security
    rows = [
        ("data", str(configuration.data.resolve())),
        ("base IRI", settings.gateway.base_iri),
        ("MQTT broker", f"{settings.mqtt.host}:{settings.mqtt.port}" if settings.mqtt.host else "none"),
        ("security", f"TLS and tokens, registration {security.registration}" if security.enabled else "plain"),
    ]
    for application in applications:
        aggregators = ", ".join(application.profile.aggregators) or "no aggregators"
        rows.append(("application", f"{application.name}: {aggregators}"))
    if configuration.shapes is not None:
        from lamplighter.engine.shacl.reading import read_shapes  # which is not loaded where there are none

        rows.append(("shapes", f"{len(read_shapes(configuration.shapes.triples))} with targets, {settings.shacl.mode}"))
    print(f"configuration in {configuration.folder.resolve()} is valid")
    for name, value in rows:
        print(f"  {name:<14}{printable(value)}")
    for note in _notes(options, configuration, applications, found):
        kind, _, text = note.partition(": ")
        print(
            f"  {kind:<14}{printable(text)}"
            if kind in ("overlap", "loop", "name")
            else f"  {'note':<14}{printable(note)}"
        )
