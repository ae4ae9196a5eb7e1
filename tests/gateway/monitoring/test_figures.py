"""The monitoring figures: what counts as a subscription."""

from __future__ import annotations

from pathlib import Path

from lamplighter.gateway.monitoring.metrics import exposition
from lamplighter.gateway.state.applications import load_applications
from tests.support.gateway_parts import recovered_runner
from tests.support.places import ROOT


async def test_subscriptions_of_clients_and_of_applications_are_counted_apart(tmp_path: Path) -> None:
    apps = [one for one in load_applications(ROOT / "apps") if one.name == "smart-lighting"]
    async with recovered_runner(tmp_path, applications=apps) as runner:
        health, monitoring = runner.figures.status(), runner.figures.monitoring()
        assert (health["subscriptions"], health["application_subscriptions"]) == (0, 2)
        assert (monitoring["spu_manager"]["subscribers"], monitoring["spu_manager"]["application_subscriptions"]) == (
            0,
            2,
        )
        assert runner.figures.subscriptions()["total"] == 2
        text, _ = exposition(runner.figures, "text/plain")
        assert b"\nlamplighter_subscriptions 0.0\n" in text
        assert b"\nlamplighter_application_subscriptions 2.0\n" in text
