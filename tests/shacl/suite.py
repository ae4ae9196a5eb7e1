"""The W3C data-shapes test suite (SHACL Core), read from pySHACL's source distribution.

The distribution is fetched by `tests/shacl/fetch.sh` (a step of `make test`) and read in memory; its hash must be one
of `requirements-test.lock`.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from functools import cache

from tests.support.places import ROOT

_FOLDER = "test/resources/sht_tests/core/"


class DataShapesMissingError(Exception):
    """The source distribution is not there or not the pinned one; the message says so."""


@cache
def documents() -> dict[str, bytes]:
    """All Turtle files by their path below the folder of the suite. Raises DataShapesMissingError."""
    lock = (ROOT / "requirements-test.lock").read_text()
    pin = re.search(r"^pyshacl==(\S+) \\\n((?:\s+--hash=\S+(?: \\)?\n?)+)", lock, re.M)
    assert pin, "requirements-test.lock pins pySHACL"
    place = ROOT / "build" / "shacl" / f"pyshacl-{pin[1]}.tar.gz"
    if not place.exists():
        raise DataShapesMissingError(
            f"{place.relative_to(ROOT)} is not there; `sh tests/shacl/fetch.sh` fetches it (`make test` does that)"
        )
    data = place.read_bytes()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" not in pin[2]:
        raise DataShapesMissingError(
            f"{place.relative_to(ROOT)} has not the hash that requirements-test.lock pins; remove it and fetch it again"
        )
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if path.startswith(_FOLDER) and path.endswith(".ttl"):
                content = archive.extractfile(member)
                assert content is not None
                found[path.removeprefix(_FOLDER)] = content.read()
    return found


def cases() -> list[str]:
    """The files with a test each, or none where the suite is missing: `test_suite_is_there` says that once for all."""
    try:
        return sorted(name for name, text in documents().items() if b"sht:Validate" in text)
    except DataShapesMissingError:
        return []
