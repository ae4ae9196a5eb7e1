"""The software in a tree, as CycloneDX 1.6: Debian's packages from dpkg's status, Python's from their metadata.

Use: python3 sbom.py TREE VERSION > lamplighter.cdx.json
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import quote


def debian_packages(tree: Path) -> Iterator[dict[str, Any]]:
    """One component for each package that is installed."""
    suite = _os_release(tree).get("VERSION_CODENAME", "")
    for paragraph in (tree / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        fields = Parser().parsestr(paragraph, headersonly=True)
        if fields["Status"] != "install ok installed":
            continue
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        place = "debian" if name != "lamplighter" else "lamplighter"
        purl = f"pkg:deb/{place}/{quote(name)}@{quote(version, safe='')}?arch={architecture}&distro={suite}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
            "supplier": {"name": " ".join(fields["Maintainer"].split())},
        }


def python_packages(tree: Path) -> Iterator[dict[str, Any]]:
    """One component for each distribution in the application's environment."""
    for metadata in sorted(tree.glob("usr/lib/lamplighter/lib/python3.*/site-packages/*.dist-info/METADATA")):
        fields = Parser().parsestr(metadata.read_text(), headersonly=True)
        name = fields["Name"].lower().replace("_", "-").replace(".", "-")
        purl = f"pkg:pypi/{quote(name)}@{quote(fields['Version'], safe='')}"
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": purl,
            "name": fields["Name"],
            "version": fields["Version"],
            "purl": purl,
        }
        if licence := fields["License-Expression"]:
            component["licenses"] = [{"expression": licence}]
        yield component


def sbom(tree: Path, version: str, moment: datetime) -> dict[str, Any]:
    """The whole document. moment: of the source, so that the same source gives the same document."""
    components = {component["bom-ref"]: component for component in [*debian_packages(tree), *python_packages(tree)]}
    names = "\n".join(sorted(components))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, names)}",
        "version": 1,
        "metadata": {
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "operating-system",
                "bom-ref": "lamplighter-image",
                "name": "lamplighter-image",
                "version": version,
            },
        },
        "components": list(components.values()),
        "dependencies": [{"ref": "lamplighter-image", "dependsOn": sorted(components)}],
    }


def _os_release(tree: Path) -> dict[str, str]:
    lines = (tree / "usr/lib/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


if __name__ == "__main__":
    when = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    json.dump(sbom(Path(sys.argv[1]), sys.argv[2], when), sys.stdout, indent=1)
    print()
