"""What clients ask for, as data: one kind for each type of request. Steps of the gateway itself stay callables
(`Queue.post`).

A request holds its caller, never what that may do: permission is asked again when its turn comes. A handler reads
settings where it uses them, since a reload may come while a request waits.

**Every handler can be run again, from its beginning, until its own first append.** (A plain subscription has no record:
until it is entered.) A task that turns out to be long is run again in slices: `TimeSlicer.begin` interrupts it. So a
handler changes nothing before it appends, but for what may be done twice, such as reading a text, or recording what is
pending before it. It is not interrupted behind its append, since `Ledger.commit` asks before what following will cost.
`tests/gateway/loop/test_requests.py` restarts each kind at each call.
"""

from __future__ import annotations

from collections.abc import Mapping

from lamplighter.gateway.loop.delivered import DeliveredSubscriptions, QueuedRenewal
from lamplighter.gateway.loop.queries import Queries, QueuedGraph, QueuedQuery, QueuedResource
from lamplighter.gateway.loop.queue import RequestKind
from lamplighter.gateway.loop.subscribers import QueuedEnd, QueuedSubscription, Subscribers
from lamplighter.gateway.loop.timers import DueUpdate, Timers
from lamplighter.gateway.loop.updates import Cancellation, QueuedUpdate, QueuedWrite, UpdateRequests


def kinds(
    updates: UpdateRequests,
    queries: Queries,
    subscribers: Subscribers,
    timers: Timers,
    delivered: DeliveredSubscriptions,
) -> Mapping[type, RequestKind]:
    """The table. A check that fails is told to the requester. A delayed update that is due is recorded as done then, so
    that it does not stay pending."""
    return {
        QueuedUpdate: RequestKind(updates.run_update, updates.check_update, timed=True),
        QueuedWrite: RequestKind(updates.run_write),
        Cancellation: RequestKind(updates.run_cancellation),
        DueUpdate: RequestKind(timers.run_due, timers.check_due, timers.refuse_due),
        QueuedQuery: RequestKind(queries.run_query, in_loop=True),
        QueuedGraph: RequestKind(queries.run_graph, in_loop=True),
        QueuedResource: RequestKind(queries.run_resource, in_loop=True),
        QueuedSubscription: RequestKind(subscribers.run_subscription, subscribers.check_subscription),
        QueuedEnd: RequestKind(subscribers.run_end),
        QueuedRenewal: RequestKind(delivered.run_renewal),
    }
