"""Inference at the start: one commit brings the inferred graphs in line with the dataset and the settings.

Inferred triples are in the log like all others, so recovery needs no inference. It begins behind the reactions that the
last run left, and before anything else is done. Usually nothing has to be changed then. If graphs in the settings or
rules of a newer version differ, the commit has the difference, with the cause ``{"kind": "inference", "id": "start"}``.
"""

from __future__ import annotations

from lamplighter.engine.access import INFERRED
from lamplighter.engine.change_log import Cause
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ConfigurationError, LimitExceededError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.slices import LONG
from lamplighter.gateway.loop.commits import Commits
from lamplighter.gateway.loop.slices import LoopSlices
from lamplighter.gateway.settings.reasoning import InferenceSettings, graph_terms

KIND = "inference"
"""The kind of the cause."""

logger = EventLogger(__name__)


class InferenceStart:
    """Begins inference once."""

    def __init__(self, engine: Engine, commits: Commits, slices: LoopSlices, settings: InferenceSettings) -> None:
        self._engine = engine
        self._commits = commits
        self._slices = slices
        self._settings = settings

    def begin(self) -> None:
        """Raises ChangeLogError, and is called again then; ConfigurationError for more than a record may have."""
        engine, graphs = self._engine, graph_terms(self._settings.graphs)
        if not graphs and not any(name.startswith(INFERRED) for name in engine.store.graphs()):
            return
        self._slices.begin(LONG)
        inference = engine.new_inference(graphs, graph_terms(self._settings.ontologies))
        try:
            delta = inference.difference()
            if delta.changes:
                commit = self._commits.commit(delta, Cause(KIND, "start"))
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
