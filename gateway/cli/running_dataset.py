"""The dataset of the running gateway, for commands that ask and update it."""

from __future__ import annotations

import argparse
import json
from urllib.parse import urlsplit

from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.terms import Bag, Term
from lamplighter.gateway.cli.config_file import settings_and_data
from lamplighter.gateway.cli.reaching import addresses_at, called, option


class RunningDataset:
    """The dataset of the gateway with the configuration that a command was given."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings, _ = settings_and_data(options)
        self._options = options
        url = option(options, "url")
        there = None if url is None else addresses_at(url)
        self._query_path = self.settings.http.query_path if there is None else urlsplit(there.query).path
        self._update_path = self.settings.http.update_path if there is None else urlsplit(there.update).path

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
