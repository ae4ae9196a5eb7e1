"""Asks devices for their states on each connection to a broker, so that what was missed meanwhile is corrected.

Devices that report changes only would else keep the state of before. An adopted device is asked by a message that its
format knows, such as Shelly.GetStatus; the answer is read by the rules of its values.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from lamplighter.adapters.mqtt.rebirths import RebirthInbox
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger

SETTLED_S = 3.0
"""After a connection, or the adoption of a device: its rules have to be known and its topics subscribed to."""
AGAIN_S = 40.0
"""After a connection, all devices are asked a second time."""
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
    )
)
"""Topics and payloads of Tasmota, Zigbee2MQTT and Shelly that change nothing."""


def is_question(topic: str, payload: str) -> bool:
    """Whether a message only asks for a state. Clients that may write the graph may write the record of a device, and
    `mqtt.commands` does not limit what is sent here."""
    return any(place.fullmatch(topic) and text.fullmatch(payload) for place, text in _QUESTIONS)


class StateAsks:
    """The messages that are due, for all brokers. asks: those of a broker now."""

    def __init__(self, asks: Callable[[str], Iterable[StateAsk]]) -> None:
        self._asks = asks
        self._brokers: Mapping[str, RebirthInbox] = {}
        self._known: Callable[[], bool] = lambda: True
        self._due: OrderedDict[tuple[str, StateAsk], None] = OrderedDict()
        self._connected: dict[str, asyncio.TimerHandle] = {}
        self._work = asyncio.Event()

    def follow(self, brokers: Mapping[str, RebirthInbox], known: Callable[[], bool]) -> None:
        """Asks at these brokers. known: whether the rules that read the answers are in force."""
        self._brokers, self._known = brokers, known

    def note_connection(self, broker: str, *, connected: bool) -> None:
        """Notes the state of a broker's connection, with its subscriptions."""
        if connected and broker not in self._connected:
            # After a restart of the broker, devices connect later than the adapter.
            again = asyncio.get_running_loop().call_later(AGAIN_S, lambda: self.demand(broker, self._asks(broker)))
            self._connected[broker] = again
            self.demand(broker, self._asks(broker))
        elif not connected and broker in self._connected:
            self._connected.pop(broker).cancel()

    def demand(self, broker: str, asks: Iterable[StateAsk]) -> None:
        """Devices have come or changed, and are to be asked."""
        for ask in asks:
            if len(self._due) >= ASKS_MAX:
                break
            self._due[broker, ask] = None
        if self._due:
            self._work.set()

    async def send_due(self) -> None:
        """Sends what is due, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            await asyncio.sleep(SETTLED_S)
            if not self._known():
                self._work.set()
                continue
            while self._due:
                portion = [self._due.popitem(last=False)[0] for _ in range(min(PORTION, len(self._due)))]
                for broker, (topic, payload) in portion:
                    await self._send(broker, topic, payload)
                await asyncio.sleep(PORTION_S)

    async def _send(self, broker: str, topic: str, payload: str) -> None:
        inbox = self._brokers.get(broker)  # a device may be of a broker that is not in the settings any more
        if inbox is None or not inbox.subscribed.is_set():
            return  # it is due again with the next connection
        try:
            await inbox.publish(topic, payload.encode(), 0, retain=False)
        except (UpstreamError, ValueError) as error:  # a topic that MQTT does not have
            logger.debug("mqtt state not asked for", topic=topic, reason=error)
