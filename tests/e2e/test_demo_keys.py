"""The demo at a terminal: its keys, and the browser that it opens."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.commands import command_line
from tests.support.components import require_command, require_page
from tests.support.gateway_process import wait_for
from tests.support.places import ROOT

TIMEOUT_S = 300


_SCRIPT = 'stty -g; "$@"; code=$?; stty -g; exit $code'
"""Tells the modes of the terminal before and after the command."""


class Terminal:
    """`lamplighter demo` in the foreground of a terminal. variables: of the environment, besides."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._person, terminal = pty.openpty()
        self._told = ""
        kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("SSH_")}
        demo = command_line("demo", *arguments)
        self._process = subprocess.Popen(
            [require_command("setsid"), "--ctty", "sh", "-c", _SCRIPT, "sh", *demo],
            cwd=ROOT,
            env={**kept, **variables},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)

    def __enter__(self) -> Terminal:
        self._modes = self.until("\r\n")
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._person)  # it hangs up, which ends what still runs
        self._process.wait(TIMEOUT_S)

    def press(self, keys: str) -> None:
        os.write(self._person, keys.encode())

    def until(self, text: str) -> str:
        """Reads until the text comes; what came before it, since the last call."""
        end = time.monotonic() + TIMEOUT_S
        while text not in self._told:
            assert time.monotonic() < end and self._read(), (text, self._told)
        before, _, self._told = self._told.partition(text)
        return before

    def quit(self) -> str:
        """Presses q; the last lines of the demo, which has succeeded and given the terminal its modes back."""
        self.press("q")
        end = time.monotonic() + TIMEOUT_S
        while self._read():
            assert time.monotonic() < end, self._told
        assert self._process.wait(TIMEOUT_S) == 0, self._told
        *lines, modes, _ = self._told.split("\r\n")
        assert modes == self._modes
        return "\n".join(lines)

    def _read(self) -> bool:
        """Waits a while for output. Returns False at its end."""
        if select.select([self._person], [], [], 1)[0]:
            try:
                self._told += os.read(self._person, 65536).decode(errors="replace")
            except OSError:  # no process has the terminal open any more
                return False
        return True


@pytest.mark.faults
def test_keys_add_a_person_break_a_sensor_cut_the_broker_and_quit() -> None:
    with Terminal("--no-browser") as terminal:
        terminal.until("Keys: p add a person, s break a sensor, b cut the broker, q quit")
        terminal.press("xp")
        terminal.until("one more person walks")
        terminal.press("s")
        terminal.until("sensors are broken")
        terminal.press("s")
        terminal.until("sensors report again")
        terminal.press("b")
        terminal.until("the broker is cut off")
        terminal.press("b")
        terminal.until("the broker is back")
        terminal.until(" is OFF")
        assert terminal.quit().endswith("The lamps were switched on and off.")


def test_a_desktop_gets_the_street_in_its_browser(tmp_path: Path) -> None:
    require_page()
    shown, browser = tmp_path / "shown", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{shown}.part" && mv "{shown}.part" "{shown}"\n')
    browser.chmod(0o755)
    with Terminal(DISPLAY=":0", BROWSER=f"{browser} %s &") as terminal:
        terminal.until("Keys: ")
        wait_for(shown.exists, what="the browser")
        assert shown.read_text().endswith("/page/street\n")
        terminal.quit()
