"""`python3 -m appliance identity|announce|health|boot-backend`: what the units of the image and RAUC start."""

from __future__ import annotations

import subprocess
import sys

from .announcement import announce
from .files import take_files
from .identity import make_identity
from .machine import Machine
from .slots import backend, health, is_well


def main(arguments: list[str]) -> int:
    machine = Machine()
    match arguments:
        case ["identity"]:
            make_identity(machine)
            take_files(machine)  # a mistake in a file is told, and does not keep the machine from starting
            return 0
        case ["announce"]:
            announce(machine)
            return 0
        case ["health"]:
            if health(machine, is_well):
                subprocess.run(["systemctl", "reboot"], check=True)
            return 0
        case ["boot-backend", *rest]:
            return backend(machine, rest)
    print("use: python3 -m appliance identity|announce|health|boot-backend", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
