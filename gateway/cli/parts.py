"""Parts of commands: a command within a command, `--json`, and tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamplighter.gateway.texts import cut, printable

CELL_CHARACTERS_MAX = 60


def add_mode(modes: Any, name: str, text: str, function: object) -> argparse.ArgumentParser:
    """Declares a command within a command, such as `log show`."""
    parser: argparse.ArgumentParser = modes.add_parser(name, help=text, description=text)
    for option in ("--config", "--data"):  # they may stand before the mode, too
        parser.add_argument(option, type=Path, default=argparse.SUPPRESS, help="as for all commands")
    parser.set_defaults(command=function)
    return parser


def add_json(parser: argparse._ActionsContainer, what: str, *, below: bool = False) -> None:
    """Declares `--json`. what: is printed; below: whether the command above this one has the option, too."""
    default = argparse.SUPPRESS if below else False
    parser.add_argument("--json", action="store_true", default=default, help=f"print {what} as one JSON object")


def print_json(value: object) -> None:
    """Prints JSON in ASCII, on one line. Control characters are escaped."""
    print(json.dumps(value).replace("\x7f", "\\u007f"))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def shortened(text: str) -> str:
    """A text of a client or device for a cell of a table: without control sequences, and cut if it is long."""
    return cut(printable(text), CELL_CHARACTERS_MAX)
