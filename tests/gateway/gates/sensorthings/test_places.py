"""What the door over MQTT does with its subscriptions, beside a broker: places and ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.gates.sensorthings.notices import Notices, NoticeSink
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import Settings
from tests.support.gateway_parts import CLIENT, idle, recovered_runner


@pytest.mark.parametrize("full", [False, True])
async def test_a_subscription_that_no_place_names_is_let_go_of_also_while_the_queue_is_full(
    tmp_path: Path, full: bool
) -> None:
    settings = msgspec.convert({"mqtt": {"host": "127.0.0.1"}, "gateway": {"queue_max": 2}}, Settings)
    async with recovered_runner(tmp_path, settings=settings) as runner:
        notices, sink = Notices(runner, settings, tmp_path, "http://here.example/v1.1"), NoticeSink()
        spuid = await notices._subscribe(0, sink, None)
        if full:
            with pytest.raises(QueueFullError):
                while True:
                    runner.updates.update(UpdateCall("INSERT DATA { <a:a> <a:b> 1 }", cause=CLIENT))
        await notices._end(spuid, sink)
        await idle(runner)
        attached = [sink for _, sink in runner._subscribers.resumables.attachments()]
        assert attached == ([None] if full else [])
