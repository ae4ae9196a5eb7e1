"""The names that a running gateway knows, for commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lamplighter.adapters.mapping.dataset_rules import QUERY as RULES
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.terms import Bag
from lamplighter.gateway.cli.endpoint import RunningDataset, url_option
from lamplighter.gateway.cli.options import config_folder, settings_and_data
from lamplighter.gateway.devices.directory import QUERY, NameDirectory
from lamplighter.gateway.devices.ruled import names_of_files, names_of_rows

if TYPE_CHECKING:  # it loads the engine
    from lamplighter.gateway.history.records import History


def directory_of(options: argparse.Namespace) -> NameDirectory:
    """What can be named. Raises UpstreamError when no gateway answers, RefusedError."""
    dataset = RunningDataset(options)
    base = dataset.settings.gateway.base_iri
    rows, rules = dataset.rows(QUERY), dataset.rows(RULES)
    # With --url, the files are those of another machine.
    files = [] if url_option(options) is not None else names_of_files(config_folder(options) / "mapping", base)
    return NameDirectory.of(rows, base, [*names_of_rows(rules, base), *files])


def past_directory(options: argparse.Namespace, history: History) -> NameDirectory:
    """The same with or without a running gateway: without one, of the newest record of the log."""
    try:
        return directory_of(options)
    except UpstreamError:
        base = settings_and_data(options)[0].gateway.base_iri
        engine = history.replay(passed_over=lambda error: None).engine
        rows, rules = engine.query(QUERY).value, engine.query(RULES).value
        assert isinstance(rows, Bag) and isinstance(rules, Bag), "SELECT queries"
        files = names_of_files(config_folder(options) / "mapping", base)
        return NameDirectory.of(rows, base, [*names_of_rows(rules, base), *files])
