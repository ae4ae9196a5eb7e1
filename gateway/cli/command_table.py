"""Which module declares a command, and what commands return. A command loads the modules of its group alone.

That saves time, and memory while the gateway runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import NamedTuple

from lamplighter.adapters.specs import ADAPTERS
from lamplighter.engine.errors import (
    BrokenEngineError,
    ChangeLogError,
    ConfigurationError,
    GatewayError,
    NotKeptError,
    UpstreamError,
)

# Makes a command from its name and its function. settings, data: whether it has the options for them.
Adder = Callable[..., argparse.ArgumentParser]


class CommandGroup(NamedTuple):
    """add: module of this package, and its function that declares the commands; commands: name -> line of the help."""

    add: str
    commands: dict[str, str]

    def declare(self, command: Adder) -> None:
        module, _, name = self.add.partition(":")
        getattr(import_module(f"lamplighter.gateway.cli.{module}"), name)(command)


# In the order of `lamplighter --help`, which shows them without loading a command.
COMMANDS = (
    CommandGroup(
        "process_commands:add_process_commands",
        {
            "run": "run the gateway until it is stopped",
            **{spec.name: f"run only the {spec.title}" for spec in ADAPTERS},
            "demo": "run a gateway with a simulated street of ten lamps",
        },
    ),
    CommandGroup(
        "check_command:add_check_command",
        {"check": "check the configuration and the machine without starting anything"},
    ),
    CommandGroup(
        "listing_commands:add_listing_commands",
        {
            "subscriptions": "list the subscriptions of a running gateway and their classes",
            "timers": "list or cancel the pending delayed updates of a running gateway",
        },
    ),
    CommandGroup(
        "status_command:add_status_command",
        {"status": "show the health of a running gateway: components, requests, subscriptions"},
    ),
    CommandGroup(
        "commands:add_commands",
        {
            "verify": "check all files in the data folder and report problems",
            "log": "show, export or replay the change log",
            "new-epoch": "let the next start begin a new epoch, after restoring an older data folder",
        },
    ),
    CommandGroup(
        "backup_commands:add_backup_commands",
        {
            "backup": "back up the dataset and the gateway's state to a file, with or without a running gateway",
            "restore": "restore dataset, delayed updates and stored applications of a backup into a running gateway",
        },
    ),
    CommandGroup(
        "client_commands:add_client_commands",
        {
            "query": "run a SPARQL query at a gateway or another endpoint",
            "update": "run a SPARQL update, or install the appliance update FILE.raucb",
            "subscribe": "subscribe to a query; print added (+) and removed (-) rows",
            "register": "register a client with a gateway in secure mode",
        },
    ),
    CommandGroup(
        "load_command:add_load_command",
        {"load": "add the triples or quads of an RDF file to the dataset of a running gateway"},
    ),
    CommandGroup(
        "bundle_command:add_bundle_command",
        {"bundle": "write a support file: settings, health, figures, log; without secrets"},
    ),
    CommandGroup(
        "devices_commands:add_devices_commands",
        {"devices": "list, adopt, ignore and rename devices that announce themselves or were found"},
    ),
    CommandGroup(
        "readings_commands:add_readings_command",
        {"readings": "show the newest reading of each sensor of a running gateway"},
    ),
    CommandGroup(
        "explain_command:add_explain_command",
        {"explain": "show why an actuator was switched: from the reading to the acknowledgement"},
    ),
    CommandGroup(
        "apps_commands:add_apps_commands",
        {"apps": "list, show, add and remove the applications of a running gateway"},
    ),
    CommandGroup(
        "history_command:add_history_command",
        {
            "history": "show the past values of a reading or actuator of a running gateway",
            "logbook": "show what happened, in words, newest first",
        },
    ),
    CommandGroup("try_command:add_try_command", {"try": "show what an application would have done in the past"}),
    CommandGroup(
        "security_commands:add_security_commands",
        {"clients": "manage the clients of a gateway in secure mode", "keys": "manage the signing keys of tokens"},
    ),
    CommandGroup(
        "mapping_commands:add_mapping_commands", {"mapping": "test and check mapping rules, here or at a gateway"}
    ),
    CommandGroup(
        "mcp_command:add_mcp_command", {"mcp": "speak the Model Context Protocol over standard input and output"}
    ),
    CommandGroup(
        "notifications_command:add_notifications_command",
        {"notifications": "read the inbox of a resource (Linked Data Notifications)"},
    ),
    CommandGroup("sync_command:add_sync_command", {"sync": "ship the change log to the cloud"}),
    CommandGroup(
        "init:add_init_command", {"init": "write an application from a template: a motion light, an alarm, a heating"}
    ),
    CommandGroup(
        "install:add_install_commands",
        {
            "install": "install or upgrade the services on this machine (root)",
            "uninstall": "remove the services from this machine, keep settings and data (root)",
        },
    ),
    CommandGroup(
        "command_tree:add_completion_command", {"completion": "print the completion of this command for a shell"}
    ),
)


class ExitCode(IntEnum):
    """What a command returns. argparse ends with WRONG_USE, too."""

    GOOD = 0
    NEGATIVE = 1
    WRONG_USE = 2
    NO_ANSWER = 3
    REFUSED = 4
    DAMAGED = 5
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.GOOD: "success",
    ExitCode.NEGATIVE: "the answer is negative: problems were found, or a question was answered with no",
    ExitCode.WRONG_USE: "wrong use or configuration; nothing was done",
    ExitCode.NO_ANSWER: "the gateway, or another peer, does not answer",
    ExitCode.REFUSED: "the gateway refused the request, its text or file is wrong, or there is no such thing",
    ExitCode.DAMAGED: "the change log or a backup is damaged, or cannot be written",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code(error: GatewayError) -> ExitCode:
    if isinstance(error, ConfigurationError):
        return ExitCode.WRONG_USE
    if isinstance(error, UpstreamError):
        return ExitCode.NO_ANSWER
    if isinstance(error, ChangeLogError | BrokenEngineError) and not isinstance(error, NotKeptError):
        return ExitCode.DAMAGED
    return ExitCode.REFUSED


def epilog() -> str:
    rows = (f"  {int(code):<4}{meaning}" for code, meaning in MEANINGS.items())
    return "exit codes:\n" + "\n".join(rows)
