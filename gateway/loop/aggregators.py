"""Aggregators of applications: their subscriptions, and what applications owe (`gateway.state.applications`).

Nothing here writes to the log: `gateway.loop.reactions` records what is owed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress

from lamplighter.engine.change_log import Record
from lamplighter.engine.core import Engine, Notification, Subscription
from lamplighter.engine.errors import BrokenEngineError, GatewayError, LimitExceededError, UnknownSpuidError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.loop.current import Current
from lamplighter.gateway.monitoring.health.components import State
from lamplighter.gateway.monitoring.health.reports import Reports
from lamplighter.gateway.state.applications import Application, Register, Trigger, aggregator_queries, triggers

logger = EventLogger(__name__)

INTERRUPTIONS_MAX = 3
"""How often an application begins again whose query went over its limit."""


class Aggregators:
    """Owns the subscriptions of applications, and what applications owe.

    subscriptions: by the engine's spuid, the application and its aggregator. owed: triggers whose reaction is not
    recorded. beginning, ending, stopped: applications whose beginning, end (of one that is not declared any more) or
    stop is not recorded.
    """

    def __init__(self, engine: Engine, current: Current, reports: Reports) -> None:
        self._engine = engine
        self._current = current
        self._reports = reports
        self.subscriptions: dict[str, tuple[Application, str]] = {}
        self.owed: deque[Trigger] = deque()
        self.beginning: deque[Application] = deque()
        self.ending: deque[str] = deque()
        self.stopped: deque[Application] = deque()
        self._interruptions: Counter[str] = Counter()  # by application, since the start

    # --- beginnings ---

    def subscribe(self, application: Application) -> list[tuple[str, Subscription]]:
        """The subscriptions of an application, by aggregator."""
        found = []
        for aggregator, text in aggregator_queries(application):
            subscription = self._engine.subscribe(text)
            self.subscriptions[subscription.spuid] = (application, aggregator)
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
                self.owed.extend(triggers(application, aggregator, sequence, first, first - first))

    def expect(self, waiting: Sequence[Application], declared: Sequence[Application], register: Register) -> None:
        """After recovery: those that begin now, and the end of those that are not declared any more."""
        names = {application.name for application in declared}
        self.beginning.extend(waiting)
        self.ending.extend(name for name in register.names() if name not in names)

    # --- commits ---

    def owe(self, notification: Notification, sequence: int) -> bool:
        """Whether a notification is an application's. Its triggers are owed from now on."""
        aggregator = self.subscriptions.get(notification.spuid)
        if aggregator is None:
            return False
        self.owed.extend(triggers(*aggregator, sequence, notification.added, notification.removed))
        return True

    def strike_out(self, record: Record) -> None:
        """Strikes out the reaction that a record is, if it is one. The order in which they are owed may differ from
        that of the log: an application that was added later is subscribed in its place since the last start."""
        for place, trigger in enumerate(self.owed):
            if trigger.cause == record.cause:
                del self.owed[place]
                return

    # --- ends ---

    def lost(self, spuid: str, error: GatewayError) -> None:
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

        What it owes by earlier commits, and by its other queries for this one, is done before. What the query would
        have triggered by this commit is lost, and the log says so: the application ended and began behind it.
        """
        name = application.name
        self._interruptions[name] += 1
        again = self._interruptions[name] <= INTERRUPTIONS_MAX
        self._leave(application)
        self.stopped.append(application)
        if again:
            self.beginning.append(application)
        self._report(
            name,
            "degraded" if again else "failed",
            f"a query exceeded its limit, and its reactions did not run"
            f"{'' if again else '; the application was stopped until the next start'}: {error}",
        )
        logger.error("application's query over the limit", name=name, begins_again=again, reason=error)

    def stop_unable(self, application: Application, error: Exception) -> None:
        """Stops an application whose queries cannot be subscribed to."""
        unexpected = not isinstance(error, GatewayError)
        self.stop(application, f"it was stopped: {error}", unexpected)

    def stop(self, application: Application, problem: str, unexpected: bool = False) -> None:
        """Stops an application until the next start. problem: for its health."""
        self._report(application.name, "failed", problem)
        logger.error("application stopped", name=application.name, reason=problem, exc_info=unexpected)
        self.owed = deque(trigger for trigger in self.owed if trigger.application != application)
        self._leave(application)
        self.stopped.append(application)

    def _leave(self, application: Application) -> None:
        for spuid, (owner, _) in list(self.subscriptions.items()):
            if owner == application:
                del self.subscriptions[spuid]
                with suppress(UnknownSpuidError):  # the engine itself has ended it
                    self._engine.unsubscribe(spuid)

    def slow(self, text: str, ms: float) -> None:
        """Reports the applications whose query is that text, which is too slow at commit after commit."""
        for spuid, (application, _) in self.subscriptions.items():
            if self._engine.describe(spuid).text == text:
                name = application.name
                logger.warning("application's subscription is slow", name=name, evaluation_ms=round(ms))
                limit = self._current.settings.limits.evaluation_ms_max
                self._report(
                    name,
                    "degraded",
                    f"a query takes longer than limits.evaluation_ms_max = {limit} at commit after commit",
                )

    def _report(self, name: str, state: State, reason: str) -> None:
        cure = f"correct or narrow down the queries of apps/{name}.jsap, then restart the gateway"
        self._reports.add(f"application/{name}", state, reason, cure)
