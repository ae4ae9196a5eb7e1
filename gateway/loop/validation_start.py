"""Begins validation by SHACL shapes (``[shacl]``), with a commit of the violations that are there.

Violations are quads in the log like all others, so recovery needs no shapes. Validation begins behind the inferred
triples, and before anything else is done. Usually nothing has to be changed then. If shapes or settings differ from
those of the last run, the commit has the difference, with the cause ``{"kind": "shacl", "id": "start"}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.engine.access import VIOLATIONS
from lamplighter.engine.change_log import Cause
from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ConfigurationError, InvalidShapesError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.gateway.loop.commits import Commits
from lamplighter.gateway.loop.slices import LoopSlices

if TYPE_CHECKING:
    from lamplighter.engine.shacl.sources import ShapeSources

KIND = "shacl"
"""The kind of the cause."""

logger = EventLogger(__name__)


class ValidationStart:
    """Begins validation once. sources: None for no validation."""

    def __init__(self, engine: Engine, commits: Commits, slices: LoopSlices, sources: ShapeSources | None) -> None:
        self._engine = engine
        self._commits = commits
        self._slices = slices
        self._sources = sources

    def begin(self) -> None:
        """Raises ChangeLogError, and is called again then; ConfigurationError for a shapes graph that is not valid, and
        for more violations than a record may have."""
        engine = self._engine
        if self._sources is None:
            if engine.store.has_graph(VIOLATIONS):
                self._commit(QuadDelta(removed=tuple(engine.store.quads(VIOLATIONS)), dropped=(VIOLATIONS,)))
            return
        self._slices.begin(LONG)
        try:
            validation = engine.new_validation(self._sources)
        except InvalidShapesError as error:
            raise ConfigurationError(
                f"shacl.graph: {error}; start without it, correct the graph, and name it again"
            ) from error
        try:
            self._commit(validation.difference())
        except LimitExceededError as error:
            validation.close()
            raise ConfigurationError(f"shacl.shapes: {error}; or name fewer of them") from error
        except BaseException:
            validation.close()
            raise
        engine.begin_validation(validation)

    def _commit(self, delta: QuadDelta) -> None:
        if delta.changes:
            commit = self._commits.commit(delta, Cause(KIND, "start"))
            logger.info(
                "violations changed", sequence=commit.sequence, removed=len(delta.removed), added=len(delta.added)
            )
