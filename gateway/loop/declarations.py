"""Which applications run: those of ``apps/``, which a reload reads again, and stored ones, which requests change.

::

    PUT, DELETE, restore ─▶ applications.json ─┐
    reload ─▶ files of apps/ ──────────────────┴─▶ one step of the loop: ends and beginnings, as a start records them

The file is durable before the step, so a kill between them leaves the step to the next start. Changes come one after
another. What old versions have to do for earlier commits is done before, and what changed while an application was not
declared is not made up for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from lamplighter.engine.errors import ChangeLogError, RequestError
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.loop.aggregators import Aggregators
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.loop.queue import Queue
from lamplighter.gateway.loop.reactions import Reactions
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from lamplighter.gateway.state.applications import KIND, Application, DeclaredApplications
from lamplighter.gateway.state.outcomes import ApplicationOutcomes
from lamplighter.gateway.state.stored_applications import StoredApplication, StoredApplications, check_amount, readable

_Outcome = TypeVar("_Outcome")
_AGAIN_S = 1.0


class FileConflictError(RequestError):
    """An application cannot be stored or removed, since it is a file."""

    code = "conflict"
    status = 409


class ChangedApplication(NamedTuple):
    """What became of a change. created, changed: whether it is new, and whether it differs from what was there; place:
    of the last record behind it."""

    created: bool
    changed: bool
    place: Place


class ApplicationDeclarations:
    """Changes the applications that run. declared: is updated with each change. stored: the file of those that are not
    in ``apps/``. faults: why some of these do not run, by name."""

    def __init__(
        self,
        files: Sequence[Application],
        stored: StoredApplications,
        queue: Queue,
        ledger: Ledger,
        aggregators: Aggregators,
        reactions: Reactions,
    ) -> None:
        self._files = files
        self.stored = stored
        self._queue = queue
        self._ledger = ledger
        self._aggregators = aggregators
        self._reactions = reactions
        self._readable, self.faults = readable(stored.applications)
        self.declared = DeclaredApplications(files, self._readable)
        self._changing = asyncio.Lock()
        self._retrying = False

    # --- changes ---

    async def reload(self, files: Sequence[Application]) -> None:
        """Takes up what ``apps/`` has now; those that had failed begin again. The outcome is there when the records are
        durable. Raises ChangeLogError; it can be repeated."""

        async def reload() -> None:
            self._files = files
            await self._take(None)

        await self._in_turn(reload())

    async def store(self, application: StoredApplication) -> ChangedApplication:
        """Stores an application that can be read, and has it begin; the outcome is there when that is durable.

        Raises FileConflictError, JsapError, LimitExceededError; ChangeLogError, behind which it may be stored, and then
        begins before the next request."""

        async def change() -> ChangedApplication:
            name, before = application.name, self.stored.get(application.name)
            after = await asyncio.to_thread(self.check, application)
            if before is not None and before == msgspec.structs.replace(application, changed=before.changed):
                return ChangedApplication(False, False, await self._take({name}))
            await self._store(after)
            changed = before is None or before.profile != application.profile
            return ChangedApplication(before is None, changed, await self._take({name}))

        await asyncio.to_thread(application.application)  # it is known to be readable before anything is changed
        return await self._in_turn(change())

    def check(self, application: StoredApplication) -> list[StoredApplication]:
        """What would be stored with it. Raises FileConflictError, LimitExceededError."""
        name = application.name
        self._check_no_file(name, f"edit apps/{name}.jsap and reload the gateway, or choose another name")
        after = [*(one for one in self.stored.applications if one.name != name), application]
        check_amount(after)
        return after

    async def remove(self, name: str) -> Place | None:
        """Ends a stored application; None if there is none. Its delayed updates stay pending. Raises as `store`."""

        async def remove() -> Place | None:
            if self.stored.get(name) is None:
                self._check_no_file(name, f"remove apps/{name}.jsap, and reload the gateway")
                return None
            await self._store([one for one in self.stored.applications if one.name != name])
            return await self._take({name})

        return await self._in_turn(remove())

    async def replace(self, applications: Iterable[StoredApplication]) -> None:
        """Makes the stored applications those of a backup. Raises LimitExceededError, ChangeLogError."""

        async def replace() -> None:
            before = {one.name: one.profile for one in self.stored.applications}
            after = tuple(applications)
            await self._store(after)
            await self._take({one.name for one in after if before.get(one.name) != one.profile})

        await self._in_turn(replace())

    async def _in_turn(self, change: Coroutine[None, None, _Outcome]) -> _Outcome:
        """One change after another, each to its end: file and loop must not differ because a client went away."""

        async def whole() -> _Outcome:
            async with self._changing:
                return await change

        return await asyncio.shield(asyncio.ensure_future(whole()))

    def _check_no_file(self, name: str, remedy: str) -> None:
        if name in self.declared.files:
            raise FileConflictError(f"{name} is a file, apps/{name}.jsap; {remedy}")

    async def _store(self, applications: Iterable[StoredApplication]) -> None:
        await asyncio.to_thread(self.stored.write, applications)
        self._readable, self.faults = await asyncio.to_thread(readable, self.stored.applications)

    def _take(self, names: Collection[str] | None) -> asyncio.Future[Place]:
        """Has the loop take up what is declared. names: of those that begin again if they were stopped; None: all."""
        return self._queue.post(partial(self._redeclare, DeclaredApplications(self._files, self._readable), names))

    def _redeclare(self, declared: DeclaredApplications, names: Collection[str] | None) -> Place:
        try:
            self._reactions.new_request()
            register, applications = self._ledger.knowledge.register, declared.declared
            begun = self._aggregators.redeclare(applications, register, names)
            self._reactions.outcomes.declare(applications, begun)
            self.declared.files, self.declared.declared = declared.files, applications
            self._reactions.flush_pending()
        except ChangeLogError:
            self._retry_later()
            raise
        return self._ledger.log.epoch, self._ledger.log.sequence

    def _retry_later(self) -> None:
        """Tries again soon: what is in the file runs without a further request."""
        if not self._retrying:
            self._retrying = True
            asyncio.get_running_loop().call_later(_AGAIN_S, self._queue.post, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        with suppress(ChangeLogError):  # which has arranged the next try
            self._redeclare(DeclaredApplications(self._files, self._readable), None)

    # --- state ---

    def is_waiting(self, application: Application) -> bool:
        """Whether the log does not have its beginning yet, or any more."""
        return not self._ledger.knowledge.register.has(application)

    def outcomes(self, name: str) -> ApplicationOutcomes | None:
        """How its reactions ended since the start."""
        return self._reactions.outcomes.applications.get(name)

    async def pending(self, name: str) -> int:
        """How many delayed updates of an application are pending."""
        pending, begin = list(self._ledger.knowledge.delayed.pending.values()), f"{name}/"

        def count() -> int:
            causes = (one.record.cause for one in pending)
            return sum(cause is not None and cause.kind == KIND and cause.id.startswith(begin) for cause in causes)

        return await asyncio.to_thread(count)  # of 100,000 it takes 60 ms

    def components(self) -> list[Component]:
        """The stored applications that do not run, for the health of the gateway."""
        found = [
            not_ok(
                f"application/{name}",
                "failed",
                f"it cannot be read: {fault}",
                f"put it again: lamplighter apps put {name}",
            )
            for name, fault in self.faults.items()
        ]
        for one in self.stored.applications:
            if one.name in self.declared.files:
                reason = f"it is stored too, and apps/{one.name}.jsap is run instead"
                cure = f"remove that file, or the stored one: lamplighter apps remove {one.name}"
                found.append(not_ok(f"application/{one.name}", "degraded", reason, cure))
        return found
