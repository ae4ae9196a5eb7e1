"""Clients that were removed: their delayed updates are cancelled, their request ids forgotten, and the log says so."""

from __future__ import annotations

from lamplighter.engine.change_log import Cause
from lamplighter.engine.delta import QuadDelta
from lamplighter.gateway.loop.delays import Delays
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.obligations import Obligations
from lamplighter.gateway.loop.queue import AccessOf
from lamplighter.gateway.state.request_ids import REMOVED

APPENDS_MAX = 500
"""Records that a short step may append; beyond, it is a long one."""


class Removals:
    """Records removals, before all other steps: what another client of that name asks for stands behind them."""

    def __init__(self, ledger: Ledger, delays: Delays, obligations: Obligations) -> None:
        self._request_ids = ledger.knowledge.request_ids
        self._delayed = ledger.knowledge.delayed
        self._ledger = ledger
        self._delays = delays
        self._obligations = obligations

    def forget(self, client: str) -> None:
        """Forgets what a client that was removed asked for."""
        if self._request_ids.forget(client) or self._delayed.names_of(client):
            self._obligations.add(self._obligations.clients, [client])

    def reconcile(self, access_of: AccessOf) -> None:
        """After recovery: forgets clients that were removed when the process ended before it said so."""
        for client in self._request_ids.clients():
            if client and access_of(client) is None:
                self.forget(client)

    def record(self) -> None:
        """Records the removals, and cancels the delayed updates. Raises ChangeLogError; the rest stays pending."""
        clients = self._obligations.clients
        while clients:
            cause = Cause(REMOVED, clients[0])
            names = self._delayed.names_of(cause.id)
            if len(names) > APPENDS_MAX:
                self._ledger.slicer.begin(len(names))
            for name in names:
                self._delays.cancel(name, cause)
                self._ledger.slicer.pause()
            self._ledger.commit(QuadDelta(), cause)
            clients.popleft()
            self._delays.rearm()
