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
    logger.info("%s", _line(event, fields), extra={"fields": fields})


def refused(event: str, **fields: object) -> None:
    """The same for what somebody tried and could not."""
    logger.warning("%s", _line(event, fields), extra={"fields": fields})


def _line(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{key}={_shown(value)}" for key, value in fields.items() if value is not None)])


def _shown(value: object) -> str:
    """On one line and in one piece, whatever a client has put in: in quotes unless it is a plain word."""
    text = str(value).removeprefix("::ffff:")  # an IPv4 address, as a socket of both families has it
    if len(text) > _CHARACTERS_MAX:
        text = f"{text[:_CHARACTERS_MAX]}…"
    if text and all(sign.isascii() and (sign.isalnum() or sign in "-_.:/@*") for sign in text):
        return text
    return json.dumps(text)  # ASCII, with control characters escaped
