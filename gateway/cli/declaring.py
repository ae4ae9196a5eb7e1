"""Declares the commands that run no part of the gateway. `lamplighter run` does not load them, which saves memory."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from lamplighter.cloud_sync.commands import Context, add_modes
from lamplighter.cloud_sync.settings import clock_trusted
from lamplighter.gateway.cli.backup_commands import add_backup_commands
from lamplighter.gateway.cli.bundle_command import add_bundle_command
from lamplighter.gateway.cli.check_command import add_check_command
from lamplighter.gateway.cli.client_commands import add_client_commands
from lamplighter.gateway.cli.commands import Adder, add_commands
from lamplighter.gateway.cli.config_file import config_folder, settings_and_data
from lamplighter.gateway.cli.devices_commands import add_devices_commands
from lamplighter.gateway.cli.explain_command import add_explain_command
from lamplighter.gateway.cli.init import add_init_command
from lamplighter.gateway.cli.install import add_install_commands
from lamplighter.gateway.cli.listing_commands import add_listing_commands
from lamplighter.gateway.cli.load_command import add_load_command
from lamplighter.gateway.cli.mapping_commands import add_mapping_commands
from lamplighter.gateway.cli.readings_commands import add_readings_command
from lamplighter.gateway.cli.security_commands import add_security_commands
from lamplighter.gateway.cli.status_command import add_status_command


def add_other_commands(command: Adder, commands: Any) -> None:
    """command: makes a command; commands: argparse's action that it belongs to."""
    add_check_command(command)
    add_listing_commands(command)
    add_status_command(command)
    add_commands(command)
    add_backup_commands(command)
    add_client_commands(command)
    add_load_command(command)
    add_bundle_command(command)
    add_devices_commands(command)
    add_readings_command(command)
    add_explain_command(command)
    add_security_commands(command)
    add_mapping_commands(command)
    add_modes(command("sync", "ship the change log to the cloud", None), _sync_context)
    add_init_command(command)
    add_install_commands(commands)


def _sync_context(options: argparse.Namespace) -> Context:
    settings, data = settings_and_data(options)
    trusted = partial(clock_trusted, settings.gateway.clock_trusted)
    return Context(settings.sync, data, config_folder(options), trusted)
