"""The demo's output on the terminal: one line per event, with times."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from time import monotonic

from lamplighter.demo.street.street import Lamp

_COLOURS = {
    "sensor": "36",
    "lamp on": "33;1",
    "lamp off": "34",
    "timer": "35",
    "person": "36;1",
    "gateway": "32",
    "trouble": "31;1",
}
_NAMES = {"lamp on": "lamp", "lamp off": "lamp"}


class Story:
    """Prints events, and collects figures for the summary.

    street: the lamps. Their true states are at the end of each line.
    """

    def __init__(self, street: Sequence[Lamp]) -> None:
        self._street = street
        self._began = monotonic()
        self._colour = sys.stdout.isatty()
        self.lit_ms: list[float] = []
        self.put_out_s: list[float] = []
        self.kept_on = 0

    def tell(self, what: str, text: str, figure: str = "") -> None:
        """Prints one line: time, source, event, a figure, and the state of the street."""
        name = _NAMES.get(what, what)
        line = f"{monotonic() - self._began:7.2f} s  {name:<8} {text:<44} {figure:>26}   {self._picture()}"
        if self._colour:
            line = f"\033[{_COLOURS[what]}m{line}\033[0m"
        print(line, flush=True)

    def note(self, text: str = "") -> None:
        print(text, flush=True)

    def _picture(self) -> str:
        return "".join("●" if lamp.state == "ON" else "·" for lamp in self._street)

    def summary(self) -> bool:
        """Prints the figures. Returns whether a lamp was switched on and off."""
        self.note()
        if self.lit_ms:
            self.note(
                f"  switched on  {len(self.lit_ms):3} times; from reading to acknowledged lamp "
                f"{statistics.median(self.lit_ms):.1f} ms (median), {max(self.lit_ms):.1f} ms (slowest)"
            )
        if self.put_out_s:
            self.note(
                f"  switched off {len(self.put_out_s):3} times; "
                f"{statistics.median(self.put_out_s):.3f} s after the last presence (median)"
            )
        self.note(f"  kept on      {self.kept_on:3} times, because presence returned in time (event negation)")
        good = bool(self.lit_ms and self.put_out_s)
        self.note("  The lamps were switched on and off." if good else "  No lamp was switched on and off.")
        return good
