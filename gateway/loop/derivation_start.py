"""Inference and validation at the start: one commit each brings the derived graphs in line with dataset and settings.

Inferred triples and violations are in the log like all other quads, so recovery needs neither rules nor shapes. They
begin behind the reactions that the last run left, and before anything else is done: inference first, then validation.
Usually nothing has to be changed then. If settings, shapes, or rules of a newer version differ, the commit has the
difference, with the cause ``{"kind": "inference", "id": "start"}``, or ``"shacl"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.engine.access import INFERRED, VIOLATIONS
from lamplighter.engine.change_log import Cause
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ConfigurationError, InvalidShapesError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.gateway.loop.ledger import Ledger
from lamplighter.gateway.settings.reasoning import InferenceSettings, graph_terms

if TYPE_CHECKING:
    from lamplighter.engine.shacl.sources import ShapeSources

INFERENCE = "inference"
VALIDATION = "shacl"
"""The kinds of the causes."""

logger = EventLogger(__name__)


class InferenceStart:
    """Begins inference once."""

    def __init__(self, ledger: Ledger, settings: InferenceSettings) -> None:
        self._ledger = ledger
        self._settings = settings

    def begin(self) -> None:
        """Raises ChangeLogError, and is called again then; ConfigurationError for more than a record may have."""
        engine, graphs = self._ledger.engine, graph_terms(self._settings.graphs)
        if not graphs and not any(name.startswith(INFERRED) for name in engine.store.graphs()):
            return
        self._ledger.slicer.begin(LONG)
        inference = engine.new_inference(graphs, graph_terms(self._settings.ontologies))
        try:
            delta = inference.difference()
            if delta.changes:
                commit = self._ledger.commit(delta, Cause(INFERENCE, "start"))
                logger.info(
                    "inferred graphs changed",
                    sequence=commit.sequence,
                    removed=len(delta.removed),
                    added=len(delta.added),
                )
        except LimitExceededError as error:
            inference.close()
            raise ConfigurationError(
                f"inference.graphs: {error}; or name fewer graphs or ontologies, and the others at a later start"
            ) from error
        except BaseException:
            inference.close()
            raise
        engine.begin_inference(inference)


class ValidationStart:
    """Begins validation once. sources: None for no validation."""

    def __init__(self, ledger: Ledger, sources: ShapeSources | None) -> None:
        self._ledger = ledger
        self._sources = sources

    def begin(self) -> None:
        """Raises ChangeLogError, and is called again then; ConfigurationError for a shapes graph that is not valid, and
        for more violations than a record may have."""
        engine = self._ledger.engine
        if self._sources is None:
            if engine.store.has_graph(VIOLATIONS):
                self._commit(QuadDelta(removed=tuple(engine.store.quads(VIOLATIONS)), dropped=(VIOLATIONS,)))
            return
        self._ledger.slicer.begin(LONG)
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
            commit = self._ledger.commit(delta, Cause(VALIDATION, "start"))
            logger.info(
                "violations changed", sequence=commit.sequence, removed=len(delta.removed), added=len(delta.added)
            )
