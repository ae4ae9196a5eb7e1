"""Builds the web page before sdist and wheel, if it was not built yet. An sdist has the built page."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Without npm and network the package has no page, and the reason is printed. version: "editable" for a
        development installation, which make gives its page."""
        page = Path(self.root) / "gateway" / "page"
        if version == "editable" or (page / "built" / "index.html").exists():
            return
        if subprocess.run(["sh", str(page / "build.sh")], check=False).returncode:
            self.app.display_warning("the web page could not be built; the package serves its text page only")
