"""Builds the web page and the documents before sdist and wheel, if they were not built yet. An sdist has them built."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Without npm, PyPI and network the package lacks them, and the reason is printed. version: "editable" for a
        development installation, which make gives them."""
        if version == "editable":
            return
        root = Path(self.root)
        for built, script, without in (
            (
                "built/index.html",
                "gateway/page/build.sh",
                "the web page could not be built; the package has its text",
            ),
            ("built-docs/files.json", "docs_site/build.sh", "the documents could not be built; the package has none"),
        ):
            if (root / "gateway" / "page" / built).exists():
                continue
            if subprocess.run(["sh", str(root / script)], check=False).returncode:
                self.app.display_warning(without)
