"""A gateway's data folder and the settings of its shipper."""

from __future__ import annotations

import json
from pathlib import Path

from lamplighter.cloud_sync.__main__ import main
from tests.support.shipped_logs import DataFolder, segments

LOG = segments("gw-1", 1, [3, 2, 4])


class Site:
    """A gateway's folder with its configuration, and what else there is on the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "lamplighter.toml"
        self.data = DataFolder(folder / "data")
        self.data.add(*LOG)
        self.lake = folder / "lake"
        (folder / "to").mkdir()

    def configure(self, destination: str, options: dict[str, object] | None = None, **more: object) -> None:
        keys = {"destination": destination, **more}
        if options is not None:
            keys["options_file"] = "sync-options.toml"
            file = self.folder / "sync-options.toml"
            file.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in options.items()))
            file.chmod(0o600)
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in keys.items())
        self.config.write_text(f"[gateway]\nclock_trusted = 'always'\n[sync]\n{lines}")

    def sync(self, *arguments: str) -> int:
        return main([*arguments, "--config", str(self.config)])


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)
