"""How far each sink is in `matches`: one small file, replaced atomically.

All cursors are in one file, so that hundreds of sinks cost one write for each interval. A cursor advances after the sink
has accepted the notifications; so a crash repeats those of the last interval. If the file is lost or damaged, every
sink begins at the first match that is kept.
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


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """crc32: of content as it is in the file."""

    v: int = 1
    crc32: int
    content: msgspec.Raw


class Cursors:
    """The cursors of a lake's sinks. Only one process may write them. It is for one thread at a time, but `set`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        content = _read(lake)
        self._cursors = {cursor.name: cursor for cursor in content.cursors}
        self._removed = dict(content.removed)
        self._changed = False

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
        """Replaces a cursor in memory; `write` makes it durable."""
        self._cursors[cursor.name] = cursor
        self._changed = True

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

    def write(self) -> None:
        """Writes the file durably if anything changed. Raises OSError."""
        if not self._changed:
            return
        self._changed = False
        content = msgspec.json.encode(_Content(cursors=self.all(), removed=self._removed))
        try:
            self._lake.write(
                msgspec.json.encode(_File(crc32=zlib.crc32(content), content=msgspec.Raw(content))) + b"\n", *CURSORS
            )
        except BaseException:
            self._changed = True
            raise


def _read(lake: Lake) -> _Content:
    path = lake.path(*CURSORS)
    try:
        file = msgspec.json.decode(lake.fs.cat_file(path), type=_File)
        if zlib.crc32(bytes(file.content)) != file.crc32:
            raise ValueError("its checksum is wrong")
        return msgspec.json.decode(file.content, type=_Content)
    except FileNotFoundError:
        pass
    except ValueError as error:
        logger.warning("cursors damaged, all matches are delivered again", path=path, reason=str(error))
    return _Content(cursors=[])
