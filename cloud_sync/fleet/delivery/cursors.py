"""How far each sink is in `matches`: one small file, replaced atomically.

All cursors are in one file, so that hundreds of sinks cost one write for each interval. A cursor advances after the
sink has accepted the notifications; so a crash repeats those of the last interval. If the file is lost or damaged,
every sink begins at the first match that is kept.

On object storage, where a lock is a lease, the file has the number of the lease of the process that wrote it. A process
that begins writes its own number at once, and each write is conditional. So a process that has lost its lease cannot
move cursors back.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from lamplighter.cloud_sync.fleet.delivery.notifications import ALL_ROWS, START, MatchPosition, UnreadMatches
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.folder import LockLostError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

CURSORS = "subscriptions", "cursors.json"
CURSORS_BYTES_MAX = 256 * 1024 * 1024
_CLAIMS = 5
# The id of a subscription, and the name of its sink.
SinkName = tuple[str, str]


class GatewayBehind(msgspec.Struct, frozen=True):
    """A gateway that a sink has passed because it answers no orders.

    position: the notifications before it are sent to the gateway. since: seconds since 1970.
    """

    gateway: str
    position: MatchPosition
    since: float


class SinkCursor(msgspec.Struct, frozen=True, kw_only=True):
    """position: the notifications before it are accepted, or in the dead letters. delivered, dead: their numbers.

    failing_since: when the delivery of the next notification failed for the first time, in seconds since 1970.
    unread: matches before the position that could not be read yet. behind: gateways that wait for notifications before
    it.
    """

    subscription: str
    sink: str
    position: MatchPosition = START
    delivered: int = 0
    dead: int = 0
    failing_since: float | None = None
    unread: list[UnreadMatches] = []
    behind: list[GatewayBehind] = []

    @property
    def name(self) -> SinkName:
        return self.subscription, self.sink

    def at(self, position: MatchPosition) -> SinkCursor:
        """The cursor with another position; if it lies behind the cursor, with another begin of the unread matches
        there, which are left out at their end."""
        if position > self.position:
            return msgspec.structs.replace(self, position=position)
        moved = (
            UnreadMatches(position, one.until) if one.position <= position <= one.end else one for one in self.unread
        )
        return msgspec.structs.replace(self, unread=[one for one in moved if one.position < one.end])

    def without(self, first: str, last: str) -> SinkCursor:
        """The cursor behind some batches, whose rest is unread now."""
        unread = UnreadMatches(max(self.position, MatchPosition(first)), last)
        kept = [one for one in self.unread if one.until != last]
        return msgspec.structs.replace(self, position=MatchPosition(last, ALL_ROWS), unread=[*kept, unread])


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """removed: where the matches of removed subscriptions end. A new subscription of that id begins there."""

    cursors: list[SinkCursor]
    removed: dict[str, MatchPosition] = {}


class _CursorFile(msgspec.Struct, frozen=True, kw_only=True):
    """crc32: of content as it is in the file. lease: number of the lease of the process that wrote it."""

    v: int = 1
    crc32: int
    lease: int = 0
    content: msgspec.Raw


class Cursors:
    """The cursors of a lake's sinks. One process at a time may write them."""

    def __init__(self, lake: Lake, last: str = "", lease: int = 0) -> None:
        """last: the id of the table's last batch. A cursor behind it is of another table, and is not used. lease: the
        number of this process's lease; 0 on a folder.

        Raises LockLostError if a process with a newer lease has written; OSError.
        """
        self._lake = lake
        self._lease = lease
        self._mark = ""
        content = self._claim() if lease else _read_file(lake)[1]
        self.by_name = {cursor.name: cursor for cursor in content.cursors if not _is_beyond(cursor, last)}
        self._removed = dict(content.removed)
        self._changed = self._moved = False

    def all(self) -> list[SinkCursor]:
        return list(self.by_name.values())

    def begin(self, subscription: str, sink: str, *, whole: bool) -> SinkCursor:
        """Adds the cursor of a new sink.

        whole: begin with the first match of the subscription; otherwise, if the subscription has other sinks, where the
        most advanced of them is. A subscription's first sink misses nothing in either case: matches of a subscription
        exist from its registration on.
        """
        position = self._removed.get(subscription, START)
        if not whole:
            others = [cursor.position for cursor in self.by_name.values() if cursor.subscription == subscription]
            position = max([position, *others])
        cursor = SinkCursor(subscription=subscription, sink=sink, position=position)
        self.replace(cursor)
        return cursor

    def replace(self, cursor: SinkCursor) -> None:
        """Replaces a cursor in memory."""
        self.by_name[cursor.name] = cursor
        self._changed = True

    def move(self, cursor: SinkCursor) -> SinkCursor:
        """As `replace`, for a cursor that passed no match. It need not be written soon: a crash repeats nothing."""
        self.by_name[cursor.name] = cursor
        self._moved = True
        return cursor

    def remove_sinks(self, subscription: str, keep: Iterable[str] = ()) -> None:
        """Forgets the cursors of a subscription's sinks, except some."""
        kept = set(keep)
        for name in [name for name in self.by_name if name[0] == subscription and name[1] not in kept]:
            del self.by_name[name]
            self._changed = True

    def remove_subscription(self, subscription: str, end: MatchPosition) -> None:
        """Forgets a removed subscription. end: the end of the table; later matches belong to a new one of that id."""
        if subscription not in self._removed or any(name[0] == subscription for name in self.by_name):
            self.remove_sinks(subscription)
            self._removed[subscription] = end
            self._changed = True

    def changes(self, *, moved: bool) -> bytes | None:
        """The content for `write`; None if nothing changed since the last call. moved: `move` counts as a change."""
        if not self._changed and not (moved and self._moved):
            return None
        self._changed = self._moved = False
        content = msgspec.json.encode(_Content(cursors=self.all(), removed=self._removed))
        return _file(content, self._lease)

    def write(self, changes: bytes) -> None:
        """Replaces the file atomically and durably. One thread at a time may call it. Raises LockLostError, OSError."""
        try:
            if not self._lease:
                self._lake.write(changes, *CURSORS)
                return
            if self._mark == "" and _read_file(self._lake)[0] > self._lease:
                raise self._lock_lost_error()
            mark = self._lake.write_if(changes, self._mark, *CURSORS)
            if mark is None:
                raise self._lock_lost_error()
            self._mark = mark
        except BaseException:
            self._changed = True
            raise

    def _claim(self) -> _Content:
        """The content, after the file has the number of this process's lease: no earlier process can write any more."""
        for _ in range(_CLAIMS):
            mark = self._lake.mark(*CURSORS)
            lease, content = _read_file(self._lake)
            if lease > self._lease:
                raise self._lock_lost_error()
            written = self._lake.write_if(_file(msgspec.json.encode(content), self._lease), mark, *CURSORS)
            if written is not None:
                self._mark = written
                return content
        raise self._lock_lost_error()

    def _lock_lost_error(self) -> LockLostError:
        return LockLostError(
            f"{self._lake.path(*CURSORS)}: another process delivers now, because this one did not renew its lock; this "
            "one ends, and the notifications of its last seconds are delivered again"
        )


