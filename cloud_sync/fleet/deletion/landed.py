"""Landed files, quarantine, and what the landing log and `ingest` remember of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import msgspec
import zstandard

from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway, Selection
from lamplighter.cloud_sync.fleet.deletion.subject import OfSubject
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.frontier import Frontier
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.cloud_sync.fleet.lake.landings import LandingLog
from lamplighter.engine.change_log import Record, SnapshotPart, decode, encode, segment_name
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.terms import Quad


def selected_files(lake: Lake, kind: str, selection: Selection) -> list[str]:
    """The landed files that a selection removes, `<gateway>/<name>`. kind: `segments` or `snapshots`."""
    if kind == "segments":
        return list(filter(selection.segment, LandedSegments(lake).names()))
    names = [f"{gateway}/{name}" for gateway in lake.names(kind) for name in lake.names(kind, gateway)]
    return list(filter(selection.snapshot, names))


def remove_landed(lake: Lake, kind: str, selection: Selection) -> None:
    selected = selected_files(lake, kind, selection)
    for name in selected:
        with contextlib.suppress(FileNotFoundError):  # it is packed
            lake.fs.rm_file(lake.path(kind, *name.split("/")))
    if kind == "segments":
        _drop(lake, selected)


def _drop(lake: Lake, segments: Iterable[str]) -> None:
    """Removes segments from the packs that have them."""
    by_gateway: dict[str, set[str]] = {}
    for segment in segments:
        gateway, _, name = segment.partition("/")
        by_gateway.setdefault(gateway, set()).add(name)
    for gateway, names in by_gateway.items():
        LandedSegments(lake).drop(gateway, names.__contains__)


def remove_folders(lake: Lake, selection: OfGateway) -> None:
    """Removes the folders of landed and quarantined files of a gateway."""
    for kind in ("segments", "snapshots", "quarantine"):
        for name in filter(selection.has, lake.names(kind)):
            lake.fs.rm(lake.path(kind, name), recursive=True)


def forget_in_log(lake: Lake, selection: OfGateway) -> None:
    """Takes the names of a gateway's segments out of the landing log and the frontier of `ingest`."""
    LandingLog(lake).blank(lambda segment: selection.has(segment.partition("/")[0]))
    Frontier(lake).forget(selection.segment)
    # The list of files that the stream of an earlier version has read. Without it, that version asks the manifests.
    if lake.names("checkpoint"):
        lake.fs.rm(lake.path("checkpoint"), recursive=True)


# --- landed files without a subject ----------------------------------------------------------------------------


def rewrite_landed(lake: Lake, selection: OfSubject) -> None:
    """Writes the landed segments that have something of a subject, and all such snapshots, again without it.

    Each line gets its new checksum. The seals stay at the source.
    """
    for segment in sorted(selection.segments):
        _rewrite(lake, "segments", segment, selection)
    # Those that had something of the subject are files now, which count; or in a later pack, if this is a repetition
    # after a kill, and `compact` has run meanwhile.
    files = {one for one in selection.segments if lake.fs.exists(lake.path("segments", *one.split("/")))}
    for gateway in sorted({one.partition("/")[0] for one in selection.segments}):
        LandedSegments(lake).drop(gateway, lambda name, gateway=gateway: f"{gateway}/{name}" in files)  # type: ignore[misc]
    for gateway in lake.names("snapshots"):
        for name in filter(segment_name, lake.names("snapshots", gateway)):
            _rewrite(lake, "snapshots", f"{gateway}/{name}", selection)


def check_quarantine(lake: Lake, iri: str) -> None:
    """Raises ConfigurationError if a file in quarantine has the IRI: only a person can tell what to do with it."""
    for gateway in lake.names("quarantine"):
        for name in lake.names("quarantine", gateway):
            path = lake.path("quarantine", gateway, name)
            data = lake.fs.cat_file(path)
            with contextlib.suppress(zstandard.ZstdError):  # not compressed, or damaged: its bytes are searched
                data += zstandard.ZstdDecompressor().decompressobj().decompress(data)
            if f"<{iri}>".encode() in data:
                raise ConfigurationError(f"{path}: it has the subject; remove it, or let it land by quarantine --retry")


def _rewrite(lake: Lake, kind: str, name: str, selection: OfSubject) -> None:
    parts = (kind, *name.split("/"))
    try:
        data = _content(lake, kind, name)
        text = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        before = [decode(line) for line in text.split(b"\n")[:-1]]
    except FileNotFoundError:
        return  # retention has removed it
    except (zstandard.ZstdError, ValueError) as error:
        raise UpstreamError(f"{lake.path(*parts)}: {error}; put a good copy in its place, or remove it") from error
    after = list(_others(before, selection))
    if after != before:
        compressor = zstandard.ZstdCompressor(level=9, write_checksum=True)
        lake.write(compressor.compress(b"".join(map(encode, after))), *parts)


def _content(lake: Lake, kind: str, name: str) -> bytes:
    if kind == "snapshots":
        return bytes(lake.fs.cat_file(lake.path(kind, *name.split("/"))))
    return LandedSegments(lake).read(name)


def _others(records: list[Record], selection: OfSubject) -> Iterator[Record]:
    """The records without quads, graphs and texts of the subject. A snapshot says how many quads are left."""
    quads = 0
    for record in records:
        d, a, k = (_other_quads(one, selection) for one in (record.d, record.a, record.k))
        record = msgspec.structs.replace(record, d=d, a=a, k=k)
        if record.graphs is not None:
            created, dropped = (
                tuple(one for one in graphs if one not in selection.terms)
                for graphs in (record.graphs.created, record.graphs.dropped)
            )
            graphs = msgspec.structs.replace(record.graphs, created=created, dropped=dropped)
            record = msgspec.structs.replace(record, graphs=graphs if created or dropped else None)
        for name in ("timer", "subscribe", "gap", "cause", "cancel", "unsubscribe", "request", "client"):
            value = getattr(record, name)
            if value is not None and selection.has(value if isinstance(value, str) else _text(value)):
                record = msgspec.structs.replace(record, **{name: None})
        quads += len(a)
        yield (
            record
            if record.snapshot is None
            else msgspec.structs.replace(record, snapshot=_part(record.snapshot, quads, selection))
        )


def _other_quads(quads: tuple[Quad, ...], selection: OfSubject) -> tuple[Quad, ...]:
    return tuple(quad for quad in quads if not selection.is_about(quad))


def _part(part: SnapshotPart, quads: int, selection: OfSubject) -> SnapshotPart:
    if selection.has(bytes(part.state).decode(errors="replace")):
        part = msgspec.structs.replace(part, state=msgspec.Raw(b"null"))
    return part if part.quads is None else msgspec.structs.replace(part, quads=quads)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
