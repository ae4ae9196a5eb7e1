"""The shipper's figures among the metrics of the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.running_gateway import http, running_gateway
from tests.support.shipping_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_the_gateway_tells_the_lag_among_its_metrics(site: Site) -> None:
    site.configure("to")
    (site.data.path / "shipped.json").write_text("noise")
    assert site.sync("run", "--once") == 0

    async def metrics(folder: Path) -> str:
        async with running_gateway(folder) as at:
            return (await http(at.health.replace("/health", "/metrics"))).body.decode()

    other = site.folder / "other"
    (other / "data").mkdir(parents=True)
    assert "lamplighter_shipping_lag" not in await metrics(other)
    (other / "data" / "sync.json").write_bytes((site.data.path / "sync.json").read_bytes())
    text = await metrics(other)
    assert "\nlamplighter_shipping_lag_records 9.0\n" in text
    assert "\nlamplighter_shipping_sent_segments_total 3.0\n" in text
    assert "lamplighter_orders" not in text
    (other / "data" / "orders.json").write_text('{"number":3,"done":2,"refused":1}')
    text = await metrics(other)
    assert "\nlamplighter_orders_refused_total 1.0\n" in text
    assert "\nlamplighter_orders_done_total 2.0\n" in text
    (other / "data" / "orders.json").write_text("{")
    assert "lamplighter_orders" not in await metrics(other)
