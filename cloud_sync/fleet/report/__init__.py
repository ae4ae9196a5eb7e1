"""Report: the results of all jobs as one HTML page.

content: the rows that the page shows; plots: SVG; page: content -> HTML. The command `lamplighter-fleet report`
loads Spark when it runs.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs.commands import add_arguments, analysis, results_folder, write_results
from lamplighter.cloud_sync.fleet.jobs.results import RESULTS
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subcommands import add_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis

__all__ = ["add_commands", "write_report"]

NAME = "report.html"


def add_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `report`."""
    parser = add_command(subparsers, "report", "run all jobs and write one page with plots of the results")
    add_arguments(parser)
    parser.add_argument(
        "--out", metavar="DIR", help=f"folder or URL of {NAME} and of the results (default: results in the lake)"
    )
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    """Writes results and page, and prints the path of the page."""
    import_module(f"{__package__}.page")  # a missing package is reported before the jobs run
    lake = Lake(arguments.lake)
    out = Lake(arguments.out) if arguments.out else results_folder(lake)
    with analysis(arguments, lake) as found:
        path = write_report(found, write_results(found, tuple(RESULTS), out), out)
    print(path)
    return 0


def write_report(found: Analysis, results: Mapping[str, DataFrame], out: Lake) -> str:
    """Writes ``<out>/report.html``, with links to the results beside it, and returns its path.

    results: what `write_results` wrote of `found` into `out`, all of `RESULTS`.
    """
    from lamplighter.cloud_sync.fleet.report.content import content
    from lamplighter.cloud_sync.fleet.report.page import page

    print("the page ...", end="", file=sys.stderr, flush=True)
    text = page(content(results, out, found.as_of)).encode()
    out.write(text, NAME)
    print(f" {len(text) // 1024} KiB", file=sys.stderr, flush=True)
    return out.path(NAME)
