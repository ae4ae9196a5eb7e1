"""Devices that fall silent when nobody asks are asked in time, as long as they are adopted."""

from __future__ import annotations

import asyncio

import pytest

from lamplighter.adapters.mqtt import keep_alives
from lamplighter.adapters.mqtt.keep_alives import keep_alive
from lamplighter.engine.errors import UpstreamError
from tests.support.event_loops import beside, until

PORTAL = "R/c0619ab1c2d3/keepalive"


class Session:
    def __init__(self, *, subscribed: bool = True, fails: bool = False) -> None:
        self.subscribed = asyncio.Event()
        if subscribed:
            self.subscribed.set()
        self.filters = ()
        self._fails = fails
        self.tries: list[tuple[str, bytes]] = []

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        assert (qos, retain) == (0, False)
        self.tries.append((topic, payload))
        if self._fails:
            raise UpstreamError("the broker is not connected")


async def test_each_gx_device_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alives, "KEEP_ALIVE_S", 0.001)
    inboxes = {"a": Session(), "away": Session(subscribed=False), "failing": Session(fails=True)}
    asks = [(PORTAL, ""), (PORTAL, ""), ("cmnd/plug/STATUS", "10")]
    async with beside(keep_alive(inboxes, lambda broker: asks)):
        await until(lambda: len(inboxes["a"].tries) >= 3 and len(inboxes["failing"].tries) >= 3)
    assert set(inboxes["a"].tries) == {(PORTAL, b'{"keepalive-options": ["suppress-republish"]}')}
    assert not inboxes["away"].tries
