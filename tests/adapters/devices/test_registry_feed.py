"""The devices and problems of one adapter, beside those of another one, with the engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.problems import Problems
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.registry_feed import FeedScope, RegistryFeed
from tests.support.desired_states import BASE, StatesGateway
from tests.support.event_loops import beside, settled, until

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINE = Device("plug", "mine", "default", "plug")
OTHER = Device("lamp", "other", "default", "lamp")


@asynccontextmanager
async def feeding(gateway: StatesGateway, changes: list[int]) -> AsyncIterator[RegistryFeed]:
    """changes: how many entries were known at each change."""
    feed = RegistryFeed(
        gateway,
        base_iri=BASE,
        scope=FeedScope("mine", "ask", frozenset({"mine"})),
        on_entries=lambda: changes.append(len(feed.entries)),
        clock=lambda: NOON,
    )
    async with beside(feed.run()):
        await settled()
        yield feed


def adoptions(gateway: StatesGateway) -> list[str]:
    return gateway.found(
        "GRAPH ?g { ?device gateway:adoption ?adoption } BIND(CONCAT(STR(?device), ' ', ?adoption) AS ?x)"
    )


async def test_devices_of_other_sources_are_left_alone() -> None:
    gateway, changes = StatesGateway(), list[int]()
    gateway.write(Registry(BASE).announced(None, OTHER, "all") or "")
    other = f"{BASE}device/other/lamp adopted"
    async with feeding(gateway, changes) as feed:
        assert feed.ready.is_set() and changes == [0]
        feed.announce([MINE])
        await settled()
        assert list(feed.entries) == ["mine/plug"]
        assert adoptions(gateway) == [f"{BASE}device/mine/plug proposed", other]
        feed.say_online({"mine/plug": True, "other/lamp": False})
        await settled()
        assert gateway.found("?device gateway:online ?x") == []
    async with feeding(gateway, changes) as feed:
        feed.announce([], ["mine/plug", "other/lamp"])
        await settled()
        assert adoptions(gateway) == [other]
    assert changes == [0, 1, 1, 0]


async def test_problems_of_other_adapters_are_left_alone() -> None:
    gateway = StatesGateway()
    reasons = "GRAPH ?g { ?problem gateway:reason ?x }"
    for source in ("mine", "other"):
        gateway.write(Problems(BASE).update(Problem(source, "", "a", f"of {source}"), NOON) or "")
    async with feeding(gateway, []) as feed:
        assert gateway.found(reasons) == ["of other"]
        feed.note(Problem("mine", "", "a", "again"))
        await settled()
        assert gateway.found(reasons) == ["again", "of other"]


async def test_a_problem_that_lasts_is_written_once_it_is_settled_and_goes_when_it_ends() -> None:
    gateway, changes = StatesGateway(), list[int]()
    async with feeding(gateway, changes) as feed:
        for reason in ("first", "second"):
            feed.note(Problem("mine", "", "a", reason, "mine/plug", "left out 1"))
        reasons = "GRAPH ?g { ?problem a gateway:ReportedProblem ; gateway:reason ?x }"
        await until(lambda: gateway.found(reasons) == ["second"], "the newest reason")
        feed.note(Problem("mine", "", "a", "", "mine/plug", "left out 1"))
        await until(lambda: not gateway.found(reasons), "the end of the problem")


async def test_a_lasting_problem_of_a_device_that_was_removed_is_written_again() -> None:
    gateway, changes = StatesGateway(), list[int]()
    async with feeding(gateway, changes) as feed:
        feed.announce([MINE])
        feed.note(Problem("mine", "", "a", "left out", MINE.identity, "left out 1"))
        reasons = "GRAPH ?g { ?problem a gateway:ReportedProblem ; gateway:reason ?x }"
        await until(lambda: gateway.found(reasons) == ["left out"] and MINE.identity in feed.entries, "the problem")
        gateway.write(feed.registry.removal(feed.entries[MINE.identity]))
        assert not gateway.found(reasons)
        await until(lambda: gateway.found(reasons) == ["left out"] and MINE.identity in feed.entries, "it again")
