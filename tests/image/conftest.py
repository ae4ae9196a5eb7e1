from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import ROOT

# What the image runs on the system's Python, and what builds it, are no packages of the project.
sys.path.append(str(ROOT / "image/layer/45-first-boot/rootfs-overlay/usr/lib/lamplighter-appliance"))
sys.path.append(str(ROOT / "image"))


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of what `make image` has made."""
    device = os.environ.get("DEVICE") or "pi64"
    of_device = ROOT / "build" / ("image" if device == "pi64" else f"image-{device}")
    return Path(os.environ.get("IMAGE_FOLDER", of_device))


@pytest.fixture(scope="session")
def certificate() -> Path:
    """Of the key that bundles are signed with."""
    return Path(os.environ.get("UPDATE_KEY", ROOT / "update-key")) / "certificate.pem"


@pytest.fixture(scope="session")
def image(built: Path) -> Path:
    """The image, not compressed."""
    found = sorted(built.glob("lamplighter-*.img"))
    assert len(found) == 1, f"{built} has {len(found)} images, not one: make image"
    return found[0]


@pytest.fixture(scope="session")
def system(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The read-only root of the image, unpacked."""
    import subprocess

    from tests.image.virtual_machine import partitions

    folder = tmp_path_factory.mktemp("system") / "root"
    part = partitions(image)[5]
    command = ["unsquashfs", "-quiet", "-no-progress", "-o", str(part.begin), "-d", str(folder), str(image)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)
