"""A receiver of the webhooks and LDN deliveries of several clients: the rows that each has by what it acknowledged."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import Any

from tests.support.receivers import PATIENCE_S, HttpReceiver, Received, Reply

QUERY = "SELECT ?g ?s ?o { GRAPH ?g { ?s <http://e/p> ?o } }"
Row = tuple[str, ...]


class DeliveredRows:
    """By the path of the receiver's URL. told: bodies that were acknowledged."""

    def __init__(self, receiver: HttpReceiver) -> None:
        self.receiver = receiver
        self.told: dict[str, list[bytes]] = defaultdict(list)
        self._waiting: dict[str, list[bytes]] = {}
        self._refuse = threading.Event()
        self.rows: dict[str, Counter[Row]] = defaultdict(Counter)
        receiver.answer = self._take

    def _take(self, request: Received) -> Reply:
        if request.path in self._waiting:
            with self.receiver.changed:
                self._waiting[request.path].append(request.body)
                self.receiver.changed.notify_all()
            self._refuse.wait(PATIENCE_S)
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

    def hold(self, paths: Collection[str]) -> None:
        """Deliveries to these paths are not answered, until `refuse_held`."""
        self._refuse.clear()
        self._waiting = {path: [] for path in paths}

    def holds(self, path: str, text: bytes) -> bool:
        """Whether a delivery with this text waits for its answer."""
        return any(text in body for body in self._waiting[path])

    def refuse_held(self) -> None:
        """Refuses what waits; later deliveries to the same paths are acknowledged."""
        self._waiting = {}
        self._refuse.set()

    def has(self, path: str) -> Counter[Row]:
        return +self.rows[path]

    def denied(self, path: str) -> bool:
        """Whether the gateway said that nothing follows."""
        return any(one.path == path and one.parameters.get("hub.mode") == "denied" for one in self.receiver.asked)

    def wait_for_end(self, path: str, subject: str) -> None:
        """Returns when a row with this subject was told; without one, when there was a first result."""
        told = (lambda: any(s == subject for _, s, _ in self.has(path))) if subject else lambda: bool(self.told[path])
        self.wait(told, f"{subject or 'a first result'} at {path}")

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
