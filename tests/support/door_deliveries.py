"""A receiver of the webhooks and LDN deliveries of several clients: the rows that each has by what it acknowledged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from tests.support.receivers import HttpReceiver, Received, Reply

QUERY = "SELECT ?g ?s ?o { GRAPH ?g { ?s <http://e/p> ?o } }"
Row = tuple[str, ...]


class DeliveredRows:
    """By the path of the receiver's URL. held: paths whose deliveries are refused for now."""

    def __init__(self, receiver: HttpReceiver) -> None:
        self.receiver = receiver
        self.held: set[str] = set()
        self.refused: dict[str, list[bytes]] = defaultdict(list)
        self.told: dict[str, list[bytes]] = defaultdict(list)
        """Bodies that were acknowledged."""
        self.rows: dict[str, Counter[Row]] = defaultdict(Counter)
        receiver.answer = self._take

    def _take(self, request: Received) -> Reply:
        if request.path in self.held:
            self.refused[request.path].append(request.body)
            return Reply(503)
        message = request.json
        first, added, removed = (_posted if "notification" in message else _sent)(message)
        rows = self.rows[request.path]
        if first:
            rows.clear()
        rows.update(added)
        rows.subtract(removed)
        assert min(rows.values(), default=0) >= 0, message
        self.told[request.path].append(request.body)
        return Reply()

    def has(self, path: str) -> Counter[Row]:
        return +self.rows[path]

    def denied(self, path: str) -> bool:
        """Whether the gateway said that nothing follows."""
        return any(one.path == path and one.parameters.get("hub.mode") == "denied" for one in self.receiver.asked)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        self.receiver.wait(condition, what)


def _posted(message: dict[str, Any]) -> tuple[bool, list[Row], list[Row]]:
    """Of a webhook: whether it is a first result, rows added and removed."""
    told = message["notification"]
    added, removed = (
        [tuple(row[name]["value"] for name in "gso") for row in told[member]["results"]["bindings"]]
        for member in ("addedResults", "removedResults")
    )
    return told["sequence"] == 0, added, removed


def _sent(message: dict[str, Any]) -> tuple[bool, list[Row], list[Row]]:
    """The same of an activity."""
    added, removed = (
        [
            tuple(values[name] for name in "gso")
            for one in message[member]["solution"]
            for values in [{each["variable"]: _text(each["value"]) for each in one["binding"]}]
        ]
        for member in ("added", "removed")
    )
    return message["type"] == "Announce", added, removed


def _text(value: dict[str, str]) -> str:
    return value["id"] if "id" in value else value["@value"]
