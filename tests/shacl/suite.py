"""The W3C data-shapes test suite (SHACL Core), read from pySHACL's source distribution."""

from __future__ import annotations

from functools import cache

from tests.support.suites import SuiteMissingError, suite_files


@cache
def documents() -> dict[str, bytes]:
    """All Turtle files by their path below the folder of the suite. Raises SuiteMissingError."""
    files = suite_files("pyshacl", "shacl", "test/resources/sht_tests/core")
    return {path: content for path, content in files.items() if path.endswith(".ttl")}


def cases() -> list[str]:
    """The files with a test each, or none where the suite is missing: `test_suite_is_there` says that once for all."""
    try:
        return sorted(name for name, text in documents().items() if b"sht:Validate" in text)
    except SuiteMissingError:
        return []
