"""Real components that tests talk to: found on the machine, or the test says what is missing."""

import os
import shutil

import pytest

_PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])


def require_command(*names: str) -> str:
    """The path of the first of these commands that is there; else the test is skipped, or fails where CI=true."""
    for name in names:
        path = shutil.which(name, path=_PLACES)
        if path:
            return path
    reason = f"none of {', '.join(names)} is installed; tests/install-components.sh says which package has it"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
