"""A manifest for Raspberry Pi Imager 2: it offers the image for the boards that it starts, and checks what it writes.

`init_format` is rpi-preseed: Imager 2.0.11 and later write their customisation as one TOML file to the first partition,
and the appliance reads it like its own files there. Neither cloud-init nor a script that runs as root is in the image.
A file's address is where it was made; IMAGE_URL= says where it will be.

Settings, of the device: BOARDS, IMAGER_DEVICES.

Use: python3 manifest.py IMAGE VERSION > lamplighter.rpi-imager-manifest
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def manifest(
    image: Path, version: str, moment: datetime, boards: str, devices: list[str], url: str = ""
) -> dict[str, Any]:
    """The whole document. image: the one that is not compressed; the compressed one is beside it. boards, devices: for
    people, and as Imager calls them."""
    compressed = image.with_name(f"{image.name}.zst")
    return {
        "os_list": [
            {
                "name": f"Lamplighter {version}",
                "description": f"Semantic edge gateway: MQTT, SPARQL and CoAP. For {boards}.",
                "icon": "icons/use_custom.png",
                "url": url or compressed.resolve().as_uri(),
                "extract_size": image.stat().st_size,
                "extract_sha256": _digest(image),
                "image_download_size": compressed.stat().st_size,
                "image_download_sha256": _digest(compressed),
                "release_date": moment.strftime("%Y-%m-%d"),
                "devices": devices,
                "architecture": "armv8",
                "init_format": "rpi-preseed",
            }
        ]
    }


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


if __name__ == "__main__":
    when = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    boards, devices = os.environ["BOARDS"], os.environ["IMAGER_DEVICES"].split()
    found = manifest(Path(sys.argv[1]), sys.argv[2], when, boards, devices, os.environ.get("IMAGE_URL", ""))
    json.dump(found, sys.stdout, indent=1)
    print()
