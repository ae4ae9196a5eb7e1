"""Tells systemd whether the settings ask for a process (`ExecCondition=`).

`python -m lamplighter.gateway.service.enabled NAME`. NAME is that of an adapter, or `sync`.

Exit code 0 if they do, `DISABLED` if not. Also 0 for unreadable settings: the process itself then reports the error.
Any other code means that this program failed, such as Python's 1 where a module is missing. systemd would then skip the
process for good without an error, so the units skip it only for `DISABLED`. The module imports little, since it runs
at each start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lamplighter.adapters.specs import ADAPTERS
from lamplighter.engine.client.files import read_text, toml_document

DISABLED = 3
_SYNC: tuple[str, str, object, str] = ("sync", "destination", "", "sync.destination is empty: nothing is shipped")


def reason_against(name: str, config: Path) -> str:
    """Why the process is not enabled; empty if it is. config: `lamplighter.toml`."""
    spec = next((spec for spec in ADAPTERS if spec.name == name), None)
    if spec is None:
        table, key, default, reason = _SYNC
    else:
        table, (key, default, _), reason = spec.table, spec.enabling, spec.reason
    try:
        document: dict[str, Any] = toml_document(read_text(config))
        value = document.get(table, {}).get(key, default)
    except (OSError, ValueError, AttributeError):
        return ""
    return "" if value else reason


def main(arguments: list[str]) -> int:
    name, config = arguments
    reason = reason_against(name, Path(config))
    if reason:
        print(f"{reason} ({config})")
    return DISABLED if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
