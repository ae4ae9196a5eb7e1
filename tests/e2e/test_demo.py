"""The demo as a new user starts it."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.support.places import ROOT

PARTS = ("lamp 1 is ON", "lamp 1 is OFF", "lamp 2 reports ON over MQTT", "lamp 2 reports OFF over MQTT")


def demo(*arguments: str, until: Callable[[str], bool]) -> tuple[int, str, str]:
    """Exit code, output and errors of a demo that is interrupted once its output is as wanted, or that ends before."""
    command = [sys.executable, "-u", "-m", "lamplighter.gateway", "demo", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = ""
        for line in process.stdout:
            told += line
            if until(told):
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.communicate(timeout=120)
    return process.returncode, told + rest, errors


def wording(line: str) -> str:
    """A line of the story without figures, spaces and the picture of the street."""
    return " ".join(re.sub(r"[0-9.]+", "#", line.rstrip("●·")).split())


def test_demo_lights_lamps_and_puts_them_out_as_readme_shows() -> None:
    shown = re.findall(r"^ +[0-9.]+ s  (?:sensor|lamp) .*$", (ROOT / "README.md").read_text(), re.M)
    assert len(shown) >= 4

    def missing(told: str) -> list[str]:
        lines = {wording(line) for line in told.splitlines()}
        return [part for part in PARTS if part not in told] + [line for line in shown if wording(line) not in lines]

    code, told, errors = demo(until=lambda told: not missing(told))
    assert (code, missing(told), errors) == (0, [], ""), told


def test_demo_that_is_too_short_fails() -> None:
    code, told, errors = demo("--for", "2", until=lambda _: False)
    assert code == 1, told + errors
    assert "No lamp was switched on and off" in told
