"""What is wrong with a file of the user, and where in it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


class Mistake(Exception):
    """What is wrong with a file, and what to do about it; one a line."""


def document(text: str) -> dict[str, Any]:
    """The document of a TOML text. Raises Mistake."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{error}; write TOML, with straight quotes, as in docs/appliance.md") from None


def line_of(text: str, names: Sequence[str]) -> int | None:
    """The line on which a key of a TOML text begins: it follows the longest beginning without the key."""
    lines = text.splitlines()
    without = 0
    for count in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("\n".join(lines[:count]))
        except ValueError:  # ends within a value
            continue
        for name in names:
            if not isinstance(found, dict) or name not in found:
                break
            found = found[name]
        else:
            return without + 1
        without = count
    return None
