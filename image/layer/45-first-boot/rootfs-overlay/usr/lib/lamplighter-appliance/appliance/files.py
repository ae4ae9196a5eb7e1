"""The user's files on the firmware partition. Each is taken when it is new or was changed; a mistake is told, on the
console too, and what was before stays as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable

from .imager import FILE, take_imager
from .keys import take_keys, take_time_zone
from .machine import REPORT, Machine
from .mistakes import Mistake
from .settings import take_settings
from .wireless import take_wireless

_BYTES_MAX = 256 * 1024


Taker = Callable[[Machine, str], str]
"""Takes the text of a file; returns what was done, in a few words. Raises Mistake."""


def take_files(machine: Machine) -> bool:
    """Takes what is new; returns whether all that was found is good."""
    taken = machine.state / "files.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # else all are taken once more
        known = dict(json.loads(taken.read_text()))
    mistakes: list[str] = []
    told: list[str] = []

    def tell(mistake: str) -> None:
        mistakes.append(mistake)
        machine.say(mistake)

    for name, take in TAKERS.items():
        file = machine.firmware / name
        if not file.is_file():
            continue
        try:
            content = file.read_bytes()
            digest = hashlib.sha256(content + _besides(machine, name)).hexdigest()
            if known.get(name) == digest:
                continue
            if len(content) > _BYTES_MAX:
                raise Mistake(f"has more than {_BYTES_MAX} bytes")
            done = f"{name}: {take(machine, _text(content))}"
            told.append(done)
            machine.say(done)
            known[name] = digest
            machine.write(taken, json.dumps(known), 0o600)
        except Mistake as mistake:
            for line in str(mistake).splitlines():
                tell(f"MISTAKE in {name}: {line}")  # and again at the next start
        except Exception as error:  # a worn card, a full one: the gateway waits for this to end, and does not need it
            tell(f"MISTAKE in {name}: not applied: {error!r}")
    for file in sorted(machine.firmware.glob("*")):
        if file.name.lower() in _NEARLY and file.name not in TAKERS:
            tell(f"MISTAKE: {file.name} is not read; did you mean {_NEARLY[file.name.lower()]}?")
    if mistakes:  # above the prompt, too, which clears the screen
        shown = "".join(f"{mistake}\n" for mistake in mistakes).replace("\\", "\\\\")
        machine.write(machine.path("/run/issue.d/lamplighter.issue"), f"{shown}\n")
    _report(machine, told, mistakes)
    return not mistakes


def _report(machine: Machine, told: list[str], mistakes: list[str]) -> None:
    """Writes to the firmware partition what a computer without this screen shows, when there is something new."""
    file = machine.firmware / REPORT
    text = "".join(f"{line}\r\n" for line in (*mistakes, *told) or ("all files were applied",))
    try:
        old = file.read_bytes().decode(errors="replace") if file.exists() else None
        if text == old or (not mistakes and not told and (old is None or "MISTAKE" not in old)):
            return
        with machine.firmware_writable():
            machine.write(file, text)
    except OSError as error:
        machine.say(f"{REPORT} could not be written: {error}")


def _besides(machine: Machine, name: str) -> bytes:
    """What else the result depends on: after an update and after the way back, settings are merged and checked anew."""
    if name != "lamplighter.toml":
        return b""
    release = machine.path("/usr/lib/os-release")  # has the version of the image
    return machine.path("/etc/lamplighter/appliance.toml").read_bytes() + release.read_bytes()


def _text(content: bytes) -> str:
    """As editors of all systems write it: with or without a byte order mark, lines ended this way or that."""
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeError:
        raise Mistake("is not text; save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


TAKERS: dict[str, Taker] = {
    FILE: take_imager,
    "wpa_supplicant.conf": take_wireless,
    "authorized_keys": take_keys,
    "timezone": take_time_zone,
    "lamplighter.toml": take_settings,
}
_NEARLY = {f"{name}.txt": name for name in TAKERS} | {
    "timezone.conf": "timezone",
    "wpa_supplicant-wlan0.conf": "wpa_supplicant.conf",
    "authorized_keys.pub": "authorized_keys",
    "id_ed25519.pub": "authorized_keys",
    "id_rsa.pub": "authorized_keys",
    "factory-reset.txt": "factory-reset",
    "user-data": f"{FILE}, which Imager 2.0.11 writes with this image's manifest",
    "firstrun.sh": f"{FILE}, which Imager 2.0.11 writes with this image's manifest",
}
