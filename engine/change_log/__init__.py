"""Record <-> bytes: the format of the change log (docs/change-log.md).

codec: records, seals and names of segments; frames: the compressed segment being written; rdf_patch: a delta as RDF
Patch.
"""

from lamplighter.engine.change_log.codec import (
    INTEGER_MAX,
    JOINT,
    RECORD_BYTES_MAX,
    RECORD_REST_BYTES_MAX,
    SUFFIX,
    VERSION,
    Cause,
    Count,
    Followed,
    Gap,
    GraphChanges,
    Missed,
    Receiver,
    Record,
    Seal,
    SegmentName,
    SnapshotPart,
    Timer,
    check,
    decode,
    encode,
    place,
    seal_name,
    segment_name,
)

__all__ = [
    "INTEGER_MAX",
    "JOINT",
    "RECORD_BYTES_MAX",
    "RECORD_REST_BYTES_MAX",
    "SUFFIX",
    "VERSION",
    "Cause",
    "Count",
    "Followed",
    "Gap",
    "GraphChanges",
    "Missed",
    "Receiver",
    "Record",
    "Seal",
    "SegmentName",
    "SnapshotPart",
    "Timer",
    "check",
    "decode",
    "encode",
    "place",
    "seal_name",
    "segment_name",
]
