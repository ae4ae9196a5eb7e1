"""How far each sink is in `matches`: one small file, replaced atomically.

All cursors are in one file, so that hundreds of sinks cost one write for each interval. A cursor advances after the
sink has accepted the notifications; so a crash repeats those of the last interval. If the file is lost or damaged,
every sink begins at the first match that is kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from lamplighter.cloud_sync.fleet.delivery.notifications import START, MatchPosition
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

CURSORS = "subscriptions", "cursors.json"
CURSORS_BYTES_MAX = 256 * 1024 * 1024
SinkName = tuple[str, str]
"""The id of a subscription, and the name of its sink."""


class SinkCursor(msgspec.Struct, frozen=True, kw_only=True):
    """position: the notifications before it are accepted, or in the dead letters. delivered, dead: their numbers.

    failing_since: when the delivery of the next notification failed for the first time, in seconds since 1970.
    """

    subscription: str
    sink: str
    position: MatchPosition = START
    delivered: int = 0
    dead: int = 0
    failing_since: float | None = None

    @property
    def name(self) -> SinkName:
        return self.subscription, self.sink


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    """removed: where the matches of removed subscriptions end. A new subscription of that id begins there."""

    cursors: list[SinkCursor]
    removed: dict[str, MatchPosition] = {}


class _CursorFile(msgspec.Struct, frozen=True, kw_only=True):
    """crc32: of content as it is in the file."""

    v: int = 1
    crc32: int
    content: msgspec.Raw


class Cursors:
    """The cursors of a lake's sinks. One process at a time may write them."""

    def __init__(self, lake: Lake, last: str = "") -> None:
        """last: the id of the table's last batch. A cursor behind it is of another table, and is not used."""
        self._lake = lake
        content = _read(lake)
        self._cursors = {cursor.name: cursor for cursor in content.cursors if not _is_beyond(cursor, last)}
        self._removed = dict(content.removed)
        self._changed = self._moved = False

    def get(self, name: SinkName) -> SinkCursor | None:
        return self._cursors.get(name)

    def all(self) -> list[SinkCursor]:
        return list(self._cursors.values())

    def begin(self, subscription: str, sink: str, *, whole: bool) -> SinkCursor:
        """Adds the cursor of a new sink.

        whole: begin with the first match of the subscription; otherwise, if the subscription has other sinks, where the
        most advanced of them is. A subscription's first sink misses nothing in either case: matches of a subscription
        exist from its registration on.
        """
        position = self._removed.get(subscription, START)
        if not whole:
            others = [cursor.position for cursor in self._cursors.values() if cursor.subscription == subscription]
            position = max([position, *others])
        cursor = SinkCursor(subscription=subscription, sink=sink, position=position)
        self.set(cursor)
        return cursor

    def set(self, cursor: SinkCursor) -> None:
        """Replaces a cursor in memory."""
        self._cursors[cursor.name] = cursor
        self._changed = True

    def move(self, cursor: SinkCursor, position: MatchPosition) -> SinkCursor:
        """The cursor after batches without matches for it. That need not be written soon: a crash repeats nothing."""
        moved = msgspec.structs.replace(cursor, position=position)
        self._cursors[moved.name] = moved
        self._moved = True
        return moved

    def remove_sinks(self, subscription: str, keep: Iterable[str] = ()) -> None:
        """Forgets the cursors of a subscription's sinks, except some."""
        kept = set(keep)
        for name in [name for name in self._cursors if name[0] == subscription and name[1] not in kept]:
            del self._cursors[name]
            self._changed = True

    def remove_subscription(self, subscription: str, end: MatchPosition) -> None:
        """Forgets a removed subscription. end: the end of the table; later matches belong to a new one of that id."""
        if subscription not in self._removed or any(name[0] == subscription for name in self._cursors):
            self.remove_sinks(subscription)
            self._removed[subscription] = end
            self._changed = True

    def changes(self, *, moved: bool) -> bytes | None:
        """The content for `write`; None if nothing changed since the last call. moved: `move` counts as a change."""
        if not self._changed and not (moved and self._moved):
            return None
        self._changed = self._moved = False
        content = msgspec.json.encode(_Content(cursors=self.all(), removed=self._removed))
        return msgspec.json.encode(_CursorFile(crc32=zlib.crc32(content), content=msgspec.Raw(content))) + b"\n"

    def write(self, changes: bytes) -> None:
        """Replaces the file atomically and durably. Any thread may call it. Raises OSError."""
        try:
            self._lake.write(changes, *CURSORS)
        except BaseException:
            self._changed = True
            raise


def _is_beyond(cursor: SinkCursor, last: str) -> bool:
    batch = cursor.position.batch
    beyond = bool(last) and (batch > last or not (batch == "" or batch.isdecimal()))
    if beyond:
        logger.warning(
            "cursor unusable, its matches are delivered again",
            subscription=cursor.subscription,
            sink=cursor.sink,
            reason=f"it is at batch {cursor.position.batch}, and the last one is {last}",
        )
    return beyond


def _read(lake: Lake) -> _Content:
    path = lake.path(*CURSORS)
    try:
        data = lake.fs.cat_file(path, start=0, end=CURSORS_BYTES_MAX + 1)
        if len(data) > CURSORS_BYTES_MAX:
            raise ValueError(f"it has more than {CURSORS_BYTES_MAX} bytes")
        file = msgspec.json.decode(data, type=_CursorFile)
        if zlib.crc32(bytes(file.content)) != file.crc32:
            raise ValueError("its checksum is wrong")
        return msgspec.json.decode(file.content, type=_Content)
    except FileNotFoundError:
        pass
    except (ValueError, RecursionError) as error:
        logger.warning("cursors damaged, all matches are delivered again", path=path, reason=str(error))
    return _Content(cursors=[])
