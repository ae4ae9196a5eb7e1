"""The names that a running gateway knows, for commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lamplighter.adapters.mapping.dataset_rules import QUERY as RULES
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.terms import Bag, Term
from lamplighter.gateway.cli.endpoint import RunningDataset, url_option
from lamplighter.gateway.cli.options import config_folder, settings_and_data
from lamplighter.gateway.devices.directory import QUERY, NameDirectory
from lamplighter.gateway.devices.ruled import names_of_files, names_of_rows
from lamplighter.gateway.history.subjects import QUERY as SUBJECTS
from lamplighter.gateway.history.subjects import Subjects

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


def past_directory(options: argparse.Namespace, history: History) -> tuple[NameDirectory, dict[Term, str]]:
    """The same and what people call readings, actuators and devices, with or without a running gateway: without one, of
    the newest record of the log."""
    try:
        dataset = RunningDataset(options)
        return directory_of(options), Subjects(dataset.rows(SUBJECTS), dataset.settings.gateway.base_iri).labels_of_all
    except UpstreamError:
        base = settings_and_data(options)[0].gateway.base_iri
        engine = history.replay(passed_over=lambda error: None).engine
        rows, rules, subjects = (engine.query(query).value for query in (QUERY, RULES, SUBJECTS))
        assert isinstance(rows, Bag) and isinstance(rules, Bag) and isinstance(subjects, Bag), "SELECT queries"
        files = names_of_files(config_folder(options) / "mapping", base)
        directory = NameDirectory.of(rows, base, [*names_of_rows(rules, base), *files])
        return directory, Subjects(subjects, base).labels_of_all
