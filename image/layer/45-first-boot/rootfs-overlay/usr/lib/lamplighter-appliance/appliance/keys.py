"""Public keys for ssh, and the time zone."""

from __future__ import annotations

import re

from .machine import Machine
from .mistakes import Mistake


def take_keys(machine: Machine, text: str, user: str = "root") -> str:
    """Applies the keys for a user; returns what was done. Raises Mistake."""
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            if "PRIVATE KEY" in line:
                raise Mistake("is a private key; make a new one, and put its public half there (.pub)")
            if machine.run("ssh-keygen", "-l", "-f", "-", given=f"{line}\n").returncode:
                raise Mistake(
                    f"line {number} is not an ssh public key; copy the one line of a file such as id_ed25519.pub"
                )
            count += 1
    if not count:
        raise Mistake("has no key in it; copy the one line of a file such as id_ed25519.pub")
    mode = 0o600 if user == "root" else 0o644  # sshd reads it with the rights of the user
    machine.write(machine.path(f"/etc/ssh/authorized_keys/{user}"), text if text.endswith("\n") else f"{text}\n", mode)
    return f"applied, {count} {'key' if count == 1 else 'keys'} for ssh {user}@..."


def take_time_zone(machine: Machine, text: str) -> str:
    """Applies the time zone; returns what was done. Raises Mistake."""
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
