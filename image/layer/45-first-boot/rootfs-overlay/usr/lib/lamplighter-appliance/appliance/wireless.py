"""`wpa_supplicant.conf`: read by wpa_supplicant's own parser before it replaces the one that works."""

from __future__ import annotations

import re

from .machine import WIRELESS, Machine
from .mistakes import Mistake

# wpa_supplicant has no mode that only checks. It reads its file before it looks for the interface, and ends when there
# is none of that name; the driver is one that every build of Debian has, also where there is no radio.
_NO_INTERFACE, _DRIVER = "appliance-none", "wired"
_FAILED = "Failed to read or parse configuration"
_LINE = re.compile(r"Line (?P<number>\d+): (?P<what>.*)")
# Their values are shown; all others may be secrets.
_SHOWN = re.compile(r"unknown network field|failed to parse (?:ssid|network block)")
_KEYS = re.compile(r"^(psk|sae_password|key_mgmt|password|private_key|wep_key0)\s*=", re.MULTILINE)


def take_wireless(machine: Machine, text: str) -> str:
    """Applies the file; returns what was done. Raises Mistake."""
    check_wireless(machine, text)
    machine.write(machine.path(WIRELESS), text, 0o600)
    return "applied, the wireless network will be joined"


def check_wireless(machine: Machine, text: str) -> None:
    """Raises Mistake, with the lines at fault."""
    problems = _parser_says(machine, text)
    if problems:
        raise Mistake("\n".join(problems))
    # What the parser takes and no radio can work with. Comments are gone; a # in quotes begins none.
    lines = [re.sub(r'^([^"#]*(?:"[^"]*"[^"#]*)*)#.*$', r"\1", line).strip() for line in text.splitlines()]
    if not any(re.fullmatch(r"country\s*=\s*[A-Z]{2}", line) for line in lines):
        raise Mistake("has no line country=XX with your country's two letters; without it radios stay silent")
    begins = [number for number, line in enumerate(lines, 1) if re.match(r"network\s*=\s*\{", line)]
    if not begins:
        raise Mistake("has no network={ ... }; docs/appliance.md shows one")
    for begin, end in zip(begins, [*begins[1:], len(lines) + 1], strict=True):
        block = "\n".join(lines[begin : end - 1])
        if not re.search(r"^ssid\s*=", block, re.MULTILINE):
            raise Mistake(f'line {begin}: this network={{ ... }} has no ssid="..."')
        if not _KEYS.search(block):
            raise Mistake(f'line {begin}: this network has no psk="..."; write key_mgmt=NONE if it has no password')


def _parser_says(machine: Machine, text: str) -> list[str]:
    trial = machine.path("/run/wpa_supplicant.trial")
    machine.write(trial, text, 0o600)
    try:
        done = machine.run("wpa_supplicant", "-c", str(trial), "-i", _NO_INTERFACE, "-D", _DRIVER)
    except OSError as error:
        raise Mistake(f"cannot be checked: {error}") from None
    finally:
        trial.unlink()
    said = (done.stdout + done.stderr).splitlines()
    if not any(line.startswith(_FAILED) for line in said):
        return []
    problems: dict[str, str] = {}
    for found in filter(None, map(_LINE.fullmatch, said)):
        what = found["what"] if _SHOWN.match(found["what"]) else found["what"].partition(" '")[0]
        problems.setdefault(found["number"], what.rstrip("."))
    if len(problems) > 1:  # the end of a block that is wrong before says nothing new
        problems = {number: what for number, what in problems.items() if what != "failed to parse network block"}
    told = [f"line {number}: {what}; write it as docs/appliance.md shows" for number, what in problems.items()]
    return told or ["wpa_supplicant cannot read it; write it as docs/appliance.md shows"]
