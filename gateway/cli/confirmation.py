"""The confirmation before a command that cannot be undone."""

from __future__ import annotations

import argparse
import sys

from lamplighter.engine.errors import ConfigurationError


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """Declares `--yes`."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation (required without a terminal)")


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether to continue: with `--yes`, or when the user at the terminal types y or yes.

    Raises ConfigurationError without a terminal; input from a pipe is not read.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{question} There is no terminal for the answer; add --yes to confirm")
    try:
        agreed = ask(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # control and D
        agreed = False
    if not agreed:
        print("nothing was changed", file=sys.stderr)
    return agreed


def ask(question: str) -> str:
    """What the user types. The question goes to standard error: standard output may be a pipe. Raises EOFError."""
    print(question, end="", file=sys.stderr, flush=True)
    try:
        return input()
    except EOFError:
        print(file=sys.stderr)
        raise
