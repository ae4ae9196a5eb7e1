"""A plugin of pytest that writes down which lines of the rooms each test runs, and how long each test takes.

A line that a fixture of a wider scope than one test runs is written down for the file of the test that needed it first,
since every test of the file depends on it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutation import rooms

DURATIONS = "durations"
DATA = "lines"


class Tracer:
    """Measures a process and its forks (`--processes`); the data of each process gets a file of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._coverage = coverage.Coverage(
            data_file=str(folder / DATA),
            data_suffix=True,
            config_file=False,
            include=[str(path) for _, path in rooms.files()],
            messages=False,
        )
        self._context = ""
        self._coverage.start()

    def enter(self, context: str) -> str:
        """Counts the lines that follow for a context. Returns the context until now, whose lines are saved."""
        before, self._context = self._context, context
        self._coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = self.enter(item.nodeid)
        result = yield
        self.enter(before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self.enter(self._context.partition("::")[0])
        try:
            return (yield)
        finally:
            self.enter(before)


class Durations:
    """Seconds and outcome of each test, written down at the end of the run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{DURATIONS}.{os.getpid()}.json"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        content = {"seconds": dict(sorted(self._seconds.items())), "failed": sorted(self._failed)}
        self._path.write_text(json.dumps(content, indent=0))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--traces", help="folder for the lines and durations of each test")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begins before a conftest imports the rooms: a line that only runs at an import counts like any other."""
    folder = Path(early_config.known_args_namespace.traces)
    early_config.pluginmanager.register(Durations(folder))
    early_config.pluginmanager.register(Tracer(folder))
