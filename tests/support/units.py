"""The units and the scripts of the Debian package, as they are installed."""

import atexit
import shutil
import tempfile
from pathlib import Path

from lamplighter.gateway.service.units import main
from tests.support.places import ROOT

_FOLDER = Path(tempfile.mkdtemp(prefix="lamplighter-units-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
UNITS, PACKAGE = _FOLDER / "units", _FOLDER / "package"
"""Folders: of the units, and of the scripts of the package."""
for made in (UNITS, PACKAGE):
    made.mkdir()
main([str(ROOT / "systemd"), str(UNITS), str(ROOT / "image/deb"), str(PACKAGE)])
