"""How the reactions of applications end, for the health of each application.

A reaction is an aggregator's member, such as ``lamp/added``. It counts as failing from a failure until `RECOVERED`
successes in a row. A reaction with a delay succeeds or fails when its delayed update runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lamplighter.engine.change_log import Cause
from lamplighter.gateway.state.applications import KIND, Application

RECOVERED = 3  # successes in a row after which a reaction that failed is well again
_REASON_CHARACTERS_MAX = 300


@dataclass(slots=True)
class ReactionOutcome:
    """Of one reaction, since the start. update, query: their names in the profile. ran: whether it has succeeded or
    failed; last_failed: whether its last run failed; well: successes since the last failure, None if it never failed;
    reason: of the last failure."""

    update: str
    query: str
    ran: bool = False
    last_failed: bool = False
    well: int | None = None
    reason: str = ""

    @property
    def failing(self) -> bool:
        return self.well is not None and self.well < RECOVERED

    def note_success(self) -> None:
        self.ran, self.last_failed = True, False
        if self.well is not None:
            self.well += 1

    def note_failure(self, error: Exception) -> None:
        # From nothing again: three successes in a row, and no three of many, are a recovery.
        self.ran, self.last_failed, self.well = True, True, 0
        # One line, for the journal and for a line of the status.
        self.reason = (" ".join(str(error).split()) or type(error).__name__)[:_REASON_CHARACTERS_MAX]


@dataclass(slots=True)
class ApplicationOutcomes:
    """Of one application, since the start. reactions: those that were recorded; failed: of these, those without effect
    because of an error; refused: its delayed updates that failed when they were due; remedy: for people."""

    by_reaction: dict[str, ReactionOutcome]
    remedy: str = ""
    reactions: int = 0
    failed: int = 0
    refused: int = 0

    @classmethod
    def of(cls, application: Application) -> ApplicationOutcomes:
        return cls(
            {
                f"{name}/{member}": ReactionOutcome(update, aggregator.query)
                for name, aggregator in application.profile.aggregators.items()
                for member, update in (("added", aggregator.added), ("removed", aggregator.removed))
                if update is not None
            },
            application.remedy,
        )

    def state(self) -> Literal["ok", "degraded", "failed"]:
        """failed: the last run of every reaction that ran failed. degraded: some are failing."""
        ran = [one for one in self.by_reaction.values() if one.ran]
        if not any(one.failing for one in ran):
            return "ok"
        return "failed" if all(one.last_failed for one in ran) else "degraded"

    def failing(self) -> Iterator[tuple[str, ReactionOutcome]]:
        """The failing reactions with their names; those whose last run failed come first."""
        found = [(name, one) for name, one in self.by_reaction.items() if one.failing]
        yield from sorted(found, key=lambda pair: not pair[1].last_failed)


@dataclass
class Outcomes:
    """The outcomes of the declared applications by name. Causes of others, such as removed ones, are not counted."""

    applications: dict[str, ApplicationOutcomes] = field(default_factory=dict)

    @classmethod
    def of(cls, applications: Sequence[Application]) -> Outcomes:
        return cls({application.name: ApplicationOutcomes.of(application) for application in applications})

    def declare(self, applications: Iterable[Application], begun: Container[Application]) -> None:
        """Takes up other applications. Those that begin do so without outcomes."""
        self.applications = {
            one.name: ApplicationOutcomes.of(one) if one in begun else self.applications[one.name]
            for one in applications
        }

    def note_reaction(self, cause: Cause) -> None:
        for application, _ in self._of(cause):
            application.reactions += 1

    def note_success(self, cause: Cause | None) -> None:
        for _, reaction in self._of(cause):
            reaction.note_success()

    def note_failure(self, cause: Cause, error: Exception) -> None:
        for application, reaction in self._of(cause):
            application.failed += 1
            reaction.note_failure(error)

    def note_refusal(self, cause: Cause | None, error: Exception) -> None:
        """Notes a delayed update of a reaction that failed when it was due."""
        for application, reaction in self._of(cause):
            application.refused += 1
            reaction.note_failure(error)

    def _of(self, cause: Cause | None) -> Iterator[tuple[ApplicationOutcomes, ReactionOutcome]]:
        """What a cause belongs to, if it is a reaction of a declared application."""
        if cause is None or cause.kind != KIND or cause.seq is None:
            return
        name, _, reaction = cause.id.partition("/")
        application = self.applications.get(name)
        if application is not None and reaction in application.by_reaction:
            yield application, application.by_reaction[reaction]
