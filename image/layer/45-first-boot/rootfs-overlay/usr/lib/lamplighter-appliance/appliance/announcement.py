"""Told once, on the console and in a file on the firmware partition: addresses, names and secrets of this machine."""

from __future__ import annotations

import json
import re
import socket

from .machine import CREDENTIALS, WIRELESS, Machine, first_line

OPERATOR = "operator"


def announce(machine: Machine) -> None:
    """Registers the operator with the running gateway and tells everything. Raises OSError when that fails.

    A power cut in between costs nothing: the next start begins anew, with another secret.
    """
    secret = _operator_secret(machine)
    fingerprint = _fingerprint(machine)
    broker = machine.state / "broker.json"
    sensors = json.loads(broker.read_text())["sensors"]
    name = f"{socket.gethostname()}.local"
    text = (
        f"Lamplighter on {name}\n"
        f"  gateway       https://{name}:8443\n"
        f"  authority     https://{name}:8443/ca.pem\n"
        f"  fingerprint   {fingerprint}\n"
        f"  client id     {OPERATOR}\n"
        f"  client secret {secret}\n"
        f"  MQTT broker   {name}:1883\n"
        f"  MQTT user     sensors\n"
        f"  MQTT password {sensors}\n"
        "These secrets are shown only once. Store them safely, and delete the file.\n"
    )
    try:
        with machine.firmware_writable():
            machine.write(machine.firmware / CREDENTIALS, text.replace("\n", "\r\n"), 0o600)
    except OSError as error:
        machine.say(f"{CREDENTIALS} could not be written: {error}; only the console shows the secrets")
    machine.show(text)
    if machine.path(WIRELESS).exists() and not [*machine.path("/sys/class/net").glob("wlan*")]:
        machine.say("this board has no supported wireless network; see docs/appliance.md, Boards")
    machine.write(machine.state / "announced", "")
    broker.unlink()


def _operator_secret(machine: Machine) -> str:
    everything = ("--read", "*", "--write", "*", "--subscribe", "*", "--operate")
    done = machine.run("lamplighter", "clients", "add", OPERATOR, "--register", *everything)
    if done.returncode:  # there is one, of a start that was interrupted; nobody was told its secret
        machine.run("lamplighter", "clients", "remove", OPERATOR, "--yes")
        done = machine.run("lamplighter", "clients", "add", OPERATOR, "--register", *everything)
    found = re.search(r"^client_secret\s+(\S+)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        raise OSError(f"the operator could not be registered: {first_line(done.stderr)}")
    return found[1]


def _fingerprint(machine: Machine) -> str:
    authority = machine.path("/var/lib/lamplighter/security/authority.pem")
    done = machine.run("openssl", "x509", "-in", str(authority), "-noout", "-fingerprint", "-sha256")
    return first_line(done.stdout).replace("sha256 Fingerprint=", "SHA-256 ") or f"unknown: {first_line(done.stderr)}"
