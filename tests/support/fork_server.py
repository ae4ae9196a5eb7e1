"""Processes that have loaded the project already: forks of a server, started once for each process of the tests.

A fork is a process like any other, with its own pid, signals, pipes, environment, folder and exit code, but it begins
where the imports end: a command costs some 20 ms of processor time instead of 400. Whose subject is the start itself
(imports, the interpreter's switches, memory, units) starts a process with `subprocess` instead.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.support.huge_pages import collapse_memory
from tests.support.places import ROOT
from tests.support.times_report import Computed

LAMPLIGHTER = "lamplighter.gateway.__main__"
"""The module of the command `lamplighter`."""
ADAPTER = "lamplighter.gateway.service.adapter_process"
"""The module of an adapter's process."""
_USED = (
    "lamplighter.gateway.service.process",
    ADAPTER,
    "lamplighter.adapters.mqtt.parts",
    "lamplighter.adapters.coap.parts",
    "lamplighter.gateway.gates.http.gate",
    "lamplighter.gateway.gates.websocket",
    "httpx",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.off",
    "websockets.asyncio.client",
)
"""What commands and gateways import when they need it."""
_MESSAGE_BYTES_MAX = 1 << 20
_STREAMS = 3


class ForkedProcess:
    """A running fork, used as a `subprocess.Popen`. Its standard streams are files or pipes of the caller's, and errors
    may go to its standard output.

    arguments: the words of its command line after the program; module: whose `main` it runs.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        module: str = LAMPLIGHTER,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = True,
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._text = text
        self.stdin, read = self._pipe(stdin, 0)
        self.stdout, written = self._pipe(stdout, 1)
        self.stderr, errors = (None, written) if stderr == subprocess.STDOUT else self._pipe(stderr, 2)
        self._status, status = socket.socketpair()
        streams = [read, written, errors]
        request = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(env or os.environ),
        }
        try:
            self.pid = _server().start(request, [*streams, status.fileno()])
        finally:
            status.close()
            for file, given in zip(streams, (stdin, stdout, stderr), strict=True):
                if given in (subprocess.PIPE, subprocess.DEVNULL):
                    os.close(file)

    def _pipe(self, given: int | IO[Any] | None, number: int) -> tuple[IO[Any] | None, int]:
        """The caller's end of a stream, and the file descriptor that the fork gets."""
        if given == subprocess.PIPE:
            read, write = os.pipe()
            mine, other = (write, read) if number == 0 else (read, write)
            return os.fdopen(mine, ("w" if number == 0 else "r") + ("" if self._text else "b")), other
        if given == subprocess.DEVNULL:
            return None, os.open(os.devnull, os.O_RDWR)
        if given is None:
            return None, number
        return None, given if isinstance(given, int) else given.fileno()

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; a signal's number is negative. TimeoutExpired after so many seconds."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            content = self._status.recv(100)
            assert content, "the fork server has ended"
            code, computed_s = content.split()
            self.returncode = int(code)
            Computed.elsewhere_s += float(computed_s)
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Reads standard output and standard error to their ends, closes them and waits. None for what is no pipe."""
        with ThreadPoolExecutor(2) as threads:
            pipes = [file and not file.closed and threads.submit(file.read) for file in (self.stdout, self.stderr)]
            self.wait(timeout)
            texts = [pipe.result() if pipe else None for pipe in pipes]
        self.close()
        return texts[0], texts[1]

    def close(self) -> None:
        """Closes the caller's ends of pipes."""
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _ForkServer:
    """The caller's end. It is used from several threads."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())], cwd=ROOT, pass_fds=[other.fileno()]
            )
        self.owner = os.getpid()
        atexit.register(self.close)

    def start(self, request: Mapping[str, object], files: list[int]) -> int:
        """Starts a fork; its pid. files: its standard streams, and a socket that tells its end."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            pid = self._socket.recv(100)
        assert pid, "the fork server has ended"
        return int(pid)

    def close(self) -> None:
        if os.getpid() == self.owner:
            self._socket.close()
            self._process.wait()


_lock = threading.Lock()
_servers: list[_ForkServer] = []


def _server() -> _ForkServer:
    """This process's server: a fork of the tests' process has one of its own."""
    with _lock:
        if not _servers or _servers[0].owner != os.getpid():
            _servers[:] = [_ForkServer()]
        return _servers[0]


# --- the server's process ----------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Forks for each request until the caller's end is closed. Returns in each fork, with its request."""
    statuses: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the tests end their forks
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        for ready in select.select([requests, woken], [], [])[0]:
            if ready is woken:
                woken.recv(4096)
                _report_ended(statuses)
                continue
            content, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES_MAX, _STREAMS + 1)
            if not content:
                for pid in statuses:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for number in range(_STREAMS):
                    os.dup2(files[number], number)
                for file in files:
                    os.close(file)
                for one in (requests, woken, wake, *statuses.values()):
                    one.close()
                return dict(json.loads(content))
            for file in files[:_STREAMS]:
                os.close(file)
            statuses[pid] = socket.socket(fileno=files[_STREAMS])
            requests.send(str(pid).encode())


def _report_ended(statuses: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while statuses:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            with statuses.pop(pid) as ended, suppress(OSError):
                ended.send(f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime}".encode())


def _load() -> None:
    """Loads what commands and gateways import when they need it."""
    import gc
    import importlib
    import pkgutil

    from lamplighter.engine import client
    from lamplighter.gateway import cli
    from lamplighter.gateway.__main__ import command_parser

    command_parser()
    for name in client.__all__:
        getattr(client, name)  # they are imported at first use
    for module in pkgutil.iter_modules(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)
    for name in _USED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that forks copy no pages to look through what was loaded
    collapse_memory()


def _run(request: dict[str, Any]) -> NoReturn:
    """Runs the command as the interpreter would."""
    import importlib

    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    time.tzset()
    sys.argv = [request["module"], *request["arguments"]]
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    code = 1
    try:
        code = importlib.import_module(request["module"]).main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        # As multiprocessing ends its forks: taking down what the server has loaded costs more than most commands.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _own = socket.socket(fileno=int(sys.argv[1]))
    _load()
    _run(_serve(_own))
