"""What holds for all tests. Which run side by side: files are shared out among the processes, the longest first.

A file's tests stay together, since they share what is started for them; the cases of the oracle do not have to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

_ORACLE = "tests/properties/test_engine_oracle.py"
_LONGEST = (_ORACLE, "tests/properties/", "tests/w3c/", "tests/gateway/test_reader.py", "tests/benchmarks/")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A command that a test runs within this process sets the level for itself, and not for the tests after it."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(_ORACLE) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)
