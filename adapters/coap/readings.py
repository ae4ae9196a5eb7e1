"""Readings that devices send to the CoAP server: POST and PUT to the paths of `[[stream]]` rules.

A request is answered with 2.04 after its readings are durable. If one of its values cannot be read, none is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.links import Link
from lamplighter.adapters.coap.registrations import machine_of
from lamplighter.adapters.coap.serving import (
    SiteAnswer,
    SiteCaller,
    SiteEntry,
    SiteMethod,
    SitePath,
    SiteRefusal,
    SiteRequest,
)
from lamplighter.adapters.mapping import PathRule, ReadingRules
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mapping.resources import FORMAT_NUMBERS
from lamplighter.adapters.mapping.rules import changed_reads
from lamplighter.adapters.model.commits import BATCH_READINGS_MAX, HELD_CHECK_S, ReadingCommits, StreamOwners, Writing
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.bodies import read_body
from lamplighter.adapters.resources.counters import ReadingCounters
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.pacing import TokenBuckets

# Readings that wait for the gateway; further requests get 5.03.
WAITING_READINGS_MAX = 20_000
# After so long a request gets 5.03. Its readings may be written nevertheless.
COMMIT_S = 30.0
RETRY_AFTER_S = 10
# Unreadable requests of one source that are warned of; others are only counted. So many sources are remembered.
WARNINGS_PER_S, WARNINGS_BURST, WARNINGS_SOURCES_MAX = 1 / 60, 20, 1_000
# Sets of rules that cover a path together, with their caches.
SETS_MAX = 256


@dataclass(slots=True, eq=False)
class _Post:
    """The readings of a request. done: the reason why the gateway refused one of them, or ""."""

    readings: list[Reading]
    done: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Covering(NamedTuple):
    """The rules that cover a path. names: devices that may write, None: every one."""

    rules: tuple[PathRule, ...]
    methods: frozenset[str]
    names: frozenset[str] | None


class PostedReadings:
    """Takes the readings of devices, while `run` runs.

    commits: of these readings alone, or of readings that other tasks of the adapter write too. warn: takes path and
    reason of what is dropped.
    """

    def __init__(
        self,
        commits: ReadingCommits,
        owners: StreamOwners,
        counters: ReadingCounters,
        context: AdapterContext,
        warn: Callable[[str, str], None],
    ) -> None:
        self.counters = counters
        self._commits, self._owners = commits, owners
        self._client, self._warn = context.client, warn
        self._clock, self._trusted = context.now, context.trusted
        self._rules: ReadingRules[PathRule] = ReadingRules(())
        self._sets: dict[tuple[PathRule, ...], ReadingRules[PathRule]] = {}
        self._warned = TokenBuckets(WARNINGS_PER_S, WARNINGS_BURST, WARNINGS_SOURCES_MAX, forgets=False)
        self._waiting: deque[_Post] = deque()
        self._waiting_readings = 0
        self._arrived = asyncio.Event()

    def change_rules(self, rules: Sequence[PathRule]) -> None:
        """Puts other rules into force."""
        changed = changed_reads(self._rules.rules, rules)
        self._rules = ReadingRules(rules)
        self._sets.clear()
        self._commits.describe_again(self._owners.forget(changed))

    async def run(self) -> None:
        """Writes readings until cancelled."""
        while True:
            if not self._waiting:
                with suppress(TimeoutError):  # readings that are held back are due some time
                    async with asyncio.timeout(HELD_CHECK_S if self._commits.repeats.held else None):
                        await self._arrived.wait()
            self._arrived.clear()
            posts: list[_Post] = []
            readings: list[Reading] = []
            while self._waiting and len(readings) < BATCH_READINGS_MAX:
                posts.append(self._waiting.popleft())
                readings += posts[-1].readings
            self._waiting_readings -= len(readings)
            await self._write(posts, self._commits.selected(readings, self._clock()))

    async def _write(self, posts: Sequence[_Post], readings: Sequence[Reading]) -> None:
        writing = Writing()
        await self._commits.write(readings, writing, None)
        writing.settled.set()
        refused = {reading.request_id: str(error) for reading, error in writing.refused}
        for post in posts:
            if not post.done.done():
                reasons = (refused.get(reading.request_id, "") for reading in post.readings)
                post.done.set_result(next(filter(None, reasons), ""))

    # --- the resource ---

    def entry(self, path: SitePath) -> SiteEntry | None:
        found = self._covering("/".join(path))
        if found is None:
            return None

        def takes(content_format: int | None) -> bool:
            return any(_reads(rule, content_format) for rule in found.rules)

        method = SiteMethod(self._handle, takes)
        return SiteEntry(
            dict.fromkeys(found.methods, method),
            permits=lambda caller: found.names is None or caller.device in found.names,
            body_bytes_max=PAYLOAD_BYTES_MAX,
        )

    def links(self, caller: SiteCaller) -> Iterable[Link]:
        """The paths that are the same for all devices."""
        if not caller.permitted:
            return
        literal = [rule for rule in self._rules.rules if None not in rule.pattern.levels and not rule.pattern.rest]
        for path in dict.fromkeys(rule.table.path for rule in literal):
            found = self._covering(path)
            if found is None or (found.names is not None and caller.device not in found.names):
                continue
            numbers = {FORMAT_NUMBERS[name] for rule in found.rules for name in rule.accepted.names}
            yield Link(quote(f"/{path}"), (("ct", " ".join(map(str, sorted(numbers)))),))

    def _covering(self, path: str) -> _Covering | None:
        rules = tuple(self._rules.covering(path))
        if not rules:
            return None
        everyone = any(not rule.table.devices for rule in rules)
        return _Covering(
            rules,
            frozenset(method for rule in rules for method in rule.table.methods),
            None if everyone else frozenset(name for rule in rules for name in rule.table.devices),
        )

    async def _handle(self, request: SiteRequest) -> SiteAnswer:
        if not self._client.connected or self._waiting_readings >= WAITING_READINGS_MAX:  # reading them takes long
            raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_AFTER_S)
        path = "/".join(request.path)
        try:
            readings = self._readings(path, request)
        except PayloadError as error:
            self.counters.unreadable += 1
            source = request.caller.device if request.caller.protected else machine_of(request.caller)
            if not self._warned.take(source, asyncio.get_running_loop().time()):
                self._warn(path, str(error))
            raise SiteRefusal(Code.BAD_REQUEST, str(error)) from error
        if not readings:
            return SiteAnswer(Code.CHANGED)
        if self._waiting_readings + len(readings) > WAITING_READINGS_MAX:
            raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_AFTER_S)
        post = _Post(readings)
        self._waiting.append(post)
        self._waiting_readings += len(readings)
        self._arrived.set()
        try:
            async with asyncio.timeout(COMMIT_S):
                refused = await post.done
        except TimeoutError as error:
            raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=RETRY_AFTER_S) from error
        if refused:
            raise SiteRefusal(Code.BAD_REQUEST, refused)
        return SiteAnswer(Code.CHANGED)

    def _readings(self, path: str, request: SiteRequest) -> list[Reading]:
        """The readings of a request by the rules that are for it. Raises SiteRefusal, PayloadError."""
        covering = self._covering(path)
        permitted = [
            rule
            for rule in (() if covering is None else covering.rules)
            if request.method in rule.table.methods
            and (not rule.table.devices or request.caller.device in rule.table.devices)
        ]
        if not permitted:
            raise SiteRefusal(Code.FORBIDDEN)
        usable = tuple(rule for rule in permitted if _reads(rule, request.content_format))
        if not usable:
            raise SiteRefusal(Code.UNSUPPORTED_CONTENT_FORMAT)
        rules = self._sets.get(usable)
        if rules is None:
            if len(self._sets) >= SETS_MAX:
                self._sets.clear()
            rules = self._sets[usable] = ReadingRules(usable)
        body = read_body(request.body, request.content_format, usable[0].accepted)
        found = rules.readings(path, body, retained=False, received=self._clock(), trusted=self._trusted())
        readings = []
        for number, reading in enumerate(found):
            if isinstance(reading, PayloadError):
                raise reading
            if not self._owners.may_write("", reading):
                self.counters.refused += 1
                raise SiteRefusal(Code.FORBIDDEN, "the stream belongs to another source")
            readings.append(reading._replace(request_id=f"{request.id}-{number}"))
        return readings


def _reads(rule: PathRule, content_format: int | None) -> bool:
    try:
        rule.accepted.form(content_format)
    except PayloadError:
        return False
    return True