def forget_gateway(lake: Lake, gateway: str) -> None:
    """Takes a gateway out of those that are behind. No process may deliver. Raises OSError."""
    lease, content = _read_file(lake)
    kept = [
        msgspec.structs.replace(cursor, behind=[one for one in cursor.behind if one.gateway != gateway])
        for cursor in content.cursors
    ]
    if kept != content.cursors:
        changed = msgspec.json.encode(msgspec.structs.replace(content, cursors=kept))
        lake.write(_file(changed, lease), *CURSORS)


def _is_beyond(cursor: SinkCursor, last: str) -> bool:
    batches = [cursor.position.batch]
    for one in cursor.unread:
        batches += [one.position.batch, one.until]
    beyond = [batch for batch in batches if batch > last or not (batch == "" or batch.isdecimal())] if last else []
    if beyond:
        logger.warning(
            "cursor unusable, its matches are delivered again",
            subscription=cursor.subscription,
            sink=cursor.sink,
            reason=f"it is at batch {beyond[0]}, and the last one is {last}",
        )
    return bool(beyond)


def _file(content: bytes, lease: int) -> bytes:
    file = _CursorFile(crc32=zlib.crc32(content), lease=lease, content=msgspec.Raw(content))
    return msgspec.json.encode(file) + b"\n"


def _read_file(lake: Lake) -> tuple[int, _Content]:
    """The number of the lease in the file, and the content."""
    path = lake.path(*CURSORS)
    try:
        data = lake.fs.cat_file(path, start=0, end=CURSORS_BYTES_MAX + 1)
        if len(data) > CURSORS_BYTES_MAX:
            raise ValueError(f"it has more than {CURSORS_BYTES_MAX} bytes")
        file = msgspec.json.decode(data, type=_CursorFile)
        if zlib.crc32(bytes(file.content)) != file.crc32:
            raise ValueError("its checksum is wrong")
        return file.lease, msgspec.json.decode(file.content, type=_Content)
    except FileNotFoundError:
        pass
    except (ValueError, RecursionError) as error:
        logger.warning("cursors damaged, all matches are delivered again", path=path, reason=str(error))
    return 0, _Content(cursors=[])
