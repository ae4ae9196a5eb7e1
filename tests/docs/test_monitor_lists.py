"""The lists of metrics and log events of docs/monitor.md are complete."""

from __future__ import annotations

import re

from lamplighter.gateway.monitoring import metrics as declared
from tests.docs.events_reference import VARIABLE, events
from tests.docs.metrics_reference import metrics, name_of
from tests.support.places import ROOT


def test_every_declared_metric_is_listed() -> None:
    """Also those that a gateway exports only with an adapter, a shipper or a board."""
    listed = {name_of(metric).removeprefix("lamplighter_") for metric in metrics()}
    expected = {*declared._GAUGES, *(f"{name}_total" for name in (*declared._COUNTERS, *declared._COUNTED))}
    for table in (declared._MONITORED, declared._SYNC, declared._ORDERS, declared._MACHINE):
        expected |= {name for name, *_ in table.values()}
    expected |= {f"adapter_{name}_total" for name in declared._ADAPTERS}
    expected |= {f"{name}_total" for name, _ in declared._OF_APPLICATIONS.values()}
    expected |= {f"{name}_seconds" for name in declared._TIMINGS}
    assert expected <= listed
    code = (ROOT / "gateway" / "monitoring" / "metrics.py").read_text()
    assert {f"{name}" for name in re.findall(r'Family\(\s*f?"lamplighter_(\w+)"', code)} <= {
        name.removesuffix("_total") for name in listed
    }


def test_events_that_a_caller_names_are_in_the_code() -> None:
    texts = [path.read_text() for folder in ("adapters", "gateway") for path in (ROOT / folder).rglob("*.py")]
    for name in (name for names in VARIABLE.values() for name in names):
        assert any(f'"{name}"' in text or f'{name.removeprefix("KIND")}"' in text for text in texts), name
    assert {"change log damaged", "component STATE", "KIND device unreachable", "subscription ended"} <= {
        event.name for event in events()
    }
