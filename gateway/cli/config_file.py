"""Which settings file and which data folder the options of a command name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamplighter.gateway.settings import Settings

DEFAULT_CONFIG = Path("lamplighter.toml")
SYSTEM_PREFIX, SYSTEM_CONFIG = "/usr/lib/lamplighter", Path("/etc/lamplighter/lamplighter.toml")
"""The environment of the package and of `lamplighter install`, and the settings that go with it."""


def config_file(options: argparse.Namespace) -> Path | None:
    """The settings file, None for the defaults."""
    named: Path | None = options.config
    if named is not None:
        return named
    if sys.prefix == SYSTEM_PREFIX and SYSTEM_CONFIG.exists():
        return SYSTEM_CONFIG
    return DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None


def config_folder(options: argparse.Namespace) -> Path:
    """The folder of the settings file, with `apps/` and `mapping/`."""
    config = config_file(options)
    return config.parent if config else Path()


def settings_and_data(options: argparse.Namespace) -> tuple[Settings, Path]:
    """The settings and the data folder; nothing else of the configuration. Raises ConfigurationError."""
    from lamplighter.gateway.settings import read_settings  # a command with --url needs no settings

    settings = read_settings(config_file(options))
    return settings, options.data or config_folder(options) / settings.gateway.data
