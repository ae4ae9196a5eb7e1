"""Somebody who has the documents and nothing else: each command and each file of a trial is taken from a page.

A command is found by its beginning, so a trial fails when the page no longer shows it. Only what depends on the machine
is replaced, such as ports and addresses.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.commands import command as lamplighter
from tests.support.components import require_command
from tests.support.fork_server import ForkedProcess
from tests.support.places import ROOT

LIMIT_S = 120.0
_LAMPLIGHTER = ("lamplighter", ".venv/bin/lamplighter")
_PYTHON = ("python", ".venv/bin/python")


class Page:
    """A document. name: its path in the repository."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / name).read_text()

    def command(self, beginning: str) -> str:
        """The command that the page shows and that begins so, without `sudo`; the first if there are several."""
        found = re.findall(rf"^ *(?:\$ (?:sudo )?|> )?({re.escape(beginning)}.*)$", self.text, re.M)
        assert found, f"{self.name} shows no command that begins with {beginning!r}"
        return str(found[0]).partition("    #")[0].strip()

    def inline(self, beginning: str) -> str:
        """The command in a sentence that begins so, without `sudo`."""
        found = re.findall(rf"`(?:sudo )?({re.escape(beginning)}[^`]*)`", self.text)
        assert found, f"{self.name} has no command in a sentence that begins with {beginning!r}"
        return str(found[0])

    def block(self, language: str, part: str) -> str:
        """The block of a language that has this part."""
        blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", self.text, re.M | re.S)
        texts = [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, text in blocks]
        found = [text for text in texts if part in text]
        assert found, f"{self.name} has no {language} block with {part!r}"
        return found[0]


class Output:
    """What a command prints while it runs."""

    def __init__(self, process: subprocess.Popen[str] | ForkedProcess) -> None:
        self.process = process
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def until(self, part: str) -> str:
        """The next line that has this part."""
        end = time.monotonic() + LIMIT_S
        while (left := end - time.monotonic()) > 0:
            try:
                line = self._queue.get(timeout=left)
            except queue.Empty:
                break
            assert line is not None, f"the command ended without {part!r}:\n" + "\n".join(self.lines)
            self.lines.append(line)
            if part in line:
                return line
        raise AssertionError(f"nothing with {part!r} within {LIMIT_S} s:\n" + "\n".join(self.lines))

    def close(self) -> None:
        """Called when the process has ended."""
        self._reader.join(LIMIT_S)
        assert self.process.stdout
        self.process.stdout.close()


class Reader:
    """Runs commands of documents in a folder.

    replaced: texts in commands and files, such as ``:8000`` -> ``:18000``. environment: of the commands, besides.
    """

    def __init__(self, folder: Path, replaced: Mapping[str, str]) -> None:
        self.folder = folder
        self.replaced = dict(replaced)
        self.environment: dict[str, str] = {}

    def adapted(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.adapted(text))

    def run(self, command: str, *more: str, code: int = 0) -> str:
        """Runs a command to its end; its output. more: arguments besides."""
        program, *words = self._words(command, more)
        if program in _LAMPLIGHTER:
            done = lamplighter(*words, cwd=self.folder, env=self._environment(), timeout=LIMIT_S)
        else:
            done = subprocess.run(
                [*_executable(program), *words],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")

    @contextmanager
    def running(self, command: str, *more: str, end: signal.Signals = signal.SIGTERM) -> Iterator[Output]:
        """Runs a command until left."""
        program, *words = self._words(command, more)
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        place = {"cwd": self.folder, "env": self._environment()}
        process: subprocess.Popen[str] | ForkedProcess
        if program in _LAMPLIGHTER:
            process = ForkedProcess(words, **streams, **place)
        else:
            process = subprocess.Popen([*_executable(program), *words], **streams, **place, text=True)
        output = Output(process)
        try:
            yield output
        finally:
            process.send_signal(end)
            process.wait(LIMIT_S)
            output.close()

    def _words(self, command: str, more: tuple[str, ...]) -> list[str]:
        return [*shlex.split(self.adapted(command)), *more]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **self.environment}


def _executable(program: str) -> list[str]:
    if program == "lamplighter-fleet":
        return [sys.executable, "-m", "lamplighter.cloud_sync.fleet"]
    return [sys.executable if program in _PYTHON else require_command(program)]
