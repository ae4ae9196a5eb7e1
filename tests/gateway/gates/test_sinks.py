"""The sink of one subscription at WebSocket and Server-Sent Events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.protocol import Results
from lamplighter.engine.terms import Bag
from lamplighter.gateway.gates.outbox import Outbox
from lamplighter.gateway.gates.sinks import ClientSink

NONE, ONE = Bag(("s",)), Bag(("s",), [("<http://s>",)])


class NamedPeer:
    name = "test"

    def forget(self, spuid: str, sink: Any) -> None: ...


@pytest.mark.parametrize("keep", [None, "PT1M"])
async def test_a_client_that_may_not_read_every_graph_any_more_is_told_no_commits(keep: str | None) -> None:
    outbox = Outbox(10_000)
    sink = ClientSink(NamedPeer(), outbox, None, names_commits=True)
    sink.subscribed(Subscription("sepa://subscription/one", NONE, "telescoped"), keep)
    await outbox.get()
    named = []
    for number in (1, 2):
        change = Notification("sepa://subscription/one", number, ONE, NONE)
        sink.notify(change, Results(ONE, NONE, (1, number)))
        message = json.loads(await outbox.get())["notification"]
        assert message["sequence"] == number
        named.append(message.get("commit"))
        sink.name_no_commits()
    assert named == [{"epoch": 1, "seq": 1}, None]
