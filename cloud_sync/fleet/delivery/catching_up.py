"""Gateways that answer no orders: a sink passes them, and they get what they have missed when they answer again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lamplighter.cloud_sync.fleet.delivery.cursors import GatewayBehind, SinkCursor
from lamplighter.cloud_sync.fleet.delivery.match_files import DamagedMatchesError
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.parts import DeliveryParts
from lamplighter.cloud_sync.fleet.delivery.sent_orders import OrderDesk
from lamplighter.cloud_sync.fleet.delivery.sinks import DeliverySink, UndeliveredError
from lamplighter.cloud_sync.fleet.delivery.sinks.updates import UpdateNotifications
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)


def with_passed(
    cursor: SinkCursor, sink: DeliverySink, place: MatchPosition, notifications: Sequence[MatchNotification], now: float
) -> SinkCursor:
    """The cursor with the gateways that a delivery has passed. place: before its first notification."""
    if not isinstance(sink, UpdateNotifications) or not sink.passed:
        return cursor
    known = {one.gateway: one for one in cursor.behind}
    for gateway, sent in sink.passed.items():
        here = notifications[sent - 1].next if sent else place
        one = known.get(gateway, GatewayBehind(gateway, here, now))
        # What could not be read before may lie before the place where the gateway is.
        known[gateway] = msgspec.structs.replace(one, position=min(here, one.position))
    return msgspec.structs.replace(cursor, behind=[known[gateway] for gateway in sorted(known)])


async def catch_up(cursor: SinkCursor, sink: DeliverySink, parts: DeliveryParts) -> SinkCursor | None:
    """Delivers the next notifications to each gateway of a cursor that is behind and has room, or gives them up.

    Returns the cursor after it; None if nothing has changed. A fault at one of them does not stop the others.
    """
    if not isinstance(sink, UpdateNotifications) or parts.desk is None:
        return None
    named = await parts.write(sink.gateways)
    found: list[GatewayBehind] = []
    dead = 0
    for one in cursor.behind:
        if one.gateway not in named:
            continue
        moved, given_up = await _next_of(cursor, one, sink, parts.desk, parts)
        dead += given_up
        if moved is not None:
            found.append(moved)
    if found == cursor.behind:
        return None
    return msgspec.structs.replace(cursor, behind=found, dead=cursor.dead + dead)


async def _next_of(
    cursor: SinkCursor, one: GatewayBehind, sink: UpdateNotifications, desk: OrderDesk, parts: DeliveryParts
) -> tuple[GatewayBehind | None, int]:
    """Where a gateway is after the next notifications, None if it is not behind any more; and how many are given up."""
    now = parts.clock.wall()
    given_up = now - one.since >= parts.give_up_s
    if not given_up and desk.full_reason(one.gateway):
        return one, 0
    try:
        chunk = await parts.in_reader_thread(
            parts.table.chunk, cursor.subscription, one.position, sink.bounds, cursor.position.batch
        )
        # One that was written a short time ago waits for as long as others do.
        written = await parts.in_reader_thread(parts.table.write_time, chunk.position.batch) if given_up else None
    except DamagedMatchesError:
        return one, 0
    notifications = [told for told in chunk.notifications if told.next <= cursor.position]
    if not notifications:
        done = bool(chunk.notifications) or chunk.position >= cursor.position or chunk.position == one.position
        return (None if done else msgspec.structs.replace(one, position=chunk.position)), 0
    await parts.write(parts.check_lock)
    reason = desk.full_reason(one.gateway)
    if not reason:
        try:
            accepted = await sink.catch_up(one.gateway, notifications)
        except UndeliveredError as error:
            accepted, reason = error.accepted, str(error)
            if not accepted and error.permanent:
                refused = notifications[: error.refused]
                await _bury(cursor, one, refused, reason, parts)
                return msgspec.structs.replace(one, position=refused[-1].next), len(refused)
        if accepted:
            # The gateway answers, so the time to give up begins again.
            return msgspec.structs.replace(one, position=notifications[accepted - 1].next, since=now), 0
    if not given_up or not reason or (written is not None and now - written < parts.give_up_s):
        return one, 0
    await _bury(cursor, one, notifications, f"given up: {reason}", parts)
    return msgspec.structs.replace(one, position=notifications[-1].next), len(notifications)


async def _bury(
    cursor: SinkCursor,
    one: GatewayBehind,
    notifications: Sequence[MatchNotification],
    reason: str,
    parts: DeliveryParts,
) -> None:
    """Puts notifications that a gateway does not get into the dead letters."""
    now = parts.clock.wall()
    await parts.write(parts.letters.write, parts.lake, cursor.name, notifications, reason, now, one.gateway)
    logger.error(
        "notifications not delivered",
        subscription=cursor.subscription,
        sink=cursor.sink,
        gateway=one.gateway,
        notifications=len(notifications),
        first=notifications[0].id,
        reason=reason,
    )
