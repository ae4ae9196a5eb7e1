"""Small objects beside the segments, by which gateway and collector exchange confirmations.

``<stem>.ndjson.zst`` is a segment; ``<stem>.json`` is its seal, written after it. The collector answers with
``<stem>.landed.json`` or ``<stem>.refused.json``. A stem is ``<epoch>-<first>-<last>`` for a segment and
``<epoch>-<sequence>`` for a snapshot. If an object of that name has other content, the stem gets a suffix ``.r1``,
``.r2`` and so on.
"""

from __future__ import annotations

import msgspec

LANDED = ".landed.json"
REFUSED = ".refused.json"
SEAL = ".json"
SNAPSHOTS = "snapshots"
ORDERS = "orders"
AHEAD = "ahead"
# Folders of the destination that are no gateway's: orders to gateways, and notifications ahead of the segments.
RESERVED = frozenset({ORDERS, AHEAD})


class CollectorAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The collector's answer. sha256: of the bytes that it read; at: RFC 3339 time; reason: of a refusal."""

    sha256: str
    at: str
    reason: str = ""


class SnapshotSeal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seal of a shipped snapshot. It differs from that of a segment: it counts quads. record: the SHA-256 of the
    line of its record, which says of which history it is; empty if the gateway has it no more; epoch_id: the
    random id of its epoch, as far as the log names it."""

    v: int
    gw: str
    epoch: int
    seq: int
    quads: int
    bytes: int
    sha256: str
    record: str = ""
    epoch_id: str = ""


def stem_of_seal(name: str) -> str | None:
    """The stem of a seal's name; None for the name of another object."""
    if not name.endswith(SEAL) or name.endswith((LANDED, REFUSED)):
        return None
    return name.removesuffix(SEAL)
