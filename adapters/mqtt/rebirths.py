"""Asks Sparkplug nodes for their births: when a node sends aliases that only its birth explains, and nodes of adopted
devices on each connection, since no retained message tells that a node died meanwhile.

A request is the command ``Node Control/Rebirth`` on ``spBv1.0/<group>/NCMD/<node>`` (Sparkplug 3.0, 6.4.17). It is sent
only if a device of the node is adopted or `mqtt.commands` permits this topic, and if the adapter subscribes to the
node's births. A node that does not answer is asked ever less often, and only after new data from it or a connection.
One that answers may soon be asked again: the next restart of the broker may come at once. It is asked even if a birth
comes by itself: data behind that one may have been lost while the adapter or the node had no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from paho.mqtt.client import topic_matches_sub

from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.mapping import Births
from lamplighter.adapters.mapping.sparkplug import NAMESPACE, NODES_MAX, rebirth_request
from lamplighter.adapters.mqtt.sender import not_permitted, permits
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.log_events import EventLogger

CHECK_S = 1.0
NODE_COMMANDS = f"{NAMESPACE}/+/NCMD/+"
AT_ONCE_MAX = 5
"""Requests in one check of a broker."""
PAUSE_MIN_S, PAUSE_MAX_S = 30.0, 3_600.0
"""Between two requests to a node. The pause doubles with each request that it does not answer."""

Node = tuple[str, str]
"""Group and node."""

logger = EventLogger(__name__)


class RebirthInbox(Protocol):
    """The session of a broker. filters: what it subscribes to."""

    @property
    def subscribed(self) -> asyncio.Event: ...

    @property
    def filters(self) -> Sequence[str]: ...

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None: ...


class RebirthBroker(Protocol):
    """births: `unborn` are the nodes to ask, and `born` those that have answered."""

    @property
    def name(self) -> str: ...
    @property
    def inbox(self) -> RebirthInbox: ...

    @property
    def births(self) -> Births: ...


def rebirth_pauses() -> Pauses[Node]:
    """When the nodes of a broker were asked."""
    return Pauses(PAUSE_MIN_S, PAUSE_MAX_S, quiet_s=2 * PAUSE_MAX_S, devices_max=NODES_MAX)


def due_nodes(
    pauses: Pauses[Node], unborn: set[Node], now: float, adopted: Callable[[Node], bool] = lambda node: False
) -> Iterator[Node]:
    """Takes up to `AT_ONCE_MAX` nodes out of `unborn` that may be asked now, and those that may not; but nodes of
    adopted devices wait for it: a connection may have brought them, and nothing brings them again."""
    count = 0
    for node in sorted(unborn):
        if now < pauses.due(node):
            if not adopted(node):
                unborn.discard(node)  # it is there again with its next data
            continue
        if count == AT_ONCE_MAX:
            return
        count += 1
        unborn.discard(node)
        pauses.changed(node, now)
        yield node


async def ask_for_rebirths(
    brokers: Collection[RebirthBroker],
    permitted: Sequence[str],
    clock: Callable[[], datetime],
    elapsed: Callable[[], float],
    note: Callable[[str, str], None],
    adopted: Callable[[str, Node], bool] = lambda broker, node: False,
) -> None:
    """Runs until cancelled. permitted: the setting mqtt.commands; note: takes topic and reason of a request that it
    does not permit; adopted: whether a device of a node of this broker is adopted, which permits to ask it."""
    pauses = [(broker, rebirth_pauses()) for broker in brokers]
    while True:
        await asyncio.sleep(CHECK_S)
        for broker, asked in pauses:
            for node in broker.births.born:
                asked.shorten(node)
            broker.births.born.clear()
            if broker.births.unborn and broker.inbox.subscribed.is_set():
                for node in due_nodes(asked, broker.births.unborn, elapsed(), partial(adopted, broker.name)):
                    may = (NODE_COMMANDS,) if adopted(broker.name, node) else permitted
                    await _ask(broker.inbox, node, may, clock(), note)


async def _ask(
    inbox: RebirthInbox, node: Node, permitted: Sequence[str], now: datetime, note: Callable[[str, str], None]
) -> None:
    group, name = node
    topic, birth = f"{NAMESPACE}/{group}/NCMD/{name}", f"{NAMESPACE}/{group}/NBIRTH/{name}"
    if set(topic) & set("+#\0") or not any(topic_matches_sub(one, birth) for one in inbox.filters):
        return
    if not permits(permitted, topic):
        note(topic, f"a Sparkplug node has to be asked for its birth: {not_permitted(topic)}")
        return
    try:
        await inbox.publish(topic, rebirth_request(now), 0, retain=False)
        logger.info("mqtt sparkplug rebirth requested", topic=topic)
    except UpstreamError as error:
        logger.debug("mqtt sparkplug rebirth not requested", topic=topic, reason=error)
