"""Keys that are pressed in the terminal of the demo."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def has_keys() -> bool:
    """Whether a person can press keys: input and output are the terminal, and the demo is in its foreground."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


@contextmanager
def listening(pressed: Callable[[str], None]) -> Iterator[None]:
    """Calls `pressed` with each key as it is pressed; the terminal gets its modes back afterwards. Needs `has_keys`."""
    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            typed = os.read(terminal, 64)
        except OSError:  # the terminal is gone
            typed = b""
        if not typed:
            loop.remove_reader(terminal)
        for key in typed.decode(errors="replace"):
            pressed(key)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
