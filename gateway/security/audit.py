"""The audit lines: who was let in, who was refused and why, what the operator changed. One line an event, no secrets.

They have a logger of their own, ``lamplighter.audit``, so that they can be kept apart from the rest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

logger = logging.getLogger("lamplighter.audit")

_CHARACTERS_MAX = 200


def audit(event: str, **fields: object) -> None:
    """One event with its fields, in the order given; those that are None are left out."""
    logger.info("%s", _line(event, fields), extra={"fields": _plain(fields)})


def refused(event: str, **fields: object) -> None:
    """The same for what somebody tried and could not."""
    logger.warning("%s", _line(event, fields), extra={"fields": _plain(fields)})


def _plain(fields: Mapping[str, object]) -> dict[str, str]:
    """An IPv4 address without what a socket of both families puts before it, as it is looked for in the journal."""
    return {key: str(value).removeprefix("::ffff:") for key, value in fields.items() if value is not None}


def _line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{key}={_shown(text)}" for key, text in _plain(fields).items())])


def _shown(text: str) -> str:
    """On one line and in one piece, whatever a client has put in: in quotes unless it is a plain word."""
    if len(text) > _CHARACTERS_MAX:
        text = f"{text[:_CHARACTERS_MAX]}…"
    if text and all(sign.isascii() and (sign.isalnum() or sign in "-_.:/@*") for sign in text):
        return text
    return json.dumps(text)  # ASCII, with control characters escaped
