"""How long tests took, how much of that they waited, and how many rows of tables they checked: a pytest plugin that
adds a report at the end of a run.

A phase (set-up, call, tear-down) has computed what the processor time of its process and of its ended children says;
the rest of its duration it waited. A child that outlives its phase counts in the phase in which it is waited for, so a
module's gateway counts in the module's last tear-down.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.amounts import AMOUNTS
from tests.support.tables import Checked

_SHOWN_MAX = 20
_FILE = "TEST_TIMES"
"""The variable that names a file for the times of all tests, as JSON: test -> [taken, computed]."""
_KEPT = f"lamplighter/seconds-{float(AMOUNTS.share):g}"
"""In pytest's cache: test -> seconds that it took last with these amounts."""


def last_seconds(config: pytest.Config) -> dict[str, float]:
    """How long each test took when it ran last on this machine; without those that are not known."""
    cache = getattr(config, "cache", None)  # none with ``-p no:cacheprovider``
    return {} if cache is None else dict(cache.get(_KEPT, {}))


class Computed:
    """Processor time of other processes that were waited for, though they are no children, in seconds."""

    elsewhere_s = 0.0


def processor_s() -> float:
    """Processor time of this process and of its children and forks that have ended, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + Computed.elsewhere_s


@dataclass
class Times:
    """Seconds of wall clock, and of processor time within them."""

    taken_s: float = 0.0
    computed_s: float = 0.0

    @property
    def waited_s(self) -> float:
        """Never negative: children and threads can compute side by side."""
        return max(self.taken_s - self.computed_s, 0.0)

    def add(self, taken_s: float, computed_s: float) -> None:
        self.taken_s += taken_s
        self.computed_s += computed_s


class TestTimes:
    """Notes the times of each phase in its report, which a worker sends to the process that prints."""

    __test__ = False

    def __init__(self, shown: int = _SHOWN_MAX) -> None:
        self._shown = shown
        self._started = time.monotonic()
        self._begun: tuple[float, float] = (0.0, 0.0)
        self._rows_before = 0
        self._rows = 0
        self.tests: dict[str, Times] = defaultdict(Times)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._begun = time.monotonic(), processor_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = time.monotonic(), processor_s()
        report.taken_s, report.computed_s = now[0] - self._begun[0], now[1] - self._begun[1]
        self._begun = now
        report.rows, self._rows_before = Checked.rows - self._rows_before, Checked.rows
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "taken_s"):  # not where its worker has died
            self.tests[report.nodeid].add(report.taken_s, report.computed_s)
            self._rows += report.rows

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        cache = getattr(session.config, "cache", None)
        if cache is not None and self.tests:
            taken = {name: round(it.taken_s, 3) for name, it in self.tests.items()}
            cache.set(_KEPT, last_seconds(session.config) | taken)
        if os.environ.get(_FILE):
            rows = {name: [round(it.taken_s, 3), round(it.computed_s, 3)] for name, it in self.tests.items()}
            Path(os.environ[_FILE]).write_text(json.dumps(rows))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.tests:
            return
        write = terminalreporter.write_line
        terminalreporter.section("times in seconds: taken, computed, waited")
        folders: dict[str, Times] = defaultdict(Times)
        files: dict[str, Times] = defaultdict(Times)
        for name, times in self.tests.items():
            path = Path(name.partition("::")[0])
            folders["/".join(path.parts[:3]) if len(path.parts) > 3 else str(path.parent)].add(
                times.taken_s, times.computed_s
            )
            files[str(path)].add(times.taken_s, times.computed_s)
        for title, kind in (("folder", folders), ("file", files), ("test", self.tests)):
            for name, times in _longest(kind.items(), self._shown):
                write(f"{title:6} {times.taken_s:7.1f} {times.computed_s:7.1f} {times.waited_s:7.1f}  {name}")
        total = Times(sum(it.taken_s for it in self.tests.values()), sum(it.computed_s for it in self.tests.values()))
        write(f"total  {total.taken_s:7.1f} {total.computed_s:7.1f} {total.waited_s:7.1f}  {self._rows} rows of tables")


def _longest(times: Iterable[tuple[str, Times]], most: int) -> list[tuple[str, Times]]:
    return sorted(times, key=lambda it: -it[1].taken_s)[:most]
