"""Landed files, quarantine, and what the ingest stream remembers of them."""

from __future__ import annotations

import json

from lamplighter.cloud_sync.fleet.deletion.selection import Selection
from lamplighter.cloud_sync.fleet.lake import Lake

_LOG = ("checkpoint", "ingest", "sources", "0")


def landed(lake: Lake, kind: str, selection: Selection) -> list[str]:
    """The landed files that a selection removes, `<gateway>/<name>`. kind: `segments` or `snapshots`."""
    removes = selection.segment if kind == "segments" else selection.snapshot
    names = [f"{gateway}/{name}" for gateway in lake.names(kind) for name in lake.names(kind, gateway)]
    return [name for name in names if removes(name)]


def remove_landed(lake: Lake, kind: str, selection: Selection) -> None:
    for name in landed(lake, kind, selection):
        lake.fs.rm_file(lake.path(kind, *name.split("/")))


def remove_folders(lake: Lake, gateway: str) -> None:
    """Removes the folders of landed and quarantined files of a gateway."""
    for kind in ("segments", "snapshots", "quarantine"):
        if gateway in lake.names(kind):
            lake.fs.rm(lake.path(kind, gateway), recursive=True)


def forget_in_checkpoint(lake: Lake, gateway: str) -> None:
    """Removes the gateway's files from the list of files that the stream has read.

    The lists are Spark's: a line with the version, then a JSON object a line. The files are gone, so the stream does
    not read them again.
    """
    for name in lake.names(*_LOG):
        if name.startswith("."):
            continue
        path = lake.path(*_LOG, name)
        head, *lines = lake.fs.cat_file(path).decode().splitlines()
        kept = [line for line in lines if f"/segments/{gateway}/" not in str(json.loads(line).get("path"))]
        if kept != lines:
            # Hadoop refuses a file that does not match its checksum; without one it reads the file.
            checksum = lake.path(*_LOG, f".{name}.crc")
            if lake.fs.exists(checksum):
                lake.fs.rm_file(checksum)
            lake.write("\n".join([head, *kept]).encode(), *_LOG, name)
