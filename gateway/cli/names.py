"""The names that a running gateway knows, for commands."""

from __future__ import annotations

import argparse

from lamplighter.adapters.mapping.dataset_rules import QUERY as RULES
from lamplighter.gateway.cli.endpoint import RunningDataset, url_option
from lamplighter.gateway.cli.options import config_folder
from lamplighter.gateway.devices.directory import QUERY, Directory
from lamplighter.gateway.devices.ruled import names_of_files, names_of_rows


def directory_of(options: argparse.Namespace) -> Directory:
    """What can be named. Raises UpstreamError when no gateway answers, RefusedError."""
    dataset = RunningDataset(options)
    base = dataset.settings.gateway.base_iri
    rows, rules = dataset.rows(QUERY), dataset.rows(RULES)
    # With --url, the files are those of another machine.
    files = [] if url_option(options) is not None else names_of_files(config_folder(options) / "mapping", base)
    return Directory.of(rows, base, [*names_of_rows(rules, base), *files])
