"""`rpi-preseed.toml`, which Raspberry Pi Imager writes for the format of that name: the choices of its customisation.

Read once, like every file of the firmware partition. Where there is also a file of the appliance's own for the same
(`wpa_supplicant.conf`, `authorized_keys`, `timezone`), that one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .identity import set_host_name
from .keys import take_keys, take_time_zone
from .machine import Machine, first_line
from .mistakes import Mistake, document
from .wireless import take_wireless

FILE = "rpi-preseed.toml"
PASSWORDS = "/etc/ssh/sshd_config.d/00-imager.conf"  # before appliance.conf: sshd takes what it reads first
_HOMES = "/data/home"  # the system is read-only
_HASH = re.compile(r"\$(y|7|6|5|2b|gy)\$[./A-Za-z0-9$=,-]+")
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_USER_LEAST = 1000
_NOT_HERE = ("connect", "interfaces")

Part = Callable[[Machine, dict[str, Any], dict[str, Any]], str]
"""Applies a table; the second one is the whole file. Returns what was done, "" for nothing. Raises Mistake."""


def take_imager(machine: Machine, text: str) -> str:
    """Applies all parts, also after one that is wrong; returns what was done. Raises Mistake with all faults."""
    given = document(text)
    told, wrong = [], []
    for name, part in PARTS.items():
        table = given.get(name)
        if table is None:
            continue
        try:
            if not isinstance(table, dict):
                raise Mistake("is no table; let Imager write the card again")
            told.append(part(machine, table, given))
        except Mistake as mistake:
            wrong += [f"[{name}] {line}" for line in str(mistake).splitlines()]
    told += [f"[{name}] is not for this image" for name in _NOT_HERE if name in given]
    if wrong:
        raise Mistake("\n".join(wrong))
    return "; ".join(filter(None, told)) or "nothing in it"


def _system(machine: Machine, table: dict[str, Any], given: dict[str, Any]) -> str:
    name = _text(table, "hostname")
    if not name:
        return ""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", name):
        raise Mistake(f"hostname {name[:60]!r} is no host name; use letters, digits and - in it")
    set_host_name(machine, name.lower())
    return f"the name is {name.lower()}.local"


def _user(machine: Machine, table: dict[str, Any], given: dict[str, Any]) -> str:
    name, secret = _text(table, "name"), _text(table, "password")
    if not _NAME.fullmatch(name):
        raise Mistake(f"name {name[:60]!r} is no name of a user; use small letters, digits, - and _")
    encrypted = table.get("password_encrypted", False) is True
    if "\n" in secret or (encrypted and not _HASH.fullmatch(secret)):
        raise Mistake("password is no hash that this machine knows; let Imager write the card again")
    known = machine.run("id", "-u", name)
    if not known.returncode and int(known.stdout) < _USER_LEAST:
        raise Mistake(f"{name} is a user of the system; take another name")
    machine.path(_HOMES).mkdir(parents=True, exist_ok=True)
    commands: list[tuple[tuple[str, ...], str | None]] = []
    if known.returncode:
        commands.append((("useradd", "--create-home", "--base-dir", _HOMES, "--shell", "/bin/bash", name), None))
    commands.append((("usermod", "--append", "--groups", "sudo", name), None))
    if secret:
        commands.append((("chpasswd", *(["--encrypted"] if encrypted else [])), f"{name}:{secret}\n"))
    for command, text in commands:
        done = machine.run(*command, given=text)
        if done.returncode:
            raise Mistake(f"{command[0]} refuses {name}: {first_line(done.stderr)}")
    rule = machine.path(f"/etc/sudoers.d/010-{name}")
    if table.get("passwordless_sudo") is True:
        machine.write(rule, f"{name} ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    else:
        rule.unlink(missing_ok=True)
    return f"{name} may log in and use sudo"


def _ssh(machine: Machine, table: dict[str, Any], given: dict[str, Any]) -> str:
    told = []
    user = _text(given.get("user", {}), "name")
    if table.get("enabled") is not True:
        machine.path(PASSWORDS).unlink(missing_ok=True)
        return ""
    keys = table.get("authorized_keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Mistake("authorized_keys is no list of keys")
    if user:
        if keys:
            told.append(take_keys(machine, "\n".join(keys), user))
        if table.get("password_authentication") is True:
            machine.write(machine.path(PASSWORDS), "PasswordAuthentication yes\n")
            told.append(f"{user} may log in with the password")
        else:
            machine.path(PASSWORDS).unlink(missing_ok=True)
    elif keys and not (machine.firmware / "authorized_keys").exists():
        told.append(take_keys(machine, "\n".join(keys)))
    return "; ".join(told)


def _wlan(machine: Machine, table: dict[str, Any], given: dict[str, Any]) -> str:
    if (machine.firmware / "wpa_supplicant.conf").exists():
        return "wpa_supplicant.conf counts for the wireless network"
    name, octets, secret = (_text(table, key) for key in ("ssid", "ssid_hex", "password"))
    if not name and not octets:
        return ""
    lines = [f"ssid={octets or name.encode().hex()}"]
    if not secret:
        lines.append("key_mgmt=NONE")
    else:
        lines.append(f"psk={secret}" if table.get("password_encrypted") is True else f'psk="{secret}"')
    if table.get("hidden") is True:
        lines.append("scan_ssid=1")
    country = _text(table, "country").upper()
    block = "".join(f"    {line}\n" for line in lines)
    if any("\n" in line for line in (*lines, country)):
        raise Mistake("has a line end in a value; let Imager write the card again")
    return take_wireless(machine, (f"country={country}\n" if country else "") + f"network={{\n{block}}}\n")


def _locale(machine: Machine, table: dict[str, Any], given: dict[str, Any]) -> str:
    zone = _text(table, "timezone")
    if not zone or (machine.firmware / "timezone").exists():
        return ""
    return take_time_zone(machine, zone)


def _text(table: Any, key: str) -> str:
    value = table.get(key, "") if isinstance(table, dict) else ""
    if not isinstance(value, str):
        raise Mistake(f"{key} is no text; let Imager write the card again")
    return value.strip()


PARTS: dict[str, Part] = {"system": _system, "user": _user, "ssh": _ssh, "wlan": _wlan, "locale": _locale}
