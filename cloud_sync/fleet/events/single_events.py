"""Records of bronze -> their events, one by one and without Spark, as `events` and `completion` make frames of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from lamplighter.cloud_sync.fleet.events.described import DescribedStreams, DescriptionVersion, Triple
from lamplighter.cloud_sync.fleet.events.events import ADDED, DELETED
from lamplighter.engine.terms import Term

# Columns of bronze that events are made of.
RECORD = ("type", "gw", "epoch", "seq", "ts", "trusted", "request", "d", "a", "k")


class SingleEvent(NamedTuple):
    """What one commit asserts, or deletes, in one graph. new: triples that it changed; old: those that were there, and
    the description of its streams. Triples may be repeated within new."""

    gw: str
    epoch: int
    seq: int
    ts: datetime
    trusted: bool | None
    change: str
    graph: Term | None
    request: str | None
    new: list[Triple]
    old: list[Triple]


def single_events(record: Mapping[str, Any], *, deleted: bool) -> Iterator[SingleEvent]:
    """The events of a row of bronze, as `events.events` has them."""
    if record["type"] != "commit":
        return
    for change, members in ((DELETED, ("d", None)), (ADDED, ("a", "k"))) if deleted else ((ADDED, ("a", "k")),):
        by_graph: dict[Term | None, tuple[list[Triple], list[Triple]]] = {}
        for place, name in enumerate(members):
            for quad in (record[name] or ()) if name else ():
                triples = by_graph.get(quad["g"])
                if triples is None:
                    triples = by_graph[quad["g"]] = ([], [])
                triples[place].append((quad["s"], quad["p"], quad["o"]))
        said = {name: record[name] for name in ("gw", "epoch", "seq", "ts", "trusted", "request")}
        for graph, (new, old) in by_graph.items():
            if new:
                yield SingleEvent(**said, change=change, graph=graph, new=new, old=old)


def complete(event: SingleEvent, described: DescribedStreams | None) -> SingleEvent:
    """The event with the description of each subject, as `KnownDescriptions.complete` adds it."""
    versions = described.versions() if described is not None else {}
    if not versions:
        return event
    place = (event.epoch, event.seq - 1 if event.change == DELETED else event.seq)
    more: set[Triple] = set()
    for subject in {triple[0] for triple in (*event.new, *event.old)}:
        version = _version_at(versions.get(subject, ()), place)
        more.update(version.triples if version is not None else ())
    added = more.difference(event.new, event.old)
    return event._replace(old=[*event.old, *added]) if added else event


def _version_at(versions: Any, place: tuple[int, int]) -> DescriptionVersion | None:
    """The last one that began by then, if it had not ended."""
    found = bisect_right(versions, place, key=lambda one: one.valid.since)
    version: DescriptionVersion | None = versions[found - 1] if found else None
    return version if version is not None and place < version.valid.until else None
