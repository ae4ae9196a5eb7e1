"""Keeps devices sending that fall silent when nobody asks: a Victron GX device after a minute."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping

from lamplighter.adapters.mqtt.rebirths import RebirthInbox
from lamplighter.adapters.mqtt.state_asks import StateAsk
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger

KEEP_ALIVE_S = 30.0
_KEEP_ALIVE = re.compile(r"R/[0-9A-Za-z]{6,32}/keepalive")
_PAYLOAD = b'{"keepalive-options": ["suppress-republish"]}'
"""Without it, the device sends all of its values again."""

logger = EventLogger(__name__)


async def keep_alive(inboxes: Mapping[str, RebirthInbox], asks: Callable[[str], Iterable[StateAsk]]) -> None:
    """Sends what keeps the devices of the brokers alive, until cancelled. asks: the questions of the adopted devices of
    a broker; some of them are such messages."""
    while True:
        await asyncio.sleep(KEEP_ALIVE_S)
        for name, inbox in inboxes.items():
            topics = dict.fromkeys(topic for topic, _ in asks(name) if _KEEP_ALIVE.fullmatch(topic))
            for topic in topics if inbox.subscribed.is_set() else ():
                try:
                    await inbox.publish(topic, _PAYLOAD, 0, retain=False)
                except (UpstreamError, ValueError) as error:
                    logger.debug("mqtt device not kept alive", topic=topic, reason=error)
