"""The audit log: who was admitted, who was refused and why, what the operator changed. One event a line, no secrets.

It has a logger of its own, ``lamplighter.audit``, so that it can be stored apart from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamplighter.engine.log_events import EventLogger

logger = EventLogger("lamplighter.audit")

_CHARACTERS_MAX = 200


def audit(event: str, **fields: object) -> None:
    """Logs an event with its fields, in the order given; those that are None are left out."""
    logger.info(event, **_bound_fields(fields))


def log_refusal(event: str, **fields: object) -> None:
    logger.warning(event, **_bound_fields(fields))


def _bound_fields(fields: Mapping[str, object]) -> dict[str, Any]:
    """The fields in ASCII and at a bounded length, whatever a client has sent."""
    # An IPv4 address loses the prefix that a dual-stack socket adds, so that a search for the address finds the line.
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if value is not None:
            text = str(value).removeprefix("::ffff:").encode("ascii", "backslashreplace").decode()
            found[key] = text if len(text) <= _CHARACTERS_MAX else f"{text[:_CHARACTERS_MAX]}..."
    return found
