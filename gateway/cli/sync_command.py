"""`sync`: the modes of `lamplighter-sync`, with the settings of the gateway."""

from __future__ import annotations

import argparse
from functools import partial

from lamplighter.cloud_sync.commands import Context, add_modes
from lamplighter.cloud_sync.settings import clock_trusted
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.options import config_folder, settings_and_data


def add_sync_command(command: Adder) -> None:
    add_modes(command("sync", None), _context)


def _context(options: argparse.Namespace) -> Context:
    settings, data = settings_and_data(options)
    trusted = partial(clock_trusted, settings.gateway.clock_trusted)
    return Context(settings.sync, data, config_folder(options), trusted)
