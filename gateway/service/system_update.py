"""`lamplighter update FILE.raucb`: a signed bundle into the system slot that is not running (the image only).

RAUC installs the bundle and checks the signature. After the next start, the image's own units decide whether the new
system stays (docs/appliance.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lamplighter.engine.errors import ConfigurationError

SUFFIX = ".raucb"
_SLOTS = Path("/etc/rauc/system.conf")
_TRIAL = Path("/run/appliance/trial")


def install_bundle(bundle: Path, slots: Path = _SLOTS, trial: Path = _TRIAL) -> int:
    """Installs an update bundle; returns RAUC's exit code. Raises ConfigurationError where there are no slots."""
    if not slots.exists():
        raise ConfigurationError(
            f"{bundle}: update bundles are for the image; this machine is updated by its packages (apt install X.deb)"
        )
    if not bundle.is_file():
        raise ConfigurationError(f"{bundle}: there is no such file")
    if os.geteuid() != 0:
        raise ConfigurationError(f"{bundle}: only root can install a system; use sudo")
    if trial.exists():
        raise ConfigurationError(
            f"{bundle}: the running system is on trial, and the other one is its rollback target; "
            "wait until the trial has ended (journalctl -u appliance-health), or restart to go back"
        )
    done = subprocess.run(["rauc", "install", str(bundle.resolve())], check=False)
    if done.returncode:
        print(f"lamplighter: {bundle} was not installed, and nothing has changed", file=sys.stderr)
        return 1
    print("The next start (systemctl reboot) tries the new system. It stays if it passes the health check.")
    return 0
