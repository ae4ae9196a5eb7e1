"""What gateway and collector tell each other by small objects beside the segments.

``<stem>.ndjson.zst`` is a segment, ``<stem>.json`` its seal, written after it. The collector answers with
``<stem>.landed.json`` or ``<stem>.refused.json``. A stem is ``<epoch>-<first>-<last>``, or that of a snapshot,
``<epoch>-<sequence>``, with ``.r1``, ``.r2``... behind it where an earlier object of that name was not what was sent.
"""

from __future__ import annotations

import msgspec

LANDED = ".landed.json"
REFUSED = ".refused.json"
SEAL = ".json"
SNAPSHOTS = "snapshots"


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an object. sha256: of the bytes that the collector found; at: when, RFC 3339; reason: of a
    refusal."""

    sha256: str
    at: str
    reason: str = ""


class SnapshotSeal(msgspec.Struct, frozen=True):
    """What stands beside a snapshot that was shipped: the seal of a segment has no such thing as quads."""

    v: int
    gw: str
    epoch: int
    seq: int
    quads: int
    bytes: int
    sha256: str


def stem_of_seal(name: str) -> str | None:
    """The stem of a name that is a seal's; None for other objects."""
    if not name.endswith(SEAL) or name.endswith((LANDED, REFUSED)):
        return None
    return name.removesuffix(SEAL)
