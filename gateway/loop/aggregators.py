"""Aggregators of applications: their subscriptions, and what follows from them (`gateway.state.applications`).

Nothing here writes to the log: `gateway.loop.reactions` records what is pending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress

from lamplighter.engine.core import Engine, Notification, Subscription
from lamplighter.engine.errors import BrokenEngineError, GatewayError, LimitExceededError, UnknownSpuidError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.loop.obligations import Obligations
from lamplighter.gateway.loop.queue import LiveSettings
from lamplighter.gateway.monitoring.health.components import Reports, State
from lamplighter.gateway.state.applications import Application, ApplicationRegistry, aggregator_queries, triggers

logger = EventLogger(__name__)

INTERRUPTIONS_MAX = 3
"""How often an application begins again whose query went over its limit."""


class Aggregators:
    """Owns the subscriptions of applications.

    subscriptions: by the engine's spuid, the application and its aggregator. queries: the texts of the same.
    """

    def __init__(self, engine: Engine, current: LiveSettings, reports: Reports, obligations: Obligations) -> None:
        self._engine = engine
        self._current = current
        self._reports = reports
        self.subscriptions: dict[str, tuple[Application, str]] = {}
        self.queries: dict[str, str] = {}
        self._obligations = obligations
        self._interruptions: Counter[str] = Counter()  # by application, since the start

    # --- beginnings ---

    def subscribe(self, application: Application) -> list[tuple[str, Subscription]]:
        """The subscriptions of an application, by aggregator."""
        found = []
        for aggregator, text in aggregator_queries(application):
            subscription = self._engine.subscribe(text)
            self.subscriptions[subscription.spuid] = (application, aggregator)
            self.queries[subscription.spuid] = self._engine.describe(subscription.spuid).text
            found.append((aggregator, subscription))
        return found

    def resume(self, application: Application) -> None:
        """Subscribes an application that began before this start. One that cannot be subscribed is stopped."""
        try:
            self.subscribe(application)
        except Exception as error:
            self.stop_unable(application, error)

    def begin(self, application: Application, sequence: int) -> None:
        """Subscribes an application that begins with the record of that sequence. Its first results may be declared
        to count as added by it. One that cannot be subscribed is stopped."""
        try:
            found = self.subscribe(application)
        except BrokenEngineError:
            raise
        except Exception as error:
            self.stop_unable(application, error)
            return
        for aggregator, subscription in found:
            if application.profile.aggregators[aggregator].first_results:
                first = subscription.first
                new = triggers(application, aggregator, sequence, first, first - first)
                self._obligations.add(self._obligations.reactions, new)

    def expect(
        self, waiting: Sequence[Application], declared: Sequence[Application], register: ApplicationRegistry
    ) -> None:
        """Those that begin now, and the end of those that are not declared any more."""
        names = {application.name for application in declared}
        self._obligations.add(self._obligations.beginning, waiting)
        self._obligations.add(self._obligations.ending, [name for name in register.names() if name not in names])

    def redeclare(
        self, declared: Sequence[Application], register: ApplicationRegistry, names: Collection[str] | None = None
    ) -> list[Application]:
        """Takes up what is declared now, as a start would: those that begin, which are returned, and the end of those
        that are gone. Another version leaves its place to the new one. names: of those that begin again if they were
        stopped; None: all."""
        for application in [owner for owner, _ in self.subscriptions.values() if owner not in declared]:
            self._leave(application)
        waiting = [
            application
            for application in declared
            if not register.has(application) and (names is None or application.name in names)
        ]
        for application in waiting:
            self._interruptions.pop(application.name, None)
            self._reports.forget(f"application/{application.name}")
        self.expect(waiting, declared, register)
        return waiting

    # --- commits ---

    def enqueue(self, notification: Notification, sequence: int) -> bool:
        """Whether a notification is an application's. The reactions to its triggers are pending from now on."""
        aggregator = self.subscriptions.get(notification.spuid)
        if aggregator is None:
            return False
        new = triggers(*aggregator, sequence, notification.added, notification.removed)
        self._obligations.add(self._obligations.reactions, new)
        return True

    # --- ends ---

    def end_lost(self, spuid: str, error: GatewayError) -> None:
        """The engine has ended a subscription. Its application, if it is one's, is stopped, or begins again if the
        query was only too costly."""
        if spuid not in self.subscriptions:
            return
        application = self.subscriptions[spuid][0]
        if isinstance(error, LimitExceededError):
            self._interrupt(application, error)
        else:
            self.stop(application, f"it was stopped: {error}")

    def _interrupt(self, application: Application, error: LimitExceededError) -> None:
        """Ends an application one of whose queries went over the limit, and has it begin again.

        Its reactions to earlier commits, and by its other queries for this one, are done before. What the query would
        have triggered by this commit is lost, and the log says so: the application ended and began behind it.
        """
        self._begin_again(application, "a query exceeded its limit, and its reactions did not run", error)

    def interrupt_reactions(self, application: Application, error: LimitExceededError) -> None:
        """Does the same with one whose reactions to one request take too long. Those that are left are lost."""
        self._obligations.drop(application)
        self._begin_again(application, "reactions did not run", error)

    def _begin_again(self, application: Application, problem: str, error: LimitExceededError) -> None:
        name = application.name
        self._interruptions[name] += 1
        again = self._interruptions[name] <= INTERRUPTIONS_MAX
        self._leave(application)
        self._obligations.add(self._obligations.stopped, [application])
        if again:
            self._obligations.add(self._obligations.beginning, [application])
        stopped = "" if again else "; the application was stopped until the next start or reload"
        self._report(application, "degraded" if again else "failed", f"{problem}{stopped}: {error}")
        logger.error("application over the limit", name=name, begins_again=again, reason=error)

    def stop_unable(self, application: Application, error: Exception) -> None:
        """Stops an application whose queries cannot be subscribed to."""
        unexpected = not isinstance(error, GatewayError)
        self.stop(application, f"it was stopped: {error}", unexpected)

    def stop(self, application: Application, problem: str, unexpected: bool = False) -> None:
        """Stops an application until the next start or reload. problem: for its health."""
        self._report(application, "failed", problem)
        logger.error("application stopped", name=application.name, reason=problem, exc_info=unexpected)
        self._obligations.drop(application)
        self._leave(application)
        self._obligations.add(self._obligations.stopped, [application])

    def _leave(self, application: Application) -> None:
        for spuid, (owner, _) in list(self.subscriptions.items()):
            if owner == application:
                del self.subscriptions[spuid], self.queries[spuid]
                with suppress(UnknownSpuidError):  # the engine itself has ended it
                    self._engine.unsubscribe(spuid)

    def slow(self, text: str, ms: float) -> None:
        """Reports the applications whose query is that text, which is too slow at commit after commit."""
        for spuid, (application, _) in self.subscriptions.items():
            if self.queries[spuid] == text:
                name = application.name
                logger.warning("application's subscription is slow", name=name, evaluation_ms=round(ms))
                limit = self._current.settings.limits.evaluation_ms_max
                self._report(
                    application,
                    "degraded",
                    f"a query takes longer than limits.evaluation_ms_max = {limit} at commit after commit",
                )

    def _report(self, application: Application, state: State, reason: str) -> None:
        self._reports.add(f"application/{application.name}", state, reason, application.remedy)
