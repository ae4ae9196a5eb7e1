"""The dataset of the running gateway, for commands that ask and update it."""

from __future__ import annotations

import argparse
import json

from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.terms import Bag, Term
from lamplighter.gateway.cli.config_file import settings_and_data
from lamplighter.gateway.cli.reaching import called, sparql_paths


class RunningDataset:
    """The dataset of the gateway with the configuration that a command was given."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings, _ = settings_and_data(options)
        self._options = options
        self._query_path, self._update_path = sparql_paths(options)

    def rows(self, query: str) -> list[tuple[Term | None, ...]]:
        """The result of a SELECT query. Raises UpstreamError, RefusedError."""
        headers = {"Content-Type": "application/sparql-query", "Accept": "application/sparql-results+json"}
        with called(self._options, "POST", self._query_path, query.encode(), headers) as answer:
            text = answer.read()
        try:
            return list(Bag.from_json(json.loads(text)))
        except (ValueError, KeyError, TypeError) as error:
            raise UpstreamError(f"the gateway's answer is not a table: {error!r}") from error

    def update(self, text: str) -> None:
        """Raises UpstreamError, RefusedError."""
        headers = {"Content-Type": "application/sparql-update"}
        with called(self._options, "POST", self._update_path, text.encode(), headers) as answer:
            answer.read()
