"""Runs the tests in several processes that share one collection: a pytest plugin, on with ``--processes N``.

The tests are collected once and then the process forks, so a worker has every module loaded. With pytest-xdist each
worker collects by itself: 15 s of processor time for each of them, and for the process that prints.

A group of tests (`GroupOf`; a file, usually) goes to the first worker that has nothing left, in the order of `Place`. A
worker asks for its next group before the last test of the one that it has, so that fixtures of the session stay set up.
Its reports go to the first process, which prints them as pytest does. A worker that dies fails its test and ends the
run.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any, NoReturn

import pytest

from tests.support.huge_pages import collapse_memory

GroupOf = Callable[[str], str]
"""The id of a test -> the name of its group."""
Place = Callable[[Sequence[pytest.Item]], Any]
"""The tests of a group -> what its place follows from; of equal ones the first is that which was collected first."""


def add_option(parser: pytest.Parser) -> None:
    parser.getgroup("lamplighter").addoption("--processes", type=int, default=0, help="run tests in so many processes")


class _Channel:
    """Objects over a socket, in order."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: object) -> None:
        content = pickle.dumps(message)
        self._socket.sendall(struct.pack("!I", len(content)) + content)

    def receive(self) -> Any:
        """The next object. EOFError when the other end is closed."""
        return pickle.loads(self._read(struct.unpack("!I", self._read(4))[0]))

    def _read(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            part = self._socket.recv(count - len(content))
            if not part:
                raise EOFError
            content += part
        return content

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class ForkedWorkers:
    """The first process's part."""

    def __init__(self, processes: int, group_of: GroupOf, place: Place) -> None:
        self._processes = processes
        self._group_of, self._place = group_of, place

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        gc.disable()  # what is loaded stays, so collections find nothing: 1 s of 9
        try:
            return (yield)
        finally:
            gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly:
            return None  # pytest's own loop prints them
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # files run side by side
        groups = _groups(session.items, self._group_of)
        groups.sort(key=lambda numbers: self._place([session.items[number] for number in numbers]))
        folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as pytest-xdist does
        gc.collect()
        gc.freeze()  # so that a collection in a worker copies no pages
        collapse_memory()
        workers: list[_Worker] = []
        try:
            for number in range(min(self._processes, len(groups))):
                (folder / f"worker{number}").mkdir()
                workers.append(_Worker(session, number, folder / f"worker{number}", workers))
            _distribute(session, workers, iter(groups))
        finally:
            for worker in workers:
                worker.end()
        return True


def _groups(items: Sequence[pytest.Item], group_of: GroupOf) -> list[list[int]]:
    """The numbers of the tests of each group."""
    groups: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault(group_of(item.nodeid), []).append(number)
    return list(groups.values())


class _Worker:
    """A worker as the first process sees it. running: the id of its test."""

    def __init__(self, session: pytest.Session, number: int, folder: Any, others: Sequence[_Worker]) -> None:
        self.name = f"worker{number}"
        self.running = ""
        mine, its = socket.socketpair()
        self.channel = _Channel(mine)
        self.pid = os.fork()
        if self.pid == 0:
            for other in others:
                other.channel.close()
            mine.close()
            _work(session, _Channel(its), folder)
        its.close()

    def end(self) -> None:
        """Kills it, unless it has ended."""
        self.channel.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _distribute(session: pytest.Session, workers: Sequence[_Worker], groups: Iterator[list[int]]) -> None:
    """Gives groups to the workers and logs what they report, until all have ended."""
    hook = session.config.hook
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.channel, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                try:
                    kind, content = worker.channel.receive()
                except (EOFError, ConnectionResetError):
                    selector.unregister(worker.channel)
                    if worker.running:
                        _log_death(session, worker)
                    continue
                if kind == "more":
                    stopped = session.shouldfail or session.shouldstop
                    worker.channel.send(None if stopped else next(groups, None))
                elif kind == "start":
                    worker.running = content[0]
                    hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
                elif kind == "finish":
                    worker.running = ""
                    hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])
                else:
                    report = hook.pytest_report_from_serializable(config=session.config, data=content)
                    hook.pytest_runtest_logreport(report=report)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _log_death(session: pytest.Session, worker: _Worker) -> None:
    text = f"{worker.name} (process {worker.pid}) died in {worker.running}"
    location = (worker.running.partition("::")[0], None, worker.running)
    report = pytest.TestReport(worker.running, location, {}, "failed", text, "call")
    session.config.hook.pytest_runtest_logreport(report=report)
    session.shouldfail = text


# --- a worker's process ------------------------------------------------------------------------------------------


class _Reports:
    """Sends what pytest logs to the first process."""

    def __init__(self, config: pytest.Config, channel: _Channel) -> None:
        self._config = config
        self._channel = channel

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self._channel.send(("start", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self._channel.send(("finish", (nodeid, location)))


def _work(session: pytest.Session, channel: _Channel, folder: Any) -> NoReturn:
    code = 1
    try:
        config = session.config
        _capture_apart(config)
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Reports(config, channel))
        config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        _run(session, channel)
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)  # the end of the run is the first process's


def _capture_apart(config: pytest.Config) -> None:
    """Puts files of the worker's own in place of those that the first process captures to: forks share a position.

    The objects stay, since `sys.stderr` of the time of an import may be the default of some argument.
    """
    capturing = config.pluginmanager.getplugin("capturemanager")._global_capturing
    for stream in (capturing.in_, capturing.out, capturing.err):
        if hasattr(stream, "tmpfile"):
            with TemporaryFile() as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno())


def _run(session: pytest.Session, channel: _Channel) -> None:
    def more() -> list[int]:
        channel.send(("more", None))
        return list(channel.receive() or ())

    numbers = more()
    while numbers:
        number = numbers.pop(0)
        if not numbers and not (session.shouldfail or session.shouldstop):
            numbers = more()
        following = session.items[numbers[0]] if numbers else None
        item = session.items[number]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail or session.shouldstop:
            return
