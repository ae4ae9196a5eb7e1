"""What the store evaluates again in commits: its price, and the share of each client.

::

    subscribe ─▶ first result ─▶ price ─▶ check_room: refused above two fifths of limits.evaluation_ms_max together
    commit ─▶ order ─▶ for each query: check ─▶ evaluation ─▶ note
                │                        └─▶ ended behind half of the limit, whatever was expected
                └─▶ ended above two fifths by their prices: the dearest of the client that uses most

A commit waits for all queries that it touches, and the next update for the commit. So what counts is their sum, and
not one of them. Queries of applications are the operator's: they come first, and do not count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import blake2b
from math import ceil

from lamplighter.engine.core import Engine, ReEvaluated
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sharing import fits
from lamplighter.engine.work import TooMuchWork, in_turn_ms
from lamplighter.gateway.loop.queue import LiveSettings

MEASURED_MAX = 10_000
"""Evaluated queries whose last times are remembered."""

ClientOf = Callable[[str], str]
"""A spuid of the engine -> whose share it takes; "" for none."""


class LastTimes:
    """The processor times of the last two evaluations of each query, of those that were evaluated last.

    The key is a digest of the text: a text has up to 16 MiB, and a query is remembered longer than it is subscribed to.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._found: OrderedDict[bytes, tuple[float, ...]] = OrderedDict()

    def note(self, text: str, ms: float) -> None:
        """Notes the time of an evaluation."""
        last = self._found.get(_digest(text))
        self._keep(text, ms if last is None else last[1], ms)

    def begin(self, text: str, ms: float) -> None:
        """Notes the time of the first one of a subscription; what was before may have been over other data."""
        self._keep(text, ms, ms)

    def _keep(self, text: str, *times: float) -> None:
        key = _digest(text)
        self._found.pop(key, None)
        self._found[key] = times
        if len(self._found) > self._entries_max:
            self._found.popitem(last=False)

    def price(self, text: str) -> float | None:
        """The shorter time, None for an unknown query. One may be long because of what else the machine does."""
        last = self._found.get(_digest(text))
        return None if last is None else min(last)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


class ReEvaluations:
    """Prices and shares.

    clients: whose share a plain subscription takes, by the engine's spuid. client_of: the same of all; it is set when
    there are subscribers, and so is applications: the queries of applications, by spuid.
    """

    def __init__(self, engine: Engine, current: LiveSettings) -> None:
        self._engine = engine
        self._current = current
        self.times = LastTimes(MEASURED_MAX)
        self.clients: dict[str, str] = {}
        self.client_of: ClientOf = lambda spuid: ""
        self.applications: Mapping[str, str] = {}
        self._free: set[str] = set()  # the queries of applications that the present commit touches
        self._ending: set[str] = set()  # the queries for which there is no time in it
        self._spent = 0.0  # milliseconds, of the others in it
        self._commit = -1
        engine.order_evaluations(self._order)

    @property
    def limit_ms(self) -> int:
        """The limit of one evaluation."""
        return self._current.settings.limits.evaluation_ms_max

    # --- at subscription ---

    def check_room(self, spuid: str, client: str) -> None:
        """Raises LimitExceededError if the store evaluates a new subscription, and a commit would wait too long for it
        and what else it touches. A query that others have subscribed to costs nothing more."""
        asked = self._engine.re_evaluated_with(spuid)
        own = next((one for one in asked if spuid in one.spuids), None)
        if own is None or len(own.spuids) > 1:
            return
        shares = self._shares(one for one in asked if one is not own)
        more, used = ceil(self.times.price(own.text) or 0.0), ceil(shares.get(client, 0.0))
        room = in_turn_ms(self.limit_ms)
        free = max(0, room - ceil(sum(shares.values())))
        if not fits(client, used, more, free):
            raise LimitExceededError(
                f"each commit that touches this query would have the store evaluate it again, for {more} ms; of the "
                f"{room} ms for all that it evaluates so (two fifths of limits.evaluation_ms_max = {self.limit_ms}) "
                f"this client uses {used}, and {free} are free; a client may use as much as it leaves; narrow the "
                "query down, write it so that a plan follows it (docs/query-classes.md), or end other subscriptions"
            )

    def _shares(self, asked: Iterable[ReEvaluated]) -> dict[str, float]:
        """The milliseconds of each client, of a commit that touches these queries."""
        found: dict[str, float] = {}
        free = set(self.applications.values())
        for one in asked:
            clients = self._clients(one, free)
            for client in clients:
                found[client] = found.get(client, 0.0) + (self.times.price(one.text) or 0.0) / len(clients)
        return found

    def _clients(self, one: ReEvaluated, free: Set[str]) -> set[str]:
        """Who shares the cost of a query; nobody of a free one, which an application has."""
        # By its text: only some of its subscribers are named.
        return set() if one.text in free else {self.client_of(spuid) for spuid in one.spuids}

    # --- in a commit ---

    def _begin(self) -> None:
        if self._commit != self._engine.sequence:  # the number of the commit before: each one differs
            self._commit = self._engine.sequence
            self._free.clear()
            self._ending.clear()
            self._spent = 0.0

    def _order(self, asked: Sequence[ReEvaluated]) -> list[int]:
        """Those of applications, then of the clients that use least here, the cheapest first: so it is the dearest of
        the client that uses most for which there is no time."""
        self._begin()
        shares = self._shares(asked)
        keys = []
        free = set(self.applications.values())
        for place, one in enumerate(asked):
            clients = self._clients(one, free)
            least = min((shares[client] for client in clients), default=-1.0)
            keys.append((least, self.times.price(one.text) or 0.0, place))
        expected, room = 0.0, in_turn_ms(self.limit_ms)
        for least, price, place in sorted(keys):
            text = asked[place].text
            if least < 0:
                self._free.add(text)
            elif expected + price > room:
                self._ending.add(text)
            else:
                expected += price
        return [place for _, _, place in sorted(keys)]

    def is_free(self, text: str) -> bool:
        """Whether an application has the query, in this commit."""
        return text in self._free

    @property
    def left_ms(self) -> float:
        """How long the rest of the evaluations may take, however long they were expected to take. What takes a little
        longer than it did is no reason to end anybody."""
        return self.limit_ms / 2 - self._spent

    def check(self, text: str) -> None:
        """Raises TooMuchWork if there is no time for a query."""
        self._begin()
        if text in self._ending or self.left_ms <= 0:
            raise self.too_much()

    def too_much(self) -> TooMuchWork:
        """The error of a query for which there is no time."""
        return TooMuchWork(
            f"more than two fifths of limits.evaluation_ms_max = {self.limit_ms}, with other subscriptions that the "
            "store evaluates again; narrow it down, or write it so that a plan follows it"
        )

    def note(self, text: str, ms: float) -> None:
        """Notes an evaluation in a commit."""
        self.times.note(text, ms)
        self.spend(text, ms)

    def spend(self, text: str, ms: float) -> None:
        """Counts what a commit has waited for."""
        if text not in self._free:
            self._spent += ms
