"""The user's files on the firmware partition. Each is taken when it is new or was changed; a mistake is told, on the
console too, and what was before stays as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

from .machine import WIRELESS, Machine, first_line

_BYTES_MAX = 256 * 1024


class Mistake(Exception):
    """What is wrong with a file, and what to do about it, in one line."""


Taker = Callable[[Machine, str], str]
"""Takes the text of a file; returns what was done, in a few words. Raises Mistake."""


def take_files(machine: Machine) -> bool:
    """Takes what is new; returns whether all that was found is good."""
    taken = machine.state / "files.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # else all are taken once more
        known = dict(json.loads(taken.read_text()))
    mistakes: list[str] = []

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
            machine.say(f"{name}: {take(machine, _text(content))}")
            known[name] = digest
            machine.write(taken, json.dumps(known), 0o600)
        except Mistake as mistake:
            tell(f"MISTAKE in {name}: {mistake}")  # and again at the next start
        except Exception as error:  # a worn card, a full one: the gateway waits for this to end, and does not need it
            tell(f"MISTAKE in {name}: not applied: {error!r}")
    for file in sorted(machine.firmware.glob("*")):
        if file.name.lower() in _NEARLY and file.name not in TAKERS:
            tell(f"MISTAKE: {file.name} is not read; did you mean {_NEARLY[file.name.lower()]}?")
    if mistakes:  # above the prompt, too, which clears the screen
        shown = "".join(f"{mistake}\n" for mistake in mistakes).replace("\\", "\\\\")
        machine.write(machine.path("/run/issue.d/lamplighter.issue"), f"{shown}\n")
    return not mistakes


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


# --- settings -------------------------------------------------------------------------------------------


def _settings(machine: Machine, text: str) -> str:
    try:
        given = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{error}; write TOML, as in docs/operations.md") from None
    own = tomllib.loads(machine.path("/etc/lamplighter/appliance.toml").read_text())
    settings = machine.path("/etc/lamplighter/lamplighter.toml")
    trial = settings.with_name("lamplighter.trial.toml")
    machine.write(trial, _HEAD + merged(own, given))
    try:
        checked = machine.run("lamplighter", "check", "--config", str(trial))
    except OSError as error:
        raise Mistake(f"cannot be checked: {error}") from None
    if checked.returncode:
        trial.unlink()
        said = first_line(checked.stderr).removeprefix("lamplighter: ").replace(str(trial), "lamplighter.toml")
        raise Mistake(said or "the gateway refuses it")
    trial.replace(settings)
    return f"applied, {sum(map(len, given.values()))} settings"


_HEAD = "# Generated from appliance.toml beside this file and lamplighter.toml on the firmware partition.\n"


def merged(*documents: dict[str, Any]) -> str:
    """Settings as TOML: what a later document says goes before what an earlier one said. Raises Mistake."""
    tables: dict[str, Any] = {}
    for document in documents:
        for table, members in document.items():
            if not isinstance(members, dict):
                raise Mistake(f"{table} is outside of a table; put it below a line such as [gateway]")
            tables[table] = {**tables.get(table, {}), **members}
    return "".join(
        f"\n[{table}]\n" + "".join(f"{name} = {_value(value, f'{table}.{name}')}\n" for name, value in members.items())
        for table, members in tables.items()
    )


def _value(value: object, name: str) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)  # the same in TOML as in JSON, for these
    if isinstance(value, list):
        return f"[{', '.join(_value(one, name) for one in value)}]"
    raise Mistake(f"{name} is neither text, number, true, false nor a list of them")


# --- the rest -------------------------------------------------------------------------------------------


def _wireless(machine: Machine, text: str) -> str:
    # Without comments; a # in quotes begins none, and a bracket in quotes is none.
    lines = [re.sub(r'^([^"#]*(?:"[^"]*"[^"#]*)*)#.*$', r"\1", line).strip() for line in text.splitlines()]
    plain = "\n".join(lines)
    bare = re.sub(r'=\s*".*"$', "=", plain, flags=re.MULTILINE)
    if bare.count("{") != bare.count("}"):
        raise Mistake("the brackets { } do not match")
    if not re.search(r"^network\s*=\s*\{", plain, re.MULTILINE):
        raise Mistake("has no network={ ... }; docs/operations.md shows one")
    if not re.search(r"^ssid\s*=", plain, re.MULTILINE):
        raise Mistake('has no ssid="..." in network={ ... }')
    if not re.search(r"^country\s*=\s*[A-Z]{2}$", plain, re.MULTILINE):
        raise Mistake("has no line country=XX with your country's two letters; without it radios stay silent")
    for key in re.findall(r'^psk\s*=\s*"(.*)"$', plain, re.MULTILINE):
        if not 8 <= len(key.encode()) <= 63:
            raise Mistake(f"psk has {len(key.encode())} characters; it must have 8 to 63")
    machine.write(machine.path(WIRELESS), text, 0o600)
    return "applied, the wireless network will be joined"


def _keys(machine: Machine, text: str) -> str:
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            if "PRIVATE KEY" in line:
                raise Mistake("is a private key; make a new one, and put its public half there (.pub)")
            if machine.run("ssh-keygen", "-l", "-f", "-", given=f"{line}\n").returncode:
                raise Mistake(f"line {number} is not an ssh public key")
            count += 1
    if not count:
        raise Mistake("has no key in it")
    machine.write(machine.path("/etc/ssh/authorized_keys/root"), text if text.endswith("\n") else f"{text}\n", 0o600)
    return f"applied, {count} {'key' if count == 1 else 'keys'} for ssh root@..."


def _time_zone(machine: Machine, text: str) -> str:
    name = text.strip()
    zone = machine.path("/usr/share/zoneinfo") / name
    if not re.fullmatch(r"(?=.{1,100}$)[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", name) or not zone.is_file():
        raise Mistake(f"there is no time zone {name[:60]!r}; it is a name such as Europe/Rome")
    link = machine.path("/etc/localtime")
    new = link.with_name(".localtime.new")
    new.unlink(missing_ok=True)
    new.symlink_to(f"/usr/share/zoneinfo/{name}")
    new.replace(link)
    machine.write(machine.path("/etc/timezone"), f"{name}\n")
    return f"applied, the time zone is {name}"


TAKERS: dict[str, Taker] = {
    "wpa_supplicant.conf": _wireless,
    "authorized_keys": _keys,
    "timezone": _time_zone,
    "lamplighter.toml": _settings,
}
_NEARLY = {f"{name}.txt": name for name in TAKERS} | {
    "timezone.conf": "timezone",
    "wpa_supplicant-wlan0.conf": "wpa_supplicant.conf",
    "authorized_keys.pub": "authorized_keys",
    "id_ed25519.pub": "authorized_keys",
    "id_rsa.pub": "authorized_keys",
    "factory-reset.txt": "factory-reset",
}
