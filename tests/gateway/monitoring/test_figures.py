"""The monitoring figures: their bounded memory, and what counts as a subscription."""

from __future__ import annotations

from pathlib import Path

from lamplighter.gateway.loop.evaluations import LastEvaluations
from lamplighter.gateway.monitoring.metrics import exposition
from lamplighter.gateway.state.applications import load_applications
from tests.support.gateway_parts import recovered_runner
from tests.support.places import ROOT


def test_what_is_remembered_of_evaluations_is_bounded_whatever_the_length_of_the_texts() -> None:
    found = LastEvaluations(3)
    texts = [f"SELECT * {{ ?s ?p {number} }} # {'long ' * 10_000}" for number in range(4)]
    for number, text in enumerate(texts[:3]):
        found.of(text).ms = number
    assert [evaluation.ms for text in texts if (evaluation := found.get(text)) is not None] == [0, 1, 2]
    assert found.of(texts[0]).ms == 0  # used last now
    found.of(texts[3]).overruns += 1
    assert [found.get(text) is None for text in texts] == [False, True, False, False]
    found.forget(texts[3])
    assert found.of(texts[3]).overruns == 0
    assert all(len(key) < 100 for key in found._found)


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
