"""What clients ask of the past: each request is answered by a fork that reads the data folder, never by the loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import BinaryIO

import msgspec

from lamplighter.engine.access import Graphs
from lamplighter.engine.change_log import Record, decode
from lamplighter.engine.errors import (
    ChangeLogError,
    ConfigurationError,
    LimitExceededError,
    MalformedRequestError,
    QueueFullError,
    UnknownResourceError,
)
from lamplighter.engine.sparql.clock_function import query_at
from lamplighter.engine.sparql.requests import QueryOutline, parse_query
from lamplighter.engine.terms import Term
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.history.chain_texts import as_json
from lamplighter.gateway.history.changes import (
    LOST,
    SCANNED_MAX,
    TOO_LARGE,
    LoggedChange,
    LogPosition,
    ResetError,
    before,
    part_behind,
    part_of,
    position_of,
)
from lamplighter.gateway.history.charts import ChartRange, chart_of
from lamplighter.gateway.history.explanation import Explainer, full_iri, query_texts
from lamplighter.gateway.history.log_page import RECORDS_MAX, LogRange, error_text, page, page_of
from lamplighter.gateway.history.logbook import LabelledNames, LogbookRange, logbook_of
from lamplighter.gateway.history.names import Names
from lamplighter.gateway.history.records import History, is_time
from lamplighter.gateway.history.rehearsal_outcome import begin_of, rehearse
from lamplighter.gateway.log.snapshots import Place, label
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.queue import LiveSettings
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.sharing import ClientTurns, TotalBudget
from lamplighter.gateway.state.applications import Application, DeclaredApplications
from lamplighter.gateway.workers.ad_hoc import Reader, write_answer


@dataclass(frozen=True)
class PastQuery:
    """A query and the record of its dataset, as `History.record_of` takes it. media_type, default_graphs,
    named_graphs: as for `Queries.query`."""

    outline: QueryOutline
    at: str
    media_type: str
    default_graphs: Sequence[Term] | None
    named_graphs: Sequence[Term] | None


@dataclass(frozen=True)
class ChangesAsked:
    """Changes behind a position, of some graphs. limit: how many; write: their bytes, also called in a fork."""

    after: LogPosition
    visible: Graphs
    limit: int
    write: Callable[[Sequence[LoggedChange]], bytes]


@dataclass(frozen=True)
class ChangesFound:
    """count: of changes; body: their bytes; at, ended: as in `ChangesPart`."""

    count: int
    body: bytes
    at: LogPosition
    ended: bool


class _ChangesHead(msgspec.Struct, frozen=True):
    """What a fork tells before the bytes of changes."""

    count: int
    at: LogPosition
    ended: bool
    reset: str


class Past:
    """The past of a running gateway."""

    def __init__(
        self, reader: Reader, log: LogWriter, clock: Clock, current: LiveSettings, applications: DeclaredApplications
    ) -> None:
        self._reader = reader
        self._current = current
        self._applications = applications
        self._log = log
        self._clock = clock
        self._rebuilding = ClientTurns(1)  # a dataset in memory besides the current one
        self._asking = TotalBudget(lambda: ASKING_MAX, "the number of queries of the past that may wait")
        self._verified: OrderedDict[LogPosition, None] = OrderedDict()  # positions that the log has

    async def position(self, place: Place, caller: Caller) -> LogPosition:
        """The position behind an acknowledged record that is kept. Raises as `records`."""
        if place[1] == 0:
            return LogPosition(place)
        lines = self._log.tail.behind(before(place), 1)
        if lines:
            return self._verify(position_of(decode(lines[0][:-1])))

        def find(history: History) -> bytes:
            return _encode(position_of(next(history.records(before(place), place))))

        return self._verify(_decode_position(await self._answer_of(find, caller)))

    async def changes(self, asked: ChangesAsked, caller: Caller) -> ChangesFound:
        """The first changes behind a position; the newest records are read from memory.

        Raises ResetError for a position that cannot be continued, QueueFullError, StoreError.
        """
        after, newest = asked.after, self._log.tail.acknowledged
        if after.place > newest:
            raise ResetError(LOST)
        verified = after in self._verified
        lines = self._log.tail.behind(after.place if verified else before(after.place), SCANNED_MAX)
        if lines is not None and (lines or verified):
            records = map(_record, lines)
            if not verified and position_of(next(records)) != after:
                raise ResetError(LOST)
            part = part_of(records, after, newest, asked.visible, asked.limit)
            _check(part.reset)
            found = ChangesFound(len(part.changes), asked.write(part.changes), part.at, part.ended)
        else:
            found = await self._changes_of_files(asked, newest, caller)
        self._verify(after)
        self._verify(found.at)
        return found

    async def _changes_of_files(self, asked: ChangesAsked, newest: Place, caller: Caller) -> ChangesFound:
        def find(history: History) -> bytes:
            part = part_behind(history, asked.after, newest, asked.visible, asked.limit)
            head = _ChangesHead(len(part.changes), part.at, part.ended, part.reset)
            return _encode(head) + b"\n" + asked.write(part.changes)

        try:
            found = await self._answer_of(find, caller)
        except LimitExceededError as error:
            raise ResetError(TOO_LARGE) from error
        told, _, body = found.partition(b"\n")
        head = _decode_head(told)
        _check(head.reset)
        return ChangesFound(head.count, body, head.at, head.ended)

    def _verify(self, position: LogPosition) -> LogPosition:
        self._verified[position] = None
        self._verified.move_to_end(position)
        if len(self._verified) > _VERIFIED_MAX:
            self._verified.popitem(last=False)
        return position

    async def records(self, wanted: LogRange, caller: Caller) -> bytes:
        """A page of the change log (`LogPage`) as JSON. The newest records are answered from memory.

        Raises UnknownResourceError, QueueFullError, LimitExceededError.
        """
        newest, lines = self._log.tail.acknowledged, None
        bounded = wanted.begin is not None or wanted.to is not None
        if isinstance(wanted.after, tuple) and not bounded and wanted.last is None:
            lines = self._log.tail.behind(wanted.after, RECORDS_MAX + 1)
        elif wanted.last is not None and not bounded and wanted.after is None:
            lines = self._log.tail.newest(wanted.last)
        if lines is not None:
            return _encode(page(map(_record, lines), newest, wanted.quads))
        return await self._answer_of(lambda history: _encode(page_of(history, wanted, newest)), caller)

    async def explanation(
        self,
        name: str,
        until: datetime | None,
        labels: Mapping[Term, str],
        caller: Caller = ANYBODY,
        unknown: str = "",
    ) -> bytes:
        """Why an actuator was switched (`Explainer.explain`), as JSON. name: as `full_iri` takes it. labels: for its
        texts. unknown: the end of the error for a name of which the log has nothing; empty: then the explanation is
        empty.

        Raises MalformedRequestError, UnknownResourceError, QueueFullError, LimitExceededError.
        """
        base_iri = self._current.settings.gateway.base_iri
        try:
            iri = full_iri(name, base_iri)
        except ConfigurationError as error:
            raise MalformedRequestError(str(error)) from error

        def find(history: History) -> bytes:
            explanation = self._explainer(history).explain(iri, until)
            if unknown and not explanation.links:
                raise UnknownResourceError(f"{name}: the log has nothing of it{unknown}")
            return _encode(as_json(explanation, LabelledNames(base_iri, labels)))

        return await self._answer_of(find, caller)

    async def chart(self, wanted: ChartRange, caller: Caller) -> bytes:
        """The values of a series (`chart_of`) as JSON. Raises UnknownResourceError, QueueFullError,
        LimitExceededError."""

        def find(history: History) -> bytes:
            found = chart_of(history.data, wanted)
            if found is None:
                raise UnknownResourceError(f"the change log has no value of {wanted.subject} that you may read")
            return _encode(found)

        return await self._answer_of(find, caller)

    async def logbook(self, wanted: LogbookRange, labels: Mapping[Term, str], caller: Caller) -> bytes:
        """A page of the logbook (`logbook_of`) as JSON. Raises as `chart`."""
        names = LabelledNames(self._current.settings.gateway.base_iri, labels)
        return await self._answer_of(lambda history: _encode(logbook_of(history, wanted, names)), caller)

    async def outcomes(self, count: int, caller: Caller = ANYBODY) -> bytes:
        """The newest outcomes of all actuators (`Explainer.newest`), as JSON."""
        return await self._answer_of(
            lambda history: _encode({"outcomes": self._explainer(history).newest(count)}), caller
        )

    async def rehearsal(self, application: Application, since: str, caller: Caller) -> bytes:
        """What an application would have done (`rehearse`), as JSON, or why that cannot be said. since: as `begin_of`
        takes it. Raises QueueFullError, LimitExceededError."""
        base_iri = self._current.settings.gateway.base_iri

        def find(history: History) -> bytes:
            try:
                outcome = rehearse(history, application, begin_of(history, since, "try"), REHEARSED_MAX)
            except ConfigurationError as error:
                return _encode({"problem": str(error)})
            return _encode(outcome.members(Names(base_iri)))

        return await self._answer_of(find, caller)

    def _explainer(self, history: History) -> Explainer:
        texts = query_texts(self._applications)
        return Explainer(history, lambda application, aggregator: texts.get((application, aggregator), ""))

    async def query(self, query: PastQuery, caller: Caller, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        """The answer of a query on the dataset as of a record, which a fork rebuilds from a snapshot and the log.

        headers: gets the record that was used, before the first bytes. Raises as `Queries.query`, UnknownResourceError
        for a record that is not kept, QueueFullError while too many such queries of the client, or of all, wait: they
        have their turns one after another.
        """
        if why := self._asking.refusal(caller.client):
            raise QueueFullError(f"{why}; try again later")
        with self._asking.hold(caller.client):
            async with self._rebuilding.of(caller.client), aclosing(self._answer(query, caller, headers)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _answer(self, query: PastQuery, caller: Caller, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        work = partial(self._write_answer, query, caller, self._log.tail.acknowledged)
        answer = await self._reader.beside(work, caller.client)
        async with aclosing(answer.chunks()) as chunks:
            begun = b""
            while b"\n" not in begun:
                begun += await anext(chunks)
            head, _, rest = begun.partition(b"\n")
            headers["Lamplighter-At"] = head.decode()
            if rest:
                yield rest
            async for chunk in chunks:
                yield chunk

    def _write_answer(self, query: PastQuery, caller: Caller, newest: Place, out: BinaryIO) -> None:
        """In the fork."""
        parse_query(query.outline.text)  # before the dataset is rebuilt
        try:
            history = History(self._log.data, self._clock)
            found = history.record_of(query.at)
            if found.place > newest:
                if not is_time(query.at):
                    raise UnknownResourceError(
                        f"there is no record {label(found.place)}; the newest is {label(newest)}"
                    )
                found = history.record_of(label(newest))
            engine = history.replay(found.place).engine
        except ChangeLogError as error:
            raise UnknownResourceError(error_text(error)) from error
        text = query.outline.text
        graphs = engine.readable(text, query.default_graphs, query.named_graphs, caller.access)
        asked = replace(query.outline, text=query_at(text, self._clock.wall()))
        head = f"{label(found.place)} {found.ts}".rstrip() + "\n"
        write_answer(
            engine.store.native, asked, query.media_type, *graphs, out, self._current.settings.query, head.encode()
        )

    async def _answer_of(self, find: Callable[[History], bytes], caller: Caller) -> bytes:
        """What a function finds in a fork."""
        answer = await self._reader.beside(partial(self._write, find), caller.client)
        return await answer.whole()

    def _write(self, find: Callable[[History], bytes], out: BinaryIO) -> None:
        try:
            found = find(History(self._log.data, self._clock))
        except ChangeLogError as error:
            raise UnknownResourceError(error_text(error)) from error
        out.write(b"+")
        out.write(found)


def _record(line: bytes) -> Record:
    return decode(line[:-1])


def _check(reset: str) -> None:
    """Raises ResetError for a reason."""
    if reset:
        raise ResetError(reset)


REHEARSED_MAX = 20
"""Reactions of a rehearsal that are listed, the last ones."""
ASKING_MAX = 16
"""Queries of the past that run or wait."""
_VERIFIED_MAX = 256
_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_ChangesHead).decode
_decode_position = msgspec.json.Decoder(LogPosition).decode
