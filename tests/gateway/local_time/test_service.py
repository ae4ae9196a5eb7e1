"""Local time in a gateway: a commit at each instant, after a start what holds then, and faults that are named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.terms import iri, is_literal, lexical, literal
from lamplighter.gateway.local_time import service
from lamplighter.gateway.local_time.service import LocalTime
from lamplighter.gateway.local_time.times import LocalPlace
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.settings.place import PlaceSettings
from lamplighter.ontology.vocabulary import BEGINS, ENDS
from tests.support.event_loops import beside, settled, until
from tests.support.gateway_parts import FakeClock, records, recovered, running, update

PREFIX = "PREFIX : <http://example.org/> PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
NIGHT = PREFIX + 'INSERT DATA { :night gateway:begins "sunset" ; gateway:ends "07:00" }'
PLACE = {"time_zone": "Europe/Berlin", "position": "52.52, 13.40"}


@asynccontextmanager
async def keeping(data: Path, clock: FakeClock, **place: object) -> AsyncIterator[Runner]:
    """A gateway that keeps local time. `FakeClock` begins at 3:00 in Berlin."""
    settings = msgspec.convert({"place": place}, Settings)
    async with running(recovered(data, clock, settings=settings)) as runner:
        task = asyncio.create_task(LocalTime(runner).keep())
        try:
            yield runner
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


NIGHT_IRI = "<http://example.org/night>"
PLACE_IRI = "<http://lamplighter.local/place>"


def said(runner: Runner, subject: str = NIGHT_IRI) -> dict[str, str]:
    """What the dataset says: local names of properties -> values."""
    quads = runner._engine.store.quads(None)
    return {
        quad.p.rpartition("#")[2][:-1]: lexical(quad.o) for quad in quads if quad.s == subject and is_literal(quad.o)
    }


async def until_said(runner: Runner, holds: Callable[[dict[str, str]], bool], subject: str = NIGHT_IRI) -> None:
    await until(lambda: holds(said(runner, subject)), "what is said of local time")


async def test_period_changes_at_its_instants_and_each_is_one_commit(tmp_path: Path, quick_looks: None) -> None:
    clock = FakeClock()
    async with keeping(tmp_path, clock, **PLACE) as runner:
        await update(runner, NIGHT)
        await until_said(runner, lambda night: night.get("active") == "true")
        assert said(runner)["changesAt"] == "2026-11-21T06:00:00Z"
        clock.advance(4 * 3600)
        await until_said(runner, lambda night: night["active"] == "false")
        assert said(runner)["changesAt"].startswith("2026-11-21T15:0")  # sunset, 16:05 in Berlin
    causes = [record.cause.id for record in records(tmp_path) if record.cause and record.cause.kind == "local-time"]
    # The first one may say both of the place and of the period.
    instants = [cause[:16] for cause in causes]
    assert instants in (["2026-11-21T02:00"] * n + ["2026-11-21T06:00"] for n in (1, 2))


async def test_start_says_what_holds_then(tmp_path: Path, quick_looks: None) -> None:
    clock = FakeClock()
    async with keeping(tmp_path, clock, **PLACE) as runner:
        await update(runner, NIGHT)
        await until_said(runner, lambda night: night.get("active") == "true")
    clock.reboot("boot-2", off_s=8 * 3600)
    async with keeping(tmp_path, clock, **PLACE) as runner:
        await until_said(runner, lambda night: night["active"] == "false")
        await until_said(runner, lambda place: place.get("daylight") == "true", PLACE_IRI)
        place = said(runner, PLACE_IRI)
        assert place == {"daylight": "true", "localDate": "2026-11-21", "localWeekday": "Saturday"}


async def test_untrusted_clock_says_nothing_anew(tmp_path: Path, quick_looks: None) -> None:
    clock = FakeClock(trusted=False)
    async with keeping(tmp_path, clock, **PLACE) as runner:
        await update(runner, NIGHT)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert "active" not in said(runner)
        clock.synchronised = True
        await until_said(runner, lambda night: night.get("active") == "true")


async def test_faults_are_named_and_go_with_their_cause(tmp_path: Path, quick_looks: None) -> None:
    async with keeping(tmp_path, FakeClock(), time_zone="Europe/Berlin") as runner:
        await update(runner, NIGHT)
        await until_said(runner, lambda night: "position of [place]" in night.get("periodProblem", ""))
        await update(runner, PREFIX + 'DELETE DATA { :night gateway:begins "sunset" }')
        await until_said(runner, lambda night: "gateway:begins; this one has 0" in night.get("periodProblem", ""))
        await update(runner, PREFIX + 'INSERT DATA { :night gateway:begins "22:00" }')
        await until_said(runner, lambda night: night.get("active") == "true" and "periodProblem" not in night)


async def test_what_others_say_is_corrected_and_goes_with_the_declaration(tmp_path: Path, quick_looks: None) -> None:
    async with keeping(tmp_path, FakeClock(), **PLACE) as runner:
        await update(runner, NIGHT)
        await until_said(runner, lambda night: night.get("active") == "true")
        await update(
            runner,
            PREFIX + "DELETE DATA { :night gateway:active true } ; "
            "INSERT DATA { :night gateway:active false, [] . [] gateway:active true }",
        )
        await until_said(runner, lambda night: night.get("active") == "true")
        await update(runner, PREFIX + 'DELETE DATA { :night gateway:begins "sunset" ; gateway:ends "07:00" }')
        await until_said(runner, lambda night: not night.keys() & {"changesAt", "periodProblem"})


async def test_place_that_leaves_the_settings_takes_along_what_was_said(tmp_path: Path, quick_looks: None) -> None:
    async with keeping(tmp_path, FakeClock(), **PLACE) as runner:
        await update(runner, NIGHT)
        await until_said(runner, lambda night: night.get("active") == "true")
        await runner.apply(Settings())
        await until_said(runner, lambda night: night.keys() == {"begins", "ends"})
        await until_said(runner, lambda place: not place, PLACE_IRI)


async def test_more_periods_than_there_may_be_cost_no_more(
    tmp_path: Path, quick_looks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PERIODS_MAX", 20)
    many = " ".join(f':p{n} gateway:begins "22:00" ; gateway:ends "07:00" .' for n in range(30))
    async with keeping(tmp_path, FakeClock(), **PLACE) as runner:
        await update(runner, f"{PREFIX} INSERT DATA {{ {many} }}")

        def active() -> int:
            return sum(quad.p.endswith("#active>") for quad in runner._engine.store.quads(None))

        await until(lambda: active() == 20, "the periods")
        # One that goes makes room.
        await update(runner, f"{PREFIX} DELETE WHERE {{ :p0 ?p ?o }}")
        await until(lambda: "active" not in said(runner, "<http://example.org/p0>") and active() == 20, "the next one")


async def test_more_that_others_say_than_one_update_takes_is_corrected_in_parts(
    tmp_path: Path, quick_looks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_DELETED_CHARACTERS_MAX", 2000)
    many = " ".join(f':p{n} gateway:active "{"x" * 100}" .' for n in range(50))
    async with keeping(tmp_path, FakeClock(), **PLACE) as runner:
        await update(runner, NIGHT)
        await update(runner, f'{PREFIX} INSERT DATA {{ {many} :q gateway:active "{"x" * 3000}" }}')
        await until_said(runner, lambda night: night.get("active") == "true")
        quads = runner._engine.store.quads
        await until(lambda: sum(quad.p.endswith("#active>") for quad in quads(None)) == 1, "what is said of the night")
    own = [record for record in records(tmp_path) if record.cause and record.cause.kind == service.KIND]
    assert max(len(record.delta.removed) for record in own) < 20


def test_first_periods_are_those_of_the_first_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PERIODS_MAX", 2)
    declared = {iri(BEGINS): {literal("22:00")}, iri(ENDS): {literal("07:00")}}
    about = {iri(f"http://example.org/{name}"): declared for name in "cadb"}
    place = LocalPlace.of(PlaceSettings(time_zone="Europe/Berlin"))
    where = iri("http://lamplighter.local/place")
    said, _ = service.local_triples(about, place, where, FakeClock().wall())
    assert said.keys() == {where, iri("http://example.org/a"), iri("http://example.org/b")}


async def test_unexpected_error_ends_neither_the_gateway_nor_local_time(
    tmp_path: Path, quick_looks: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_AGAIN_S", (0.01, 0.01))
    with monkeypatch.context() as broken:
        broken.setattr(service, "next_midnight", lambda *_: 1 // 0)
        settings = msgspec.convert({"place": PLACE}, Settings)
        async with (
            running(recovered(tmp_path, FakeClock(), settings=settings)) as runner,
            beside((local_time := LocalTime(runner)).keep()),
        ):
            await update(runner, NIGHT)
            await until(lambda: caplog.text.count("local time not kept") > 1, "it is tried again")
            [component] = local_time.components()
            assert (component.state, "division" in component.reason) == ("degraded", True)
            broken.undo()
            await until_said(runner, lambda night: night.get("active") == "true")
            await until(lambda: local_time.components()[0].well, "the component")


@pytest.mark.parametrize(
    ("trusted", "told", "cure"),
    [
        ("auto", "the clock is not synchronised", "see the component clock"),
        ("never", 'gateway.clock_trusted is "never"', 'set it to "auto"'),
    ],
)
async def test_a_clock_that_is_not_trusted_is_told(tmp_path: Path, trusted: str, told: str, cure: str) -> None:
    settings = msgspec.convert({"place": PLACE, "gateway": {"clock_trusted": trusted}}, Settings)
    clock = FakeClock(trusted=False)
    async with running(recovered(tmp_path, clock, settings=settings)) as runner:
        [component] = LocalTime(runner).components()
        assert component.state == "degraded" and component.reason.startswith(told) and component.cure.startswith(cure)
        clock.synchronised = True
        assert LocalTime(runner).components()[0].well


async def test_end_in_the_moment_of_a_change_is_not_lost(tmp_path: Path) -> None:
    settings = msgspec.convert({"place": PLACE}, Settings)
    # An untrusted clock: nothing is said, so it waits at once.
    async with running(recovered(tmp_path, FakeClock(trusted=False), settings=settings)) as runner:
        declarations = service.Declarations()
        task = asyncio.create_task(LocalTime(runner)._say(declarations))
        await settled()
        declarations.changed.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
