"""Few records x subscriptions -> MATCH, in the driver, as `matching.matches` finds them on Spark.

Spark plans each shape of query again for each batch, which takes a second and more whatever the number of events. A
batch of a live stream has few, and the store of a gateway answers them in less time than Spark begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lamplighter.cloud_sync.fleet.events.described import DescribedStreams
from lamplighter.cloud_sync.fleet.events.single_events import SingleEvent, complete, single_events
from lamplighter.cloud_sync.fleet.sparql.event_store import EventStore, Row, StoredEvent
from lamplighter.cloud_sync.fleet.sparql.query_text import SolutionsText, solutions_text
from lamplighter.cloud_sync.fleet.subscriptions.index import entries
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription, MatchRow
from lamplighter.cloud_sync.fleet.subscriptions.planner import covers_gateway
from lamplighter.cloud_sync.fleet.subscriptions.single_index import SingleIndex

# Triples of the events that are in one store together.
TRIPLES_TOGETHER = 20_000
# Triples of an event that shares a store. A larger one is asked only what it may match: a query that looks at many
# events would also join what it finds in those that it cannot match.
SMALL = 20
# Id and version of a subscription.
_Key = tuple[str, int]


class _TakenEvent(NamedTuple):
    """An event, and the subscriptions that it may match."""

    event: SingleEvent
    late: bool
    keys: list[_Key]


class SingleMatches:
    """Matches one batch.

    descriptions: gives those of a gateway. pairs_max: pairs of an event and a subscription that may match it. left:
    gateways with an event that Spark has to match, each with the reason.
    """

    def __init__(
        self,
        followed: Sequence[FollowedSubscription],
        descriptions: Callable[[str], DescribedStreams | None],
        pairs_max: int,
    ) -> None:
        self._descriptions = descriptions
        self._followed = {(one.record.id, one.record.version): one for one in followed}
        self._texts: dict[_Key, SolutionsText] = {}
        self._index = SingleIndex(entries(followed))
        self._deleted = any(one.record.changes != "added" for one in followed)
        self._pairs_max = pairs_max
        self._pairs = 0
        self._events: list[_TakenEvent] = []
        self._triples = 0
        self._found: list[MatchRow] = []
        self.left: dict[str, str] = {}

    def take(self, record: Mapping[str, Any], *, late: bool) -> None:
        """Takes a row of bronze."""
        if record["gw"] in self.left:
            return
        for event in single_events(record, deleted=self._deleted):
            self._take(complete(event, self._descriptions(event.gw)), late)
        if self._triples > TRIPLES_TOGETHER:
            self._match()

    def rows(self) -> list[MatchRow]:
        """MATCH of the records that were taken, without those of gateways in `left`."""
        self._match()
        return [row for row in self._found if row["gw"] not in self.left]

    def _take(self, event: SingleEvent, late: bool) -> None:
        keys = [key for key in self._index.candidates(event) if covers_gateway(self._followed[key].record, event.gw)]
        if not keys:
            return
        self._pairs += len(keys)
        if self._pairs > self._pairs_max:
            self.left[event.gw] = f"more than {self._pairs_max} pairs of event and subscription"
            return
        self._events.append(_TakenEvent(event, late, keys))
        self._triples += len(event.new) + len(event.old)

    def _match(self) -> None:
        """Matches the events that were taken since the last time."""
        together = []
        for one in self._events:
            if len(one.event.new) + len(one.event.old) <= SMALL:
                together.append(one)
            else:
                self._match_together([one])
        self._match_together(together)
        self._events, self._triples = [], 0

    def _match_together(self, taken: Sequence[_TakenEvent]) -> None:
        numbers: dict[_Key, list[int]] = defaultdict(list)
        for number, one in enumerate(taken):
            for key in one.keys:
                numbers[key].append(number)
        events = [one.event for one in taken]
        store = EventStore({number: StoredEvent(one.new, one.old, one.graph) for number, one in enumerate(events)})
        for key, asked in numbers.items():
            found = store.rows(self._text(key), self._followed[key].query.constants, asked)
            self._found += (self._row(key, events[number], taken[number].late, rows) for number, rows in found.items())
        for number, reason in store.left.items():
            self.left.setdefault(events[number].gw, reason)

    def _row(self, key: _Key, event: SingleEvent, late: bool, rows: list[Row]) -> MatchRow:
        query = self._followed[key].query
        return {
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

    def _text(self, key: _Key) -> SolutionsText:
        if key not in self._texts:
            self._texts[key] = solutions_text(self._followed[key].query)
        return self._texts[key]
