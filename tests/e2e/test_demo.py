"""The demo as a new user starts it."""

import re
import subprocess
import sys

from tests.support.places import ROOT

LATE_ANSWER = re.compile(
    r"^[^\n]* ERROR asyncio Exception in callback _SelectorDatagramTransport\._read_ready\(\)\n"
    r"(?:(?!asyncio\.exceptions\.)[^\n]*\n)*?asyncio\.exceptions\.InvalidStateError: invalid state\n",
    re.M,
)
"""What aiocoap says of an answer that is read in the very moment in which its request is cancelled, as at the end."""


def demo(seconds: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lamplighter.gateway", "demo", "--for", seconds],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def wording(line: str) -> str:
    """A line of the story without figures, spaces and the picture of the street."""
    return " ".join(re.sub(r"[0-9.]+", "#", line.rstrip("●·")).split())


def test_demo_lights_lamps_and_puts_them_out_as_readme_shows() -> None:
    played = demo("15")  # the second lamp goes out after 6 s where nothing else is to do
    assert played.returncode == 0, played.stdout + played.stderr
    assert "lamp 1 is ON" in played.stdout
    assert "lamp 1 is OFF" in played.stdout
    assert "lamp 2 reports ON over MQTT" in played.stdout
    assert "lamp 2 reports OFF over MQTT" in played.stdout
    told = {wording(line) for line in played.stdout.splitlines()}
    shown = re.findall(r"^ +[0-9.]+ s  (?:sensor|lamp) .*$", (ROOT / "README.md").read_text(), re.M)
    assert len(shown) >= 4
    assert [line for line in shown if wording(line) not in told] == []
    assert LATE_ANSWER.sub("", played.stderr) == ""


def test_demo_that_is_too_short_fails() -> None:
    played = demo("2")
    assert played.returncode == 1, played.stdout + played.stderr
    assert "No lamp was switched on and off" in played.stdout
