"""A row of the table `matches` -> the notification that sinks deliver."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import Bag, Term, is_iri, is_term

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MatchPosition(NamedTuple):
    """A place between rows of `matches`. batch: id of a batch; row: number of rows of the batch before the place."""

    batch: str = ""
    row: int = 0


class UnreadMatches(NamedTuple):
    """Matches that a sink has passed because their file is damaged: from a position to the end of a batch."""

    position: MatchPosition
    until: str

    @property
    def end(self) -> MatchPosition:
        return MatchPosition(self.until, ALL_ROWS)


# Before all batches.
START = MatchPosition()
# As the row of a position: at the end of its batch.
ALL_ROWS = 2**62


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `matches`: all solutions of one subscription in one event. docs/fleet-subscriptions.md has the columns.

    ts: milliseconds since 1970. rows: one list of N-Triples texts, or None where unbound, for each solution.
    """

    subscription: str
    version: int
    gw: str
    epoch: int
    seq: int
    ts: int | None
    trusted: bool | None
    late: bool | None
    change: str
    graph: Term | None
    form: str
    variables: list[str]
    rows: list[list[Term | None]]
    incomplete: bool | None
    request: str | None


class MatchNotification:
    """A match with its id and its JSON text.

    next: the position after the match; written: when its batch was written, in seconds since 1970, if that is known.
    Two notifications with equal ids are repetitions of one.
    """

    __slots__ = ("__dict__", "id", "match", "next", "written")

    def __init__(self, match: Match, next: MatchPosition, written: float | None = None) -> None:
        self.match = match
        self.next = next
        self.written = written
        self.id = notification_id(match)

    def as_late(self) -> MatchNotification:
        """The same, of a match that is delivered after matches of later records."""
        return MatchNotification(msgspec.structs.replace(self.match, late=True), self.next, self.written)

    @cached_property
    def body(self) -> bytes:
        """The JSON object, without a newline. Raises PayloadError for a row with a text that is no RDF term."""
        try:
            return msgspec.json.encode(document(self.match, self.id))
        except ValueError as error:
            raise PayloadError(f"notification {self.id}: {error}; correct the query of the subscription") from error


def notification_id(match: Match) -> str:
    """``subscription/version/gateway/epoch/sequence/change/graph``; the graph as 16 hexadecimal digits of its SHA-256.

    It is the same for each repetition: a subscription has one match in an event.
    """
    graph = hashlib.sha256((match.graph or "").encode(errors="surrogatepass")).hexdigest()[:16]
    place = f"{match.gw}/{match.epoch}/{match.seq}"
    return f"{match.subscription}/{match.version}/{place}/{match.change}/{graph}"


def document(match: Match, id: str) -> dict[str, Any]:
    """The JSON object of a notification. Raises ValueError for a row with a text that is no RDF term."""
    return {
        "id": id,
        "subscription": match.subscription,
        "version": match.version,
        "gateway": match.gw,
        "epoch": match.epoch,
        "sequence": match.seq,
        "graph": match.graph[1:-1] if match.graph is not None and is_iri(match.graph) else match.graph,
        "time": None if match.ts is None else time_text(match.ts),
        "trusted": match.trusted,
        "late": match.late,
        **({"incomplete": True} if match.incomplete else {}),
        "change": match.change,
        "request": match.request,
        "results": {"head": {}, "boolean": True} if match.form == "ASK" else _results(match),
    }


def time_text(milliseconds: int) -> str | None:
    """The RFC 3339 text of a time since 1970 in UTC; None for a year that RFC 3339 does not have."""
    try:
        found = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _results(match: Match) -> dict[str, Any]:
    """SPARQL 1.1 Query Results JSON."""
    for row in match.rows:
        for term in row:
            if term is not None and not is_term(term):
                raise ValueError(f"{term[:100]!r} in its results is no RDF term")
    return Bag(match.variables, map(tuple, match.rows)).to_json()
