"""What tells this machine from all others, made at its first start from the kernel's random numbers.

Never from a serial number or a MAC address: whoever is on the network can see or guess those.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import tempfile
from pathlib import Path

from .machine import Machine

_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # 32 characters that are not mistaken for each other
_ITERATIONS = 101  # what mosquitto_passwd of Debian 13 writes; a password of 100 random bits needs no more
BROKER_USERS = ("sensors", "gateway")


ACCOUNTS = "/usr/lib/lamplighter-appliance/accounts"  # passwd, group, shadow, gshadow of the image


def make_identity(machine: Machine) -> None:
    """Makes what is missing: users, host name, ssh host key, passwords of the broker. Called at each start."""
    add_missing_accounts(machine)
    _host_name(machine)
    _host_key(machine)
    _broker_passwords(machine)


def password() -> str:
    """100 random bits, for people to type: 20 letters and digits in groups."""
    characters = "".join(secrets.choice(_ALPHABET) for _ in range(20))
    return "-".join(characters[at : at + 5] for at in range(0, 20, 5))


def broker_line(user: str, secret: str) -> str:
    """A line of mosquitto's password file (PBKDF2 with SHA-512, as mosquitto_passwd writes it)."""
    salt = secrets.token_bytes(12)
    derived = hashlib.pbkdf2_hmac("sha512", secret.encode(), salt, _ITERATIONS)
    return f"{user}:$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(derived).decode()}\n"


def add_missing_accounts(machine: Machine) -> None:
    """Adds users and groups of the image: once somebody has a user made, /etc/passwd is that of another version."""
    for of_image in sorted(machine.path(ACCOUNTS).glob("*")):
        file = machine.path(f"/etc/{of_image.name}")
        lines = file.read_text().splitlines()
        names = {line.partition(":")[0] for line in lines}
        missing = [line for line in of_image.read_text().splitlines() if line.partition(":")[0] not in names]
        if missing:
            mode = file.stat().st_mode & 0o7777
            machine.write(file, "".join(f"{line}\n" for line in (*lines, *missing)), mode, like=file)


def set_host_name(machine: Machine, name: str) -> None:
    machine.write(machine.path("/etc/hosts"), f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n")
    machine.write(machine.path("/etc/hostname"), f"{name}\n")
    if machine.root == Path("/"):
        socket.sethostname(name)


def _host_name(machine: Machine) -> None:
    file = machine.path("/etc/hostname")
    name = file.read_text().strip() if file.exists() else ""
    if not name:
        set_host_name(machine, f"lamplighter-{secrets.token_hex(2)}")
    elif machine.root == Path("/"):
        socket.sethostname(name)


def _host_key(machine: Machine) -> None:
    """One kind is enough for every client of today, and RSA takes a small board half a minute."""
    key = machine.path("/etc/ssh/ssh_host_ed25519_key")
    if key.exists() and key.stat().st_size:
        return
    with tempfile.TemporaryDirectory(dir=machine.path("/run")) as folder:  # what ssh-keygen writes is not synced
        new = Path(folder, "key")
        done = machine.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(new))
        if done.returncode:
            machine.say(f"ssh host keys could not be created: {done.stderr.strip()}")
            return
        machine.write(key.with_name(f"{key.name}.pub"), new.with_name("key.pub").read_text())
        machine.write(key, new.read_text(), 0o600)  # last: its being there says that both are


def _broker_passwords(machine: Machine) -> None:
    """The password of `sensors` is kept readable until it was announced; the gateway's, for the adapter, for good."""
    passwords = machine.path("/etc/mosquitto/passwords")
    if passwords.exists():
        return
    chosen = {user: password() for user in BROKER_USERS}
    machine.write(machine.state / "broker.json", json.dumps({"sensors": chosen["sensors"]}), 0o600)
    machine.write(machine.path("/etc/credstore/lamplighter.mqtt-password"), f"{chosen['gateway']}\n", 0o600)
    # Last: its being there says that the others are. The broker reads it as its own user.
    lines = "".join(broker_line(user, secret) for user, secret in chosen.items())
    machine.write(passwords, lines, 0o600, like=machine.path("/var/lib/mosquitto"))
