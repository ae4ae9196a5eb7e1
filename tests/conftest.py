"""Which tests run side by side: files are shared out among the processes, the longest first.

A file's tests stay together, since they share what is started for them. Those that use Spark stay together too, for one
JVM is enough, and the cases of the oracle do not have to.
"""

from __future__ import annotations

from typing import Any

import pytest

_SPARK = ("tests/cloud_sync/test_fleet_jobs.py", "tests/cloud_sync/test_fleet_lake.py")
_ORACLE = "tests/properties/test_engine_oracle.py"
_LONGEST = (*_SPARK, _ORACLE, "tests/properties/", "tests/w3c/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(_SPARK):
                return "spark"
            return nodeid if nodeid.startswith(_ORACLE) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)
