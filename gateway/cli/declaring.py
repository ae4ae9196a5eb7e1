"""Declares the commands by groups. A command loads the modules of its group alone.

That saves time, and memory while the gateway runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Adder = Callable[..., argparse.ArgumentParser]
"""Makes a command from its name and its function."""

TEXTS = {
    "run": "run the gateway until it is stopped",
    "mqtt": "run only the MQTT adapter",
    "coap": "run only the CoAP adapter",
    "http-devices": "run only the adapter for devices with HTTP",
    "modbus": "run only the Modbus adapter",
    "check": "check the configuration and the machine without starting anything",
    "subscriptions": "list the subscriptions of a running gateway and their classes",
    "timers": "list or cancel the pending delayed updates of a running gateway",
    "status": "show the health of a running gateway: components, requests, subscriptions",
    "verify": "check all files in the data folder and report problems",
    "log": "show, export or replay the change log",
    "backup": "back up the dataset and the gateway's state to a file, with or without a running gateway",
    "restore": "restore the dataset and delayed updates of a backup into a running gateway",
    "query": "run a SPARQL query at a gateway or another endpoint",
    "update": "run a SPARQL update, or install the appliance update FILE.raucb",
    "subscribe": "subscribe to a query; print added (+) and removed (-) rows",
    "register": "register a client with a gateway in secure mode",
    "load": "add the triples or quads of an RDF file to the dataset of a running gateway",
    "bundle": "write a support file: settings, health, figures, log; without secrets",
    "devices": "list, adopt, ignore and rename devices that announce themselves or were found",
    "readings": "show the newest reading of each sensor of a running gateway",
    "explain": "show why an actuator was switched: from the reading to the acknowledgement",
    "clients": "manage the clients of a gateway in secure mode",
    "keys": "manage the signing keys of tokens",
    "mapping": "test and check mapping rules, here or at a gateway",
    "mcp": "speak the Model Context Protocol over standard input and output",
    "notifications": "read the inbox of a resource (Linked Data Notifications)",
    "sync": "ship the change log to the cloud",
    "init": "write an application from a template: a motion light, an alarm, a heating",
    "install": "install or upgrade the services on this machine (root)",
    "uninstall": "remove the services from this machine, keep settings and data (root)",
    "completion": "print the completion of this command for a shell",
    "demo": "run a gateway with a simulated street of ten lamps",
}
"""Name of a command -> its line in `lamplighter --help`, in this order. That shows them without loading a command."""


def _processes(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.process_commands import add_process_commands

    add_process_commands(command)


def _check(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.check_command import add_check_command

    add_check_command(command)


def _listings(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.listing_commands import add_listing_commands

    add_listing_commands(command)


def _status(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.status_command import add_status_command

    add_status_command(command)


def _log(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.commands import add_commands

    add_commands(command)


def _backup(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.backup_commands import add_backup_commands

    add_backup_commands(command)


def _client(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.client_commands import add_client_commands

    add_client_commands(command)


def _load(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.load_command import add_load_command

    add_load_command(command)


def _bundle(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.bundle_command import add_bundle_command

    add_bundle_command(command)


def _devices(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.devices_commands import add_devices_commands

    add_devices_commands(command)


def _readings(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.readings_commands import add_readings_command

    add_readings_command(command)


def _explain(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.explain_command import add_explain_command

    add_explain_command(command)


def _security(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.security_commands import add_security_commands

    add_security_commands(command)


def _mapping(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.mapping_commands import add_mapping_commands

    add_mapping_commands(command)


def _mcp(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.mcp_command import add_mcp_command

    add_mcp_command(command)


def _notifications(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.notifications_command import add_notifications_command

    add_notifications_command(command)


def _sync(command: Adder, commands: Any) -> None:
    from functools import partial

    from lamplighter.cloud_sync.commands import Context, add_modes
    from lamplighter.cloud_sync.settings import clock_trusted
    from lamplighter.gateway.cli.config_file import config_folder, settings_and_data

    def context(options: argparse.Namespace) -> Context:
        settings, data = settings_and_data(options)
        trusted = partial(clock_trusted, settings.gateway.clock_trusted)
        return Context(settings.sync, data, config_folder(options), trusted)

    add_modes(command("sync", None), context)


def _init(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.init import add_init_command

    add_init_command(command)


def _install(command: Adder, commands: Any) -> None:
    from lamplighter.gateway.cli.install import add_install_commands

    add_install_commands(commands)


GROUPS: tuple[tuple[tuple[str, ...], Callable[[Adder, Any], None]], ...] = (
    (("run", "mqtt", "coap", "http-devices", "modbus"), _processes),
    (("check",), _check),
    (("subscriptions", "timers"), _listings),
    (("status",), _status),
    (("verify", "log"), _log),
    (("backup", "restore"), _backup),
    (("query", "update", "subscribe", "register"), _client),
    (("load",), _load),
    (("bundle",), _bundle),
    (("devices",), _devices),
    (("readings",), _readings),
    (("explain",), _explain),
    (("clients", "keys"), _security),
    (("mapping",), _mapping),
    (("mcp",), _mcp),
    (("notifications",), _notifications),
    (("sync",), _sync),
    (("init",), _init),
    (("install", "uninstall"), _install),
)
"""Names of commands, and what declares them: a function of what makes a command, and of argparse's action for it."""
