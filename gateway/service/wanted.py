"""Tells systemd whether the settings ask for a process (`ExecCondition=`).

`python -m lamplighter.gateway.service.wanted mqtt|coap|http-devices|modbus|sync`.

Exit code 0 if they do, `NOT_WANTED` if not. Also 0 for unreadable settings: the process itself then reports the error.
Any other code means that this program failed, such as Python's 1 where a module is missing. systemd would then skip the
process for good without an error, so the units skip it only for `NOT_WANTED`. The module imports little, since it runs
at each start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lamplighter.engine.client.files import read_text, toml_document

NOT_WANTED = 3
_QUESTIONS = {
    "mqtt": ("host", "", "mqtt.host is empty: no broker is set"),
    "coap": ("enabled", True, "coap.enabled is false"),
    "http-devices": ("enabled", False, "http_devices.enabled is false"),
    "modbus": ("enabled", False, "modbus.enabled is false"),
    "sync": ("destination", "", "sync.destination is empty: nothing is shipped"),
}
"""Key of the table, its default, and the message when it is empty or false."""


def reason_against(name: str, config: Path) -> str:
    """Why the process is not enabled; empty if it is. config: `lamplighter.toml`."""
    key, default, reason = _QUESTIONS[name]
    try:
        document: dict[str, Any] = toml_document(read_text(config))
        table = document.get(name.replace("-", "_"), {})
        wanted = table.get(key, default)
    except (OSError, ValueError, AttributeError):
        return ""
    return "" if wanted else reason


def main(arguments: list[str]) -> int:
    name, config = arguments
    reason = reason_against(name, Path(config))
    if reason:
        print(f"{reason} ({config})")
    return NOT_WANTED if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
