"""Few records x subscriptions -> MATCH, in the driver and event by event, as `matching.matches` finds them on Spark.

Spark plans each shape of query again for each batch, which takes a second and more whatever the number of events. A
batch of a live stream has few, and the store of a gateway answers them in less time than Spark begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lamplighter.cloud_sync.fleet.events.described import DescribedStreams
from lamplighter.cloud_sync.fleet.events.single_events import SingleEvent, completed, single_events
from lamplighter.cloud_sync.fleet.sparql.event_store import EventStore, LeftToSparkError
from lamplighter.cloud_sync.fleet.sparql.query_text import SolutionsText, solutions_text
from lamplighter.cloud_sync.fleet.subscriptions.index import entries
from lamplighter.cloud_sync.fleet.subscriptions.match_rows import MatchRow
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription
from lamplighter.cloud_sync.fleet.subscriptions.planner import chosen
from lamplighter.cloud_sync.fleet.subscriptions.single_index import SingleIndex

PAIRS_MAX = 20_000
"""Pairs of an event and a subscription that may match it, of one batch."""


class SingleMatches:
    """Matches one batch. descriptions: gives those of a gateway."""

    def __init__(
        self, followed: Sequence[FollowedSubscription], descriptions: Callable[[str], DescribedStreams | None]
    ) -> None:
        self._descriptions = descriptions
        self._followed = {(one.record.id, one.record.version): one for one in followed}
        self._texts: dict[tuple[str, int], SolutionsText] = {}
        self._index = SingleIndex(entries(followed))
        self._deleted = any(one.record.changes != "added" for one in followed)
        self._pairs = 0

    def rows(self, records: Iterable[Mapping[str, Any]], *, late: bool) -> list[MatchRow]:
        """MATCH of some records. Raises LeftToSparkError."""
        return [
            row
            for record in records
            for event in single_events(record, deleted=self._deleted)
            for row in self._of(completed(event, self._descriptions(event.gw)), late)
        ]

    def _of(self, event: SingleEvent, late: bool) -> list[MatchRow]:
        found: list[MatchRow] = []
        store: EventStore | None = None
        for key in self._index.candidates(event):
            if not chosen(self._followed[key].record, event.gw):
                continue
            self._pairs += 1
            if self._pairs > PAIRS_MAX:
                raise LeftToSparkError(f"more than {PAIRS_MAX} pairs of event and subscription")
            store = store or EventStore(event.new, event.old, event.graph)
            query = self._followed[key].query
            rows = store.rows(self._text(key), query.constants)
            if rows:
                found.append(
                    {
                        "subscription": key[0],
                        "version": key[1],
                        **{name: getattr(event, name) for name in ("gw", "epoch", "seq", "ts", "trusted")},
                        "late": late,
                        "change": event.change,
                        "graph": event.graph,
                        "form": query.form,
                        "variables": list(query.variables),
                        "rows": rows if query.form == "SELECT" else [],
                        "incomplete": False,
                        "request": event.request,
                    }
                )
        return found

    def _text(self, key: tuple[str, int]) -> SolutionsText:
        if key not in self._texts:
            self._texts[key] = solutions_text(self._followed[key].query)
        return self._texts[key]
