"""What a careful receiver makes of deliveries, and what has to hold for them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any


class CarefulReceiver:
    """Keeps the rows of one subscription as docs/webhooks-ldn.md says.

    rows: the result now; resets, repeated: how many were received. Fails for a gap, for an order that is not that of
    the sequence, and for other rows with the same id; their order may be another one after a restart. Requests may
    come at the same time, since one of a gateway that was killed may be under way still.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.resets = 0
        self.repeated = 0
        self._bodies: dict[str, object] = {}
        self._one_at_a_time = threading.Lock()
        self._spuid = ""
        self._sequence = -1

    def take(self, name: str, body: bytes) -> None:
        """An acknowledged delivery. name: its id."""
        with self._one_at_a_time:
            self._take(name, json.loads(body)["notification"])

    def _take(self, name: str, told: dict[str, Any]) -> None:
        content = [sorted(rows(told[member])) for member in ("addedResults", "removedResults")]
        if name in self._bodies:
            assert self._bodies[name] == content, f"other rows with the id {name}"
            self.repeated += 1
            return
        self._bodies[name] = content
        assert name == f"{told['spuid'].rpartition('/')[2]}/{told['sequence']}"
        if told["sequence"] == 0:
            self.resets += "reset" in told
            self.rows.clear()
        else:
            assert (told["spuid"], told["sequence"]) == (self._spuid, self._sequence + 1)
            self.rows.subtract(rows(told["removedResults"]))
        self._spuid, self._sequence = told["spuid"], told["sequence"]
        self.rows.update(rows(told["addedResults"]))
        self.rows = +self.rows


def rows(results: Any) -> Iterable[str]:
    return [json.dumps(row, sort_keys=True) for row in results["results"]["bindings"]]
