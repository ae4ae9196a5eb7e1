"""Runs the tests on mutants: the tests are collected once, and each mutant is put into a fork of that process.

What Hypothesis and the seeded tests choose at random is the same in every fork, so that a later run judges by the same
cases. A fork has temporary folders of its own. Its process group ends with it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.mutation import live
from tests.support import seeds

SEED = 1
LIMIT_S = 10.0
"""Seconds of the processor that a test may take, and at least `LIMIT_FACTOR` times what it takes normally."""
LIMIT_FACTOR = 5.0
WAITING_FACTOR = 6.0
"""A test that waits may take so many times its limit: another load must not kill a mutant."""
_WAITS_S = 5.0
_FORKS_MAX = 8

Changes = list[tuple[FunctionType, CodeType]]


@dataclass
class Verdict:
    """How a fork ended. state: passed, failed, timed out or ended (the process of the tests ended early)."""

    state: str = "ended"
    test: str = ""
    message: str = ""
    seconds: float = 0.0
    run: list[str] = field(default_factory=list)
    """The tests that were begun, in their order."""


Done = Callable[[int, Verdict], None]


class _Fork:
    """A process that runs tests on a mutant."""

    def __init__(self, session: pytest.Session, items: Sequence[pytest.Item], changes: Changes) -> None:
        self.verdict = Verdict()
        self.folder = Path(tempfile.mkdtemp(prefix="mut"))
        self._began = self._test_began = time.monotonic()
        self._test_cpu_s = 0.0
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _run(session, items, changes, self.folder, write)
        os.close(write)
        self._text = b""

    def read(self) -> bool:
        """Takes in what the process has reported. Returns whether it goes on."""
        chunk = os.read(self.pipe, 65536)
        self._text += chunk
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "test" in report:
                self._test_began, self._test_cpu_s = time.monotonic(), self._cpu_s()
                self.verdict.test = report["test"]
                self.verdict.run.append(report["test"])
            else:
                self.verdict.state, self.verdict.message = report["state"], report["message"]
        return bool(chunk) and self.verdict.state == "ended"

    def exceeds(self, limit_s: float) -> bool:
        """Whether the present test has taken too long."""
        waited_s = time.monotonic() - self._test_began
        return self._cpu_s() - self._test_cpu_s > limit_s or waited_s > WAITING_FACTOR * limit_s

    def waits(self) -> bool:
        """Whether the present test has needed the processor for little of the time, for some seconds."""
        waited_s = time.monotonic() - self._test_began
        return waited_s > _WAITS_S and self._cpu_s() - self._test_cpu_s < waited_s / 10

    def _cpu_s(self) -> float:
        """What the process has taken of the processor, with its children that have ended (proc(5))."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> Verdict:
        for kill in (os.killpg, os.kill):  # the group is there as soon as the process has made it
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.verdict.seconds = round(time.monotonic() - self._began, 2)
        if self.verdict.state == "passed":
            self.verdict.test = ""
        return self.verdict


def _run(session: pytest.Session, items: Sequence[pytest.Item], changes: Changes, folder: Path, pipe: int) -> NoReturn:
    """Runs the tests in this process, which is a fork, until one of them fails."""

    def report(**fields: str) -> None:
        os.write(pipe, json.dumps(fields).encode() + b"\n")

    class Failures:
        def __init__(self) -> None:
            self.first = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and not self.first:
                self.first = f"{report.when}: {str(report.longrepr)[-600:]}"

    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory._given_basetemp = folder
        random.seed(SEED)
        failures = Failures()
        session.config.pluginmanager.register(failures)
        live.put(changes)
        for item, after in zip(items, [*items[1:], None], strict=True):
            report(test=item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if failures.first:
                with suppress(Exception):
                    session._setupstate.teardown_exact(None)  # ends the processes that fixtures have started
                report(state="failed", message=failures.first)
                break
        else:
            report(state="passed", message="")
    except BaseException as error:
        report(state="failed", message=f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


class Judge:
    """Runs the work on the collected tests: a plugin of pytest. work: is called with the judge once they are there."""

    def __init__(self, work: Callable[[Judge], None]) -> None:
        self._work = work
        self.items: dict[str, pytest.Item] = {}
        self._session: pytest.Session | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makemodule(self) -> Generator[None, Any, Any]:
        _load_profile()  # the conftest of a folder has loaded its own
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        _load_profile()
        self._session = session
        self.items = {item.nodeid: item for item in session.items}
        vars(seeds)["secrets"] = SimpleNamespace(randbelow=random.Random(SEED).randrange)
        assert threading.active_count() == 1, "a fork would have only one of the threads"
        self._work(self)
        return True

    @staticmethod
    def _has_room(forks: Collection[_Fork], side_by_side: int) -> bool:
        """Whether another fork may run: those that only wait for the end of their time are not in the way."""
        return len(forks) < _FORKS_MAX and sum(not fork.waits() for fork in forks) < side_by_side

    def verdicts(
        self,
        jobs: Sequence[tuple[Sequence[str], Changes]],
        seconds: dict[str, float],
        done: Done,
        side_by_side: int,
    ) -> None:
        """Runs jobs of tests on a mutant each.

        seconds: what a test takes normally. done: is called with the number of a job and its verdict, as they come.
        """
        assert self._session is not None
        gc.collect()
        gc.freeze()
        waiting = list(enumerate(jobs))[::-1]
        running: dict[int, _Fork] = {}
        try:
            while waiting or running:
                while waiting and self._has_room(running.values(), side_by_side):
                    number, (tests, changes) = waiting.pop()
                    running[number] = _Fork(self._session, [self.items[test] for test in tests], changes)
                ready, _, _ = select.select([fork.pipe for fork in running.values()], [], [], 0.5)
                for number, fork in list(running.items()):
                    goes_on = fork.pipe not in ready or fork.read()
                    limit_s = max(LIMIT_S, LIMIT_FACTOR * seconds.get(fork.verdict.test, 0.0))
                    if goes_on and fork.exceeds(limit_s):
                        goes_on, fork.verdict.state = False, "timed out"
                    if not goes_on:
                        del running[number]
                        done(number, fork.end())
        finally:
            for fork in running.values():
                fork.end()


def collect(arguments: Sequence[str], work: Callable[[Judge], None]) -> None:
    """Collects the tests of the arguments and calls work."""
    os.environ.setdefault("W3C_SEED", str(SEED))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the forks end with this process
    plugin = Judge(work)
    status = pytest.main(
        [
            *("-p", "no:cacheprovider", "--capture=no", "--quiet", "--quiet"),
            *(f"--hypothesis-seed={SEED}", *arguments),
        ],
        plugins=[plugin],
    )
    if not plugin.items:
        raise SystemExit(f"the tests cannot be collected: {status}")


def _load_profile() -> None:
    from hypothesis import HealthCheck, settings  # pytest rewrites its assertions, if it is imported after pytest

    settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("mutation")
