"""Options that commands share, and the settings file and data folder that they name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamplighter.gateway.settings import Settings

NAMES_OF = "names_of"  # attribute of an argument that takes a name: the kind of `lamplighter names`
DEFAULT_CONFIG = Path("lamplighter.toml")
# The environment of the package and of `lamplighter install`, and the settings that go with it.
SYSTEM_PREFIX, SYSTEM_CONFIG = "/usr/lib/lamplighter", Path("/etc/lamplighter/lamplighter.toml")


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
    """The settings and the data folder; nothing else of the configuration. Of a gateway that runs there, what it was
    given by `--set` counts here, too. Raises ConfigurationError."""
    # Not above: a command with --url needs no settings.
    from lamplighter.gateway.addresses import assigned_here
    from lamplighter.gateway.settings import read_settings

    config = config_file(options)
    settings = read_settings(config)
    data = options.data or config_folder(options) / settings.gateway.data
    assigned = assigned_here(data)
    return read_settings(config, assigned=assigned) if assigned else settings, data


def add_mode(modes: Any, name: str, text: str, function: object) -> argparse.ArgumentParser:
    """Declares a command within a command, such as `log show`."""
    parser: argparse.ArgumentParser = modes.add_parser(name, help=text, description=text)
    for option in ("--config", "--data"):  # they may stand before the mode, too
        parser.add_argument(option, type=Path, default=argparse.SUPPRESS, help="as for all commands")
    parser.set_defaults(command=function)
    return parser


def complete_names(argument: argparse.Action, kind: str) -> None:
    """Has shells offer the names that people gave. kind: as of `lamplighter names`."""
    setattr(argument, NAMES_OF, kind)


def add_assignments(parser: argparse.ArgumentParser) -> None:
    """Declares `--set`."""
    parser.add_argument(
        "--set",
        dest="assigned",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting instead of that of the file, such as mqtt.host=127.0.0.1; repeatable",
    )


def add_json(parser: argparse._ActionsContainer, what: str, *, below: bool = False) -> None:
    """Declares `--json`. what: is printed; below: whether the command above this one has the option, too."""
    default = argparse.SUPPRESS if below else False
    parser.add_argument("--json", action="store_true", default=default, help=f"print {what} as one JSON object")


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation (required without a terminal)")
