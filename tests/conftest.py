"""What holds for all tests. Which run side by side: files are shared out among the processes, the longest first, as far
as earlier runs on this machine have told how long they take.

A file's tests stay together, since they share what is started for them; those of `_APART` do not have to. Files whose
tests use the same ports are one.

Each test has a time limit, by its tier or by its own marker ``timeout``. A test that exceeds it has hung: the stacks of
all threads are printed and the process ends. faulthandler does it, from a thread that needs no GIL: it also ends a test
that hangs in native code.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, is_hypothesis_test, settings
from hypothesis import strategies as st
from websockets.asyncio import client as asyncio_client
from websockets.sync import client as sync_client

from tests.support.amounts import AMOUNTS, Amounts
from tests.support.event_loops import TIMEOUT_S
from tests.support.forked_workers import ForkedWorkers, add_option
from tests.support.times_report import TestTimes, last_seconds

_CONTAINERS = ("tests/systemd/test_services.py", "tests/systemd/test_versions.py")
"""Their containers have one cgroup, that of the process, so one process runs them."""
_HOSTILE = "tests/faults/test_hostile_messages.py"
_WORKERS = ("tests/gateway/workers/test_ad_hoc.py", "tests/whole_gateway/workers/test_ad_hoc.py")
_MQTT = ("tests/adapters/mqtt/test_silence.py", "tests/adapters/test_mqtt_adapter.py")
_LOSSY = "tests/adapters/coap/test_lossy_lamps.py"
_DOORS = ("tests/whole_gateway/security/test_access_at_doors.py", "tests/whole_gateway/gates/test_websocket_memory.py")
_LONGEST = (
    # One process has both containers, one after the other: minutes that nobody can share. The next ones are groups of
    # minutes in the fault tier, too: one that begins last keeps a core alone.
    *(*_CONTAINERS, _HOSTILE, "tests/faults/test_kills.py"),
    *("tests/faults/test_clock_kills.py", "tests/faults/test_house_hours.py", "tests/faults/test_power_cuts.py"),
    *("tests/faults/", "tests/systemd/", "tests/packaging/", *_DOORS, _LOSSY, "tests/e2e/"),
    *("tests/examples/", *_MQTT, *_WORKERS, "tests/benchmarks/", "tests/w3c/", "tests/properties/"),
)
"""What takes long begins first, in this order, where no earlier run has told how long it takes."""
_APART = ("tests/faults/", "tests/properties/", "tests/benchmarks/test_sub_engine.py", _LOSSY)
"""Each of their tests is a group of its own: they share nothing, and some take minutes."""

_DEFAULT_PORTS = ("tests/e2e/test_demo.py", "tests/e2e/test_demo_keys.py", "tests/packaging/test_wheel.py")
"""They start a gateway on the ports of the settings' defaults, so one process runs them."""
_PARSING = ("tests/test_architecture.py", "tests/test_shape.py", "tests/test_docs.py")
"""They parse every module, so one process runs them."""
_FLEET = "tests/cloud_sync/fleet/"
_LIMIT_S = 900.0
_TIER_LIMIT_S = {"faults": 1800.0, "fleet": 1200.0, "image": 7200.0}
"""At least ten times what the longest tests take on an idle machine, so that a load of 12 on two cores ends none that
works. A limit holds for the fixtures as well."""
_STDERR = pytest.StashKey[int]()
_EXAMPLES = 100

settings.register_profile(
    "lamplighter",  # new cases in each run, and the blob that repeats a failure
    max_examples=AMOUNTS.of(_EXAMPLES),
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("lamplighter")

for _connect in (asyncio_client.connect.__init__, sync_client.connect):
    # A busy machine keeps a gateway in this process from handshakes and pongs for longer than the usual limits.
    _connect.__kwdefaults__ |= {"ping_timeout": None, "open_timeout": TIMEOUT_S}  # type: ignore[operator]


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A command that a test runs within this process sets the level for itself, and not for the tests after it."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not load the fleet's tests where they are not run: Spark and DuckDB take seconds."""
    return ("not fleet" in str(config.option.markexpr) and f"{collection_path.as_posix()}/".endswith(_FLEET)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_FLEET) or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("fleet")
        if "amounts" in getattr(item, "fixturenames", ()) or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("amounts")
        if item.get_closest_marker("timeout") is None:
            limit_s = max((_TIER_LIMIT_S.get(mark.name, _LIMIT_S) for mark in item.iter_markers()), default=_LIMIT_S)
            item.add_marker(pytest.mark.timeout(limit_s))
    # A command takes a session that is there, so the tests of commands without one come before it.
    items.sort(key=lambda item: (_rank(item.nodeid), _uses_spark(item)))


def _uses_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _rank(nodeid: str) -> int:
    """The place of a test's file among the longest; that of all others is behind them."""
    return next((place for place, files in enumerate(_LONGEST) if nodeid.startswith(files)), len(_LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has Hypothesis read the constants of all loaded modules once, which takes seconds, and not in each fork."""
    drawing = any(is_hypothesis_test(getattr(item, "obj", None)) for item in session.items)
    if session.config.option.processes and drawing:

        @settings(max_examples=1, database=None)
        @given(st.text())
        def draw(text: str) -> None:
            pass

        draw()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TestTimes())
    if config.option.processes:
        seconds = last_seconds(config)
        workers = ForkedWorkers(config.option.processes, _group_of, lambda items: _place(items, seconds))
        config.pluginmanager.register(workers)
    config.stash[_STDERR] = os.dup(2)  # while the tests run, what is written to 2 is captured
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts its background jobs like that, and commands that the tests start and interrupt inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[_STDERR])
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer() -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


def _place(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> tuple[bool, float]:
    """The place of a group: what is new is first, then what took longest. seconds: of the tests that are known."""
    return all(map(_uses_spark, items)), -sum(seconds.get(item.nodeid, math.inf) for item in items)


def _group_of(nodeid: str) -> str:
    if nodeid.startswith(_APART):
        return nodeid
    together = next((files[0] for files in (_DEFAULT_PORTS, _CONTAINERS, _PARSING) if nodeid.startswith(files)), None)
    return together or nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def amounts() -> Amounts:
    """How much of its random cases, positions and rounds a test runs."""
    return AMOUNTS


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests run on asyncio, by the plugin of anyio."""
    return "asyncio"
