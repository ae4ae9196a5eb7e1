"""A part of the change log for programs and pages: records in bounded form, and what is missing between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from lamplighter.engine.change_log import Record
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.terms import Quad
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.snapshots import Place, label, place_of
from lamplighter.gateway.state.resumption import public_spuid
from lamplighter.gateway.texts import cut

RECORDS_MAX = 1_000  # records of a page
PAGE_BYTES_MAX = 4 * 1024 * 1024  # bytes of the records of a page, as JSON
QUADS_DEFAULT = 20
QUADS_MAX = 1_000  # of each kind that a record is shown with
QUAD_CHARACTERS_MAX = 4_000  # a longer quad is counted, and not shown
TEXT_CHARACTERS_MAX = 1_000  # a longer text is cut


class LogRange(msgspec.Struct, frozen=True):
    """Which records are wanted. after, begin, to: the place behind which, from which and up to which; a text is the
    sequence of a record. last: only so many, the newest. quads: of each kind and record."""

    after: Place | str | None = None
    begin: Place | str | None = None
    to: Place | str | None = None
    last: int | None = None
    quads: int = QUADS_DEFAULT


class Missing(msgspec.Struct, frozen=True, omit_defaults=True, rename={"first": "from", "last": "to"}):
    """Records that cannot be shown. last: None if no later record can be shown either."""

    first: str
    reason: str
    last: str | None = None


class LogPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """records: oldest first; newest: the last record that was acknowledged; next: the first record behind those of the
    page, None if there is none; missing: what is not there of the range."""

    records: Sequence[msgspec.Raw]
    newest: str
    next: str | None = None
    missing: tuple[Missing, ...] = ()


def page(records: Iterable[Record], newest: Place, quads: int) -> LogPage:
    """The page of records that are known."""
    return _first_page(iter(records), newest, quads)


def page_of(history: History, wanted: LogRange, newest: Place) -> LogPage:
    """The page of a range. newest: the last record that may be shown. Raises ChangeLogError."""
    after = _place(history, wanted.after) or (1, 0)
    if wanted.begin is not None:
        epoch, sequence = _place(history, wanted.begin) or (1, 1)
        after = epoch, sequence - 1
    to = min(_place(history, wanted.to) or newest, newest)
    if wanted.last is None:
        return _first_page(_rows(history, after, to), newest, wanted.quads)
    return _last_page(history, after, to, newest, wanted.last, wanted.quads)


def _place(history: History, named: Place | str | None) -> Place | None:
    if not isinstance(named, str):
        return named
    return history.place(named)


def error_text(error: ChangeLogError) -> str:
    """The text of an error without the path of the log."""
    return str(error).removeprefix(f"{error.path}: ")


def _first_page(rows: Iterator[Record | Missing], newest: Place, quads: int) -> LogPage:
    records: list[msgspec.Raw] = []
    missing: list[Missing] = []
    size = 0
    for row in rows:
        if isinstance(row, Missing):
            missing.append(row)
            continue
        line = _encode(shown_record(row, quads))
        size += len(line)
        if records and (len(records) == RECORDS_MAX or size > PAGE_BYTES_MAX):
            return LogPage(records, label(newest), label(place_of(row)), tuple(missing))
        records.append(msgspec.Raw(line))
    return LogPage(records, label(newest), None, tuple(missing))


def _last_page(history: History, after: Place, to: Place, newest: Place, count: int, quads: int) -> LogPage:
    """As `History.newest`: from further and further back, until there are enough."""
    back = 1
    while True:
        found = history.segments()
        begin = (0, 0) if back >= len(found) else (found[-back].name.epoch, found[-back].name.first - 1)
        whole = begin <= after
        rows = _rows(history, after if whole else begin, to)
        lines: deque[tuple[Place, bytes]] = deque()
        size, full = 0, False
        missing: list[Missing] = []
        for row in rows:
            if isinstance(row, Missing):
                missing.append(row)
                continue
            lines.append((place_of(row), _encode(shown_record(row, quads))))
            size += len(lines[-1][1])
            while len(lines) > count or (size > PAGE_BYTES_MAX and len(lines) > 1):
                full = True
                size -= len(lines.popleft()[1])
                missing.clear()  # it is before the page
        if len(lines) == count or full or whole:
            return LogPage([msgspec.Raw(line) for _, line in lines], label(newest), None, tuple(missing))
        back *= 2


def _rows(history: History, after: Place, to: Place) -> Iterator[Record | Missing]:
    """The records behind a place, up to another one with it. Where some are missing, it goes on behind them."""
    while after < to:
        try:
            for record in history.records(after, to):
                after = place_of(record)
                yield record
        except ChangeLogError as error:
            following = after[0], after[1] + 1
            found = next((one.begin for one in history.segments() if one.begin > following), None)
            if found is None or found > to:
                yield Missing(label(following), error_text(error))
                return
            last = label((found[0], found[1] - 1)) if found[0] == following[0] else None
            yield Missing(label(following), error_text(error), last)
            after = found[0], found[1] - 1
        else:
            return


# --- records ------------------------------------------------------------------------------------------------


def shown_record(record: Record, quads: int = QUADS_DEFAULT) -> dict[str, Any]:
    """A record with bounded members. quads: of each kind; `counts` has their numbers."""
    members: dict[str, Any] = {
        "record": label(place_of(record)),
        "type": record.type,
        "ts": record.ts,
        "trusted": record.trusted,
    }
    if record.cause is not None:
        members["cause"] = {"kind": record.cause.kind, "id": _shorten(record.cause.id)}
        if record.cause.seq is not None:
            members["cause"]["seq"] = record.cause.seq
    for name in ("client", "request", "cancel"):
        if getattr(record, name) is not None:
            members[name] = _shorten(getattr(record, name))
    if record.type == "commit":
        members["counts"] = {name: len(getattr(record, name)) for name in ("d", "a", "k")}
        members |= {name: found for name in ("d", "a", "k") if (found := _some(getattr(record, name), quads))}
    if record.graphs is not None:
        for name, names in msgspec.structs.asdict(record.graphs).items():
            if names:
                members.setdefault("counts", {})[name] = len(names)
                some = [one for one in names[:quads] if len(one) <= QUAD_CHARACTERS_MAX]
                members.setdefault("graphs", {})[name] = some
    for name in ("timer", "gap", "subscribe"):
        if (found := getattr(record, name)) is not None:
            members[name] = _TOLD[name](found)
    if record.unsubscribe is not None:
        members["unsubscribe"] = public_spuid(record.unsubscribe)
    return members


def _some(quads: Sequence[Quad], count: int) -> list[Quad]:
    """The first quads that are not too long."""
    return [quad for quad in quads[:count] if sum(len(term) for term in quad if term) <= QUAD_CHARACTERS_MAX]


def _members(value: msgspec.Struct) -> dict[str, Any]:
    found = msgspec.to_builtins(value)
    return {name: _shorten(text) if isinstance(text, str) else text for name, text in found.items()}


def _subscription(value: Any) -> dict[str, Any]:
    """Without the spuid, whose knowledge is enough to resume the subscription."""
    return {"spuid": public_spuid(value.spuid), "sparql": _shorten(value.sparql), "keep_us": value.keep_us}


_TOLD: dict[str, Callable[[Any], dict[str, Any]]] = {"timer": _members, "gap": _members, "subscribe": _subscription}


def _shorten(text: str) -> str:
    return cut(text, TEXT_CHARACTERS_MAX)


_encode = msgspec.json.Encoder().encode
