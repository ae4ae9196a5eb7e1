"""The table of metrics in docs/monitor.md, made from the metrics that a gateway would export if it had everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.metrics_core import Metric

from lamplighter.cloud_sync.order_intake import OrderState
from lamplighter.cloud_sync.status import Status
from lamplighter.gateway.monitoring.figures import Figures
from lamplighter.gateway.monitoring.metrics import FiguresCollector
from lamplighter.gateway.monitoring.timings import Timings


class _Everything(defaultdict[str, Any]):
    """Figures that have each member, with the value 0."""

    def __init__(self, **members: Any) -> None:
        super().__init__(int, members)

    def __contains__(self, key: object) -> bool:
        return True


def _figures() -> Figures[Any]:
    """Figures of a gateway with every optional part."""
    errors = {"errors": {"too_many_requests": 0}}
    status = _Everything(
        components=[{"name": "log", "state": "ok"}],
        brokers=[{"name": "default", "state": "connected"}],
        coap=_Everything(devices=0),
        polled={"modbus": _Everything()},
        subscription_classes={},
        counters=_Everything(),
    )
    monitored = _Everything(
        engine=_Everything(version="0"),
        scheduler=_Everything(pending_by_class={"normal": 0}),
        spu_manager=_Everything(),
        http=_Everything(**errors),
        websocket=_Everything(**errors),
        applications={"lights": _Everything()},
        adapters={"mqtt": _Everything()},
    )
    shipped = SimpleNamespace(**dict.fromkeys(Status.__struct_fields__, 0))
    return cast(
        "Figures[Any]",
        SimpleNamespace(
            status=lambda: status,
            monitoring=lambda: monitored,
            sync=lambda: shipped,
            orders=lambda: OrderState(),
            machine=lambda: _Everything(),
            timings=Timings(),
        ),
    )


def metrics() -> Iterator[Metric]:
    """Each metric that a gateway can export, once."""
    yield from FiguresCollector(_figures()).collect()


def name_of(metric: Metric) -> str:
    """The name of its samples, without the suffixes of a histogram."""
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def metrics_table() -> str:
    """A Markdown table of all metrics with labels and meanings, in the order of `/metrics`."""
    lines = ["|metric|meaning|", "|---|---|"]
    for metric in metrics():
        labels = ",".join(key for key in metric.samples[0].labels if key not in ("le", "version"))
        name = name_of(metric) + (f"{{{labels}}}" if labels else "")
        mark = "histogram: " if metric.type == "histogram" else ""
        meaning = metric.documentation.removesuffix(".").replace("|", "\\|")
        lines.append(f"|`{name}`|{mark}{meaning}|")
    return "\n".join(lines) + "\n"
