"""Asks devices for their states when they are read, so that what was missed meanwhile is corrected.

Devices that report changes only would else keep the state of before. An adopted device is asked by a message that its
format knows, such as Shelly.GetStatus, once the topics of the answer are subscribed to and its rules are in force:
`subscribed` says when.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice

from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.mqtt.rebirths import RebirthInbox
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger

AGAIN_S = 40.0
"""After a connection, all devices are asked a second time: a question may be lost, or its device connect later."""
PAUSE_MIN_S, PAUSE_MAX_S = 2.0, 600.0
"""Between two questions that are the same."""
PORTION, PORTION_S = 10, 0.5
"""Messages at once, and the pause behind them: the answers must not be a flood, and a radio is slow."""
ASKS_MAX = 20_000

logger = EventLogger(__name__)

StateAsk = tuple[str, str]
"""Topic and payload."""


_QUESTIONS = tuple(
    (re.compile(topic), re.compile(payload))
    for topic, payload in (
        (r"[^$+#\0][^+#\0]*/STATUS", r"1[01]"),
        (r"[^$+#\0][^+#\0]*/get", r'\{"[A-Za-z0-9_]{1,64}": ""\}'),
        (r"[^$+#\0][^+#\0]*/rpc", r'\{"id": 1, "src": "[^"\\]{1,200}", "method": "Shelly\.GetStatus"\}'),
        (r"R/[0-9A-Za-z]{6,32}/keepalive", r""),
    )
)
"""Topics and payloads of Tasmota, Zigbee2MQTT, Shelly and Victron that change nothing."""


def is_question(topic: str, payload: str) -> bool:
    """Whether a message only asks for a state. Clients that may write the graph may write the record of a device, and
    `mqtt.commands` does not limit what is sent here."""
    return any(place.fullmatch(topic) and text.fullmatch(payload) for place, text in _QUESTIONS)


class StateAsks:
    """The questions that are due, for all brokers. A question is sent again after a pause that grows.

    all_of: those of a broker whose answers are read now.
    """

    def __init__(self, all_of: Callable[[str], Iterable[StateAsk]]) -> None:
        self._all_of = all_of
        self._brokers: Mapping[str, RebirthInbox] = {}
        self._due: OrderedDict[tuple[str, StateAsk], None] = OrderedDict()
        self._pauses: Pauses[tuple[str, StateAsk]] = Pauses(PAUSE_MIN_S, PAUSE_MAX_S, devices_max=ASKS_MAX)
        self._connected: dict[str, asyncio.TimerHandle] = {}
        self._work = asyncio.Event()

    def follow(self, brokers: Mapping[str, RebirthInbox]) -> None:
        """Asks at these brokers."""
        self._brokers = brokers

    def note_connection(self, broker: str, *, connected: bool) -> None:
        """Notes the state of a broker's connection, with its subscriptions."""
        if connected and broker not in self._connected:
            again = asyncio.get_running_loop().call_later(AGAIN_S, lambda: self.demand(broker, self._all_of(broker)))
            self._connected[broker] = again
        elif not connected and broker in self._connected:
            self._connected.pop(broker).cancel()

    def demand(self, broker: str, asks: Iterable[StateAsk]) -> None:
        """These are to be sent: their answers are read now, or the devices may have other states than they said."""
        for ask in asks:
            if len(self._due) >= ASKS_MAX:
                break
            self._due[broker, ask] = None
        if self._due:
            self._work.set()

    async def send_due(self) -> None:
        """Sends what is due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_s(loop.time())):
                    await self._work.wait()
            self._work.clear()
            while portion := self._portion(loop.time()):
                for broker, (topic, payload) in portion:
                    await self._send(broker, topic, payload)
                await asyncio.sleep(PORTION_S)

    def _next_s(self, now: float) -> float | None:
        """How long the next question waits that was sent a short time ago; None if there is none."""
        due = min((self._pauses.due(one) for one in self._due), default=None)
        return None if due is None else max(0.0, due - now)

    def _portion(self, now: float) -> list[tuple[str, StateAsk]]:
        found = list(islice((one for one in self._due if self._pauses.due(one) <= now), PORTION))
        for one in found:
            del self._due[one]
            self._pauses.changed(one, now)
        return found

    async def _send(self, broker: str, topic: str, payload: str) -> None:
        inbox = self._brokers.get(broker)  # a device may be of a broker that is not in the settings any more
        if inbox is None or not inbox.subscribed.is_set():
            return  # it is due again with the next connection
        try:
            await inbox.publish(topic, payload.encode(), 0, retain=False)
        except (UpstreamError, ValueError) as error:  # a topic that MQTT does not have
            logger.debug("mqtt state not asked for", topic=topic, reason=error)
