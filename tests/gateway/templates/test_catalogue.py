"""The applications that `lamplighter init` writes, by a clock of their own."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.mapping import load_mapping
from lamplighter.engine.change_log import decode
from lamplighter.engine.core import Engine
from lamplighter.engine.terms import Bag
from lamplighter.gateway.history.chain_texts import link_texts
from lamplighter.gateway.history.explanation import Explainer, query_texts
from lamplighter.gateway.history.logbook import LabelledNames, LogbookRange, logbook_of
from lamplighter.gateway.history.records import History
from lamplighter.gateway.history.subjects import QUERY as SUBJECTS
from lamplighter.gateway.history.subjects import Subjects
from lamplighter.gateway.local_time import service
from lamplighter.gateway.local_time.service import LocalTime
from lamplighter.gateway.log.reader import segments
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import Application, aggregator_queries, load_applications, sparql_faults
from lamplighter.gateway.templates.catalogue import TEMPLATES, Choice, DailySpan, Dimming, mapping_text, profile_text
from tests.support.event_loops import until
from tests.support.gateway_parts import FakeClock, application, dump, idle, lines, recovered_runner, time_passes, update

BASE = "http://lamplighter.local/"
ROOM = f"{BASE}area/kitchen"
SELECTIONS: dict[str, dict[str, Any]] = {
    "room": {"room": ROOM},
    "sensors": {"sensors": [f"{BASE}sensor/a", f"{BASE}sensor/b"]},
    "all": {},
    "confirmed": {"room": ROOM, "confirmed": True},
    "at night": {"room": ROOM, "span": DailySpan("sunset", "sunrise")},
    "confirmed of sensors": {"sensors": [f"{BASE}sensor/a"], "confirmed": True},
}
PREFIXES = (
    f"PREFIX : <{BASE}> PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX g: <http://lamplighter.example/ns/gateway#> "
)


def choice(template: str, **members: Any) -> Choice:
    actuators = [f"{BASE}actuator/x", f"{BASE}actuator/y"]
    chosen = TEMPLATES[template]
    defaults = {"actuator": chosen.actuator, "actuators": actuators, "delay": "PT30S", "span": chosen.span}
    return Choice(**{"name": "app", "base_iri": BASE, **defaults, **members})


def made(template: str, **members: Any) -> Application:
    chosen = TEMPLATES[template]
    return application("app", chosen.profile(choice(template, **members), chosen.properties))


def reading(sensor: str, kind: str, value: bool, feature: str = "<http://lamplighter.local/area/kitchen>") -> str:
    """What the adapter writes for a reading."""
    observation = f"<{BASE}observation/{sensor}>"
    return (
        f"{PREFIXES} DELETE {{ {observation} sosa:hasSimpleResult ?r ; sosa:resultTime ?t }} INSERT {{ {observation} "
        f"sosa:hasSimpleResult {str(value).lower()} ; sosa:resultTime ?now ; sosa:observedProperty g:{kind} ; "
        f"sosa:madeBySensor <{BASE}sensor/{sensor}> ; sosa:hasFeatureOfInterest {feature} }} "
        f"WHERE {{ OPTIONAL {{ {observation} sosa:hasSimpleResult ?r ; sosa:resultTime ?t }} BIND(NOW() AS ?now) }}"
    )


class House:
    """A gateway with an application, and the states of its actuators."""

    def __init__(self, runner: Runner, clock: FakeClock) -> None:
        self.runner = runner
        self.clock = clock

    async def read(self, sensor: str, kind: str, value: bool, **more: str) -> None:
        await update(self.runner, reading(sensor, kind, value, **more))
        await idle(self.runner)

    async def pass_s(self, seconds: float) -> None:
        await time_passes(self.runner, self.clock, seconds)
        await idle(self.runner)

    @property
    def states(self) -> dict[str, str]:
        found = [line.decode().split() for line in dump(self.runner) if b"desiredState" in line]
        return {line[0][-2]: line[2].split('"')[1] for line in found}

    @property
    def notes(self) -> int:
        return sum(b"application/app#" in line for line in dump(self.runner))


@asynccontextmanager
async def house_with(data: Path, app: Application) -> AsyncIterator[House]:
    clock = FakeClock()
    async with recovered_runner(data, clock, [app]) as runner:
        yield House(runner, clock)


ON, OFF = {"x": "true", "y": "true"}, {"x": "false", "y": "false"}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_profile_is_good_and_its_queries_are_maintained_incrementally(
    tmp_path: Path, template: str, selection: str
) -> None:
    chosen = TEMPLATES[template]
    text = profile_text(chosen.profile(choice(template, **SELECTIONS[selection]), chosen.properties))
    (tmp_path / "app.jsap").write_text(text)
    [loaded] = load_applications(tmp_path)
    assert sparql_faults(tmp_path) == []
    engine = Engine()
    classes = {name: engine.subscribe(query).spu_class for name, query in aggregator_queries(loaded)}
    assert set(classes.values()) <= {"telescoped", "seeded", "counted"}, classes


@pytest.mark.parametrize("template", ["motion-light", "leak-alarm"])
async def test_on_at_once_and_off_after_the_delay(tmp_path: Path, template: str) -> None:
    kind = TEMPLATES[template].properties[0].removeprefix("gateway:")
    async with house_with(tmp_path, made(template, room=ROOM)) as house:
        await house.read("a", kind, False)
        assert house.states == {}, "nothing was detected yet"
        await house.read("a", kind, True)
        assert house.states == ON
        await house.pass_s(100)
        assert house.states == ON
        await house.read("a", kind, False)
        await house.pass_s(29)
        assert house.states == ON
        await house.pass_s(2)
        assert house.states == OFF
        assert house.notes == 0


SOURCE = f"""{PREFIXES} DELETE {{ :broker g:since ?t }}
INSERT {{ :stream g:liveObservation <{BASE}observation/a> ; g:receivedFrom :broker . :broker g:since ?now }}
WHERE {{ OPTIONAL {{ :broker g:since ?t }} BIND(NOW() AS ?now) }}"""
"""The broker of a sensor comes back."""


@pytest.mark.parametrize("confirmed", [False, True])
async def test_value_of_before_its_broker_came_back_counts_unless_the_application_says_otherwise(
    tmp_path: Path, confirmed: bool
) -> None:
    async with house_with(tmp_path, made("motion-light", room=ROOM, confirmed=confirmed)) as house:
        await update(house.runner, SOURCE)
        await house.pass_s(1)
        await house.read("a", "motion", True)
        assert house.states == ON
        await house.pass_s(1)
        await update(house.runner, SOURCE)
        await house.pass_s(20)
        assert house.states == ON, "the light waits as after the end of a motion"
        await house.read("a", "motion", True)
        await house.pass_s(20)
        assert house.states == ON, "the sensor has said so again"
        await update(house.runner, SOURCE)
        await house.pass_s(31)
        assert house.states == (OFF if confirmed else ON)


async def test_door_whose_state_is_unconfirmed_raises_no_alarm_if_that_is_ignored(tmp_path: Path) -> None:
    async with house_with(tmp_path, made("door-left-open", room=ROOM, confirmed=True)) as house:
        await update(house.runner, SOURCE)
        await house.pass_s(1)
        await house.read("a", "contact", False)
        await house.pass_s(1)
        await update(house.runner, SOURCE)
        await house.pass_s(60)
        assert house.states == {}
        await house.read("a", "contact", False)
        await house.pass_s(31)
        assert house.states == ON


async def test_each_motion_begins_the_delay_anew(tmp_path: Path) -> None:
    async with house_with(tmp_path, made("motion-light", room=ROOM)) as house:
        for _ in range(3):
            await house.read("a", "motion", True)
            await house.read("a", "motion", False)
            await house.pass_s(20)
            assert house.states == ON
        assert len(house.runner.delayed_updates()) == 1, "the first two found a newer note, and did nothing"
        await house.pass_s(9)
        assert house.states == ON
        await house.pass_s(2)
        assert house.states == OFF


async def test_a_sensor_that_repeats_itself_neither_prolongs_nor_shortens_the_delay(tmp_path: Path) -> None:
    async with house_with(tmp_path, made("motion-light", room=ROOM)) as house:
        await house.read("a", "motion", True)
        for _ in range(5):
            await house.read("a", "motion", True)
            await house.pass_s(10)
        await house.read("a", "motion", False)
        for _ in range(5):
            await house.pass_s(5)
            await house.read("a", "motion", False)
        assert house.states == ON
        await house.pass_s(6)
        assert house.states == OFF


async def test_the_light_waits_for_the_last_sensor_of_the_room(tmp_path: Path) -> None:
    async with house_with(tmp_path, made("motion-light", room=ROOM)) as house:
        await update(house.runner, f"{PREFIXES} INSERT DATA {{ <{BASE}device/z/1> g:inArea <{ROOM}> }}")
        await house.read("a", "motion", True)
        await house.read("b", "occupancy", True, feature=f"<{BASE}device/z/1>")
        await house.read("a", "motion", False)
        await house.pass_s(60)
        assert house.states == ON, "the device in the room still detects somebody"
        await house.read("c", "motion", True, feature=f"<{BASE}room/hall>")
        await house.read("b", "occupancy", False, feature=f"<{BASE}device/z/1>")
        await house.pass_s(31)
        assert house.states == OFF, "the hall is another room"


@pytest.mark.parametrize(("selection", "counts"), [("sensors", ("a", "b")), ("all", ("a", "b", "c"))])
async def test_which_sensors_count(tmp_path: Path, selection: str, counts: Sequence[str]) -> None:
    async with house_with(tmp_path, made("leak-alarm", **SELECTIONS[selection])) as house:
        for sensor in ("a", "b", "c"):
            await house.read(sensor, "leak", True, feature=f"<{BASE}room/{sensor}>")
            assert (house.states == ON) == (sensor in counts), sensor
            await house.read(sensor, "leak", False, feature=f"<{BASE}room/{sensor}>")
            await house.pass_s(31)
            assert house.states in ({}, OFF)


async def test_heating_follows_presence_with_two_temperatures(tmp_path: Path) -> None:
    app = made("presence-heating", room=ROOM, states=("21", "16.5"), actuators=[f"{BASE}actuator/x"])
    async with house_with(tmp_path, app) as house:
        await house.read("a", "occupancy", True)
        assert house.states == {"x": "21"}
        await house.read("a", "occupancy", False)
        await house.pass_s(31)
        assert house.states == {"x": "16.5"}


async def test_alarm_of_doors_waits_for_each_door_and_ends_with_the_last_one(tmp_path: Path) -> None:
    async with house_with(tmp_path, made("door-left-open")) as house:
        for door in ("a", "b", "c"):
            await house.read(door, "contact", True)
        await house.read("a", "contact", False)
        await house.pass_s(20)
        await house.read("a", "contact", True)
        await house.pass_s(20)
        assert house.states == {}, "it was closed in time"
        await house.read("a", "contact", False)
        await house.pass_s(20)
        await house.read("b", "contact", False)
        await house.pass_s(11)
        assert house.states == ON
        await house.read("a", "contact", True)
        assert house.states == OFF, "b is open, but not for long"
        await house.pass_s(20)
        assert house.states == ON
        await house.read("c", "contact", False)
        await house.read("b", "contact", True)
        assert house.states == OFF
        await house.read("c", "contact", True)
        await house.pass_s(60)
        assert house.states == OFF
        assert house.notes == 0


async def test_what_holds_when_the_application_begins_counts(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await House(runner, clock).read("a", "motion", True)
    async with recovered_runner(tmp_path, clock, [made("motion-light", room=ROOM)]) as runner:
        await idle(runner)
        assert House(runner, clock).states == ON


@asynccontextmanager
async def house_in_berlin(
    data: Path, clock: FakeClock, app: Application, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    """Local time is kept beside the application."""
    monkeypatch.setattr(service, "_LOOK_S", 0.01)
    monkeypatch.setattr(service, "_PAUSE_S", 0.001)
    settings = msgspec.convert({"place": {"time_zone": "Europe/Berlin", "position": "52.52, 13.4"}}, Settings)
    async with recovered_runner(data, clock, [app], settings) as runner:
        keeping = asyncio.create_task(LocalTime(runner).keep())
        try:
            yield House(runner, clock)
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping


async def until_states(house: House, states: dict[str, str]) -> None:
    await until(lambda: house.states == states, f"{states} of the actuators")


async def test_light_by_time_switches_at_both_ends_also_across_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = made("light-by-time", span=DailySpan("sunset", "23:00", ["Saturday"]))
    clock = FakeClock()  # 3:00 on a Saturday in Berlin
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until(lambda: house.notes > 2, "the period")
        assert house.states == {}, "what is lit by hand stays so until the period begins"
        await house.pass_s(13.2 * 3600)
        await until_states(house, ON)
    clock.reboot("boot-2", off_s=8 * 3600)
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until_states(house, OFF)
        await update(house.runner, f"{PREFIXES} DELETE WHERE {{ ?s g:desiredState ?o }}")
        await house.pass_s(17 * 3600)
        assert house.states == {}, "it is Sunday"
        assert house.notes == 5
    app = made("light-by-time", span=DailySpan("12:00", "23:00"))
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until_states(house, ON)
        assert house.notes == 4, "the period of the earlier file is gone, with its weekday"


async def test_periods_are_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = made("light-by-time", span=DailySpan("sunset", "23:00", ["Sunday", "Saturday"]))
    clock = FakeClock()  # 3:00 on a Saturday in Berlin
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until(lambda: house.notes > 2, "the period")
        await house.pass_s(13.2 * 3600)
        await until_states(house, ON)
    history = History(tmp_path, clock)
    subjects = history.replay(passed_over=lambda error: None).engine.query(SUBJECTS).value
    assert isinstance(subjects, Bag)
    names = LabelledNames(BASE, Subjects(subjects.rows, BASE).labels_of_all)
    queries = query_texts([app])
    explanation = Explainer(history, lambda *one: queries[one]).explain(f"{BASE}actuator/x")
    period = "the time between sunset and 23:00 on Saturday, Sunday"
    said = link_texts(explanation, names)
    assert any(f"{period} is active" in one for one in said), said
    assert any("WHERE { VALUES ?active { true } [the time between sunset and 23:00 on" in one for one in said), said
    assert not any("period-" in one or "changesAt" in one for one in said), said
    newest = LogbookRange(newest=(9, 9), since="", until="9", last=50)
    texts = [one.text for one in logbook_of(history, newest, names).entries]
    assert any(" switched :actuator/x to true: " in one and f"{period} is active at " in one for one in texts), texts


async def test_blinds_by_sun_have_two_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = made("blinds-by-sun", states=("0", "100"), actuators=[f"{BASE}actuator/x"])
    clock = FakeClock()
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until_states(house, {"x": "0"})
        await house.pass_s(6 * 3600)
        await until_states(house, {"x": "100"})


async def test_motion_light_dims_at_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dimming = Dimming([f"{BASE}actuator/d"], ("40", "100"), DailySpan("sunset", "07:00"))
    app = made("motion-light", room=ROOM, actuators=[f"{BASE}actuator/x"], dimming=dimming)
    clock = FakeClock()
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until(lambda: house.notes > 2, "the period")
        await house.read("a", "motion", True)
        assert house.states == {"x": "true", "d": "40"}
        await house.read("a", "motion", False)
        await house.pass_s(31)
        assert house.states == {"x": "false", "d": "40"}
        await house.pass_s(5 * 3600)
        await until(lambda: any(b'#active> "false"' in line for line in dump(house.runner)), "the morning")
        await house.read("a", "motion", True)
        assert house.states == {"x": "true", "d": "100"}


async def test_what_is_lit_before_its_period_is_known_is_dimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dimming = Dimming([f"{BASE}actuator/d"], ("40", "100"), DailySpan("sunset", "07:00"))
    app = made("motion-light", room=ROOM, actuators=[f"{BASE}actuator/x"], dimming=dimming)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [], Settings()) as runner:
        await update(runner, reading("a", "motion", True))
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until_states(house, {"x": "true", "d": "40"})


@pytest.mark.parametrize(
    ("before", "after", "levels"),
    [
        (("sunset", "07:00", "40"), ("21:00", "08:00", "40"), ["40"]),
        (("sunset", "07:00", "40"), ("21:00", "08:00", "30"), ["40", "30"]),
        (("sunset", "07:00", "40"), ("21:00", "22:00", "40"), ["40", "100"]),
        (("08:00", "20:00", "40"), ("sunset", "07:00", "40"), ["100", "40"]),
    ],
    ids=["both active", "another level", "active before", "active afterwards"],
)
async def test_what_is_lit_gets_the_brightness_of_other_periods_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[str, str, str],
    after: tuple[str, str, str],
    levels: list[str],
) -> None:
    def light(begins: str, ends: str, level: str) -> Application:
        dimming = Dimming([f"{BASE}actuator/d"], (level, "100"), DailySpan(begins, ends))
        return made("motion-light", room=ROOM, actuators=[f"{BASE}actuator/x"], dimming=dimming)

    clock = FakeClock()  # 3:00 in Berlin
    async with house_in_berlin(tmp_path, clock, light(*before), monkeypatch) as house:
        await until(lambda: any(b"#active>" in line for line in dump(house.runner)), "the period")
        await house.read("a", "motion", True)
        await until_states(house, {"x": "true", "d": levels[0]})
        assert levels_said(tmp_path)[-1] == levels[0]
        former = len(levels_said(tmp_path))
        await house.runner.declarations.reload([light(*after)])
        await until_states(house, {"x": "true", "d": levels[-1]})
        known = b'begins> "' + after[0].encode()
        await until(lambda: any(known in line for line in dump(house.runner)), "the other period")
        await house.pass_s(31)
        await until_states(house, {"x": "true", "d": levels[-1]})
        assert levels_said(tmp_path)[former:] == levels[1:]


def levels_said(data: Path) -> list[str]:
    """The desired states that the dimmer has got so far, without repetitions."""
    added = [quad for line in lines(segments(data / "log")[-1].path) for quad in decode(line).a]
    about, means = f"<{BASE}actuator/d>", "desiredState>"
    return [quad.o.split('"')[1] for quad in added if quad.s == about and quad.p.endswith(means)]


async def test_motion_light_acts_at_night_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dimming = Dimming([f"{BASE}actuator/d"], ("40", "100"), DailySpan("22:00", "07:00"))
    night = DailySpan("sunset", "sunrise")
    app = made("motion-light", room=ROOM, actuators=[f"{BASE}actuator/x"], dimming=dimming, span=night)
    clock = FakeClock()  # 3:00 in Berlin
    async with house_in_berlin(tmp_path, clock, app, monkeypatch) as house:
        await until(lambda: sum(b"#active>" in line for line in dump(house.runner)) == 2, "both periods")
        await house.read("a", "motion", True)
        assert house.states == {"x": "true", "d": "40"}
        await house.pass_s(6 * 3600)
        await until(lambda: not any(b'#active> "true"' in line for line in dump(house.runner)), "the morning")
        await house.pass_s(31)
        assert house.states == {"x": "false", "d": "40"}, "its time ends like the motion"
        await house.read("a", "motion", False)
        await house.read("a", "motion", True)
        assert house.states["x"] == "false", "by day motion does not count"
        await house.pass_s(9 * 3600)
        await until_states(house, {"x": "true", "d": "100"})


def test_mapping_text_is_read_as_it_was_meant(tmp_path: Path) -> None:
    stream = {
        "topic": 'a/ü "b"',
        "member": "contact",
        "property": "gateway:contact",
        "payload": "boolean",
        "sensor": "sensor/a",
        "on": ["closed", "tab\t\x7f"],
        "off": ["open"],
    }
    command = {"actuator": "actuator/x", "topic": "a/set", "payload": '{"s": "{value}"}', "values": {"true": "ON"}}
    text = mapping_text({"stream": stream, "command": command}, "why")
    assert text.startswith("# why\n\n[[stream]]\n")
    assert tomllib.loads(text) == {"stream": [stream], "command": [command]}
    (tmp_path / "a.toml").write_text(text)
    assert len(load_mapping(tmp_path, BASE).rules) == 1
