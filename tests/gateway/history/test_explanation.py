"""Why an actuator was switched, from logs that a gateway in this process wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.devices.desired import (
    BY_HAND_ORIGIN,
    Cause,
    Sending,
    actuation_update,
    desired_update,
    followed_update,
    refusal_update,
    reported_update,
)
from lamplighter.adapters.literals import datetime_term
from lamplighter.engine import change_log
from lamplighter.engine.access import FULL
from lamplighter.engine.errors import ChangeLogError, MalformedRequestError, UnknownResourceError
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.gateway.clock import moment
from lamplighter.gateway.history.chain_texts import as_json
from lamplighter.gateway.history.explanation import ChainLink, Explainer, Explanation, Outcome
from lamplighter.gateway.history.names import Names
from lamplighter.gateway.history.records import History
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import LogSettings, Settings
from lamplighter.ontology.vocabulary import SINCE
from tests.support.gateway_parts import FakeClock, application, idle, recovered_runner, time_passes, update

LAMP = "http://e/lamp"
NAMED = Names("http://lamplighter.local/")
NAMES = "PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX gateway: <http://lamplighter.example/ns/gateway#> "
ON, OFF = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))
READING = "<http://e/presence> sosa:hasSimpleResult"
LIGHT = application(
    "light",
    {
        "queries": {
            "SOMEBODY": {"sparql": f"{NAMES} SELECT ?x {{ {READING} ?x FILTER(?x = true) }}"},
            "NOBODY": {"sparql": f"{NAMES} SELECT ?x {{ {READING} ?x FILTER(?x = false) }}"},
        },
        "updates": {
            "ON": {"sparql": desired_update(iri(LAMP), ON)},
            "OFF": {"sparql": desired_update(iri(LAMP), OFF), "delay": "PT30S"},
        },
        "extended": {
            "lamplighter": {
                "aggregators": {
                    "on": {"query": "SOMEBODY", "added": "ON"},
                    "off": {"query": "NOBODY", "added": "OFF"},
                }
            }
        },
    },
)
MQTT = change_log.Cause("mqtt", "lamp/set")
RULE = "home.toml line 7: command 1"
CRAMPED = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10, bytes_max=1))


class Street:
    """A gateway with the application, and an adapter that acknowledges."""

    def __init__(self, data: Path, runner: Runner, clock: FakeClock) -> None:
        self.data, self.runner, self.clock = data, runner, clock

    async def reads(self, presence: bool) -> None:
        word = json.dumps(presence)
        text = (
            f"{NAMES} DELETE {{ {READING} ?x }} INSERT {{ {READING} {word} }} WHERE {{ OPTIONAL {{ {READING} ?x }} }}"
        )
        await update(self.runner, text, cause=change_log.Cause("mqtt", "zigbee2mqtt/pir"))
        await idle(self.runner)

    async def desires(self, state: Term, **members: Any) -> int:
        self.clock.advance(1)
        accepted = await update(self.runner, desired_update(iri(LAMP), state), **members)
        return accepted.sequence

    async def acknowledges(self, state: Term, followed: int | None, cause: Cause = "notification") -> None:
        """0.5 s after it was sent, which was 0.25 s after now."""
        sent = self.clock.now + timedelta(seconds=0.25)
        self.clock.advance(0.75)
        place = None if followed is None else (1, followed)
        sending = Sending(sent, cause, "PUBACK", RULE, "lamp/set", place)
        await update(self.runner, actuation_update(iri(LAMP), state, self.clock.now, sending), cause=MQTT)

    async def writes(self, text: str) -> None:
        self.clock.advance(1)
        await update(self.runner, text, cause=MQTT)

    def explained(self, name: str = LAMP, **members: Any) -> Explanation:
        past = History(self.data, self.clock)
        return Explainer(past, lambda *one: f"the query of {'/'.join(one)}").explain(name, **members)

    def outcomes(self, count: int) -> list[Outcome]:
        return Explainer(History(self.data, self.clock), lambda *one: "").newest(count)

    def links(self, **members: Any) -> list[ChainLink]:
        return self.explained(**members).links


@asynccontextmanager
async def street(data: Path, settings: Settings | None = None) -> AsyncIterator[Street]:
    clock = FakeClock()
    async with recovered_runner(data, clock, [LIGHT], settings) as runner:
        yield Street(data, runner, clock)


def kinds(links: list[ChainLink]) -> list[str]:
    return [link.link for link in links]


async def test_a_reading_an_application_and_an_adapter_are_a_chain(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await one.reads(True)
        await one.acknowledges(ON, 3)
        found = one.explained()
        assert (found.actuator, found.state, found.cause) == (f"<{LAMP}>", ON, "notification")
        reading, query, changed, notification, rule, request, acknowledgement = found.links
        assert (reading.link, reading.record, reading.by) == ("reading", "1/2", ("mqtt", "zigbee2mqtt/pir"))
        assert [quad.o for quad in reading.quads] == [ON]
        assert (query.link, query.application, query.aggregator, query.member) == ("query", "light", "on", "added")
        assert query.text == "the query of light/on"
        assert (changed.link, changed.record, changed.state, changed.before) == ("update", "1/3", ON, None)
        assert (notification.link, notification.record, notification.state) == ("notification", "1/3", ON)
        assert (rule.link, rule.text) == ("rule", RULE)
        assert (request.link, request.text, request.by) == ("request", "lamp/set", ("mqtt", "lamp/set"))
        assert (acknowledgement.link, acknowledgement.text, acknowledgement.record) == (
            "acknowledgement",
            "PUBACK",
            "1/4",
        )
        assert not any(link.doubt for link in found.links)
        members = as_json(found, NAMED)["links"]
        assert [link.get("after_s") for link in members] == [None, 0, 0, 0, 0.25, 0, 0.5]
        assert members[0]["said"] == "mqtt zigbee2mqtt/pir: true of <http://e/presence>"
        assert members[-2]["said"] == "mqtt lamp/set: true"
        assert json.loads(json.dumps(members))[0]["by"] == ["mqtt", "zigbee2mqtt/pir"]
        assert one.explained(f"{LAMP}/actuation") == found


async def test_a_reading_that_the_broker_had_stored_is_unconfirmed(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        text = f"{NAMES} INSERT DATA {{ {READING} true . <http://e/presence> gateway:timeProblem 'retained' }}"
        await update(one.runner, text, cause=change_log.Cause("mqtt", "zigbee2mqtt/pir"))
        await idle(one.runner)
        await one.acknowledges(ON, 3)
        found = one.explained()
        assert [link.doubt for link in found.links if link.doubt] == ["unconfirmed: the broker had stored it"]
        [said, *_] = as_json(found, NAMED)["links"]
        assert said["said"].endswith("true of <http://e/presence> [unconfirmed: the broker had stored it]")


async def test_the_newest_outcomes_are_listed_and_each_can_be_explained(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        assert one.outcomes(9) == []
        await one.reads(True)
        await one.acknowledges(ON, 3)
        await one.desires(OFF)
        await one.writes(refusal_update(iri(LAMP), "4.00: want json"))
        await one.desires(OFF)
        await one.acknowledges(OFF, 7)
        newest, refused, oldest = one.outcomes(9)
        assert (newest.actuator, newest.actuation) == (f"<{LAMP}>", f"<{LAMP}/actuation>")
        assert [outcome.state for outcome in (newest, refused, oldest)] == [OFF, None, ON]
        assert [outcome.refused for outcome in (newest, refused, oldest)] == ["", "4.00: want json", ""]
        assert one.outcomes(1) == [newest]
        assert one.explained(until=moment(oldest.time)).links[-1].record == oldest.record
        assert one.explained(until=moment(refused.time)).links[-1].link == "refusal"


async def test_the_gateway_explains_as_the_command_does(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await one.reads(True)
        await one.acknowledges(ON, 3)
        told = json.loads(await one.runner.past.explanation(f"{LAMP}/actuation", None, {}))
        text = "SELECT ?x {"
        [query] = [link for link in told["links"] if link["link"] == "query"]
        assert text in query.pop("text")
        assert query.pop("said").startswith("light, on added: SELECT ?x {")
        expected = json.loads(json.dumps(as_json(one.explained(), NAMED)))
        del expected["links"][1]["text"], expected["links"][1]["said"]
        assert told == expected
        [outcome] = json.loads(await one.runner.past.outcomes(5))["outcomes"]
        assert (outcome["actuator"], outcome["state"]) == (f"<{LAMP}>", ON)
        with pytest.raises(UnknownResourceError, match=r"no actuation of <http://e/other>.*http://e/lamp"):
            await one.runner.past.explanation("http://e/other", None, {})
        with pytest.raises(MalformedRequestError, match="is not an IRI"):
            await one.runner.past.explanation("my lamp", None, {})


async def test_a_delayed_update_of_an_application_is_a_link_of_its_own(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await one.reads(False)
        await time_passes(one.runner, one.clock, 31)
        await one.acknowledges(OFF, 4)
        links = one.links()
        assert kinds(links)[:5] == ["reading", "query", "delay", "update", "notification"]
        assert (links[2].text, links[2].record, links[2].by) == ("in 30 s", "1/3", ("application", "light/off/added"))
        assert links[3].by is not None and links[3].by[0] == "timer"
        assert as_json(one.explained(), NAMED)["links"][3]["after_s"] == 31


@pytest.mark.parametrize("delay", [None, "PT5S"])
async def test_an_update_of_a_client_begins_the_chain(tmp_path: Path, delay: str | None) -> None:
    async with street(tmp_path) as one:
        anna = Caller("anna", FULL, operator=False, registered=True)
        sequence = await one.desires(ON, delay=delay, caller=anna)
        if delay:
            await time_passes(one.runner, one.clock, 5)
            sequence += 1
        await one.acknowledges(ON, sequence)
        links = one.links()
        begin = ["delay", "update"] if delay else ["update"]
        assert kinds(links) == [*begin, "notification", "rule", "request", "acknowledgement"]
        assert (links[0].by, links[0].client) == (("http", "test"), "anna")


async def test_a_device_that_reported_another_state_is_part_of_the_chain(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        sequence = await one.desires(ON)
        await one.acknowledges(ON, sequence)
        await one.acknowledges(ON, sequence, "client")
        [report] = [link for link in one.links() if link.link == "report"]
        assert "no report" in report.doubt
        await one.writes(reported_update(iri(LAMP), OFF, None))
        await one.acknowledges(ON, sequence, "client")
        found = one.explained()
        assert found.cause == "client"
        assert kinds(found.links) == ["update", "notification", "report", "rule", "request", "acknowledgement"]
        assert (found.links[2].state, found.links[2].record, found.links[2].doubt) == (OFF, "1/5", "")


async def test_a_report_of_before_its_broker_came_back_is_unconfirmed(tmp_path: Path) -> None:
    broker, noon = iri("http://e/broker/default"), datetime(2026, 11, 21, 12, tzinfo=UTC)

    def back(at: datetime) -> str:
        since = f"{broker} <{SINCE}>"
        return f"DELETE {{ {since} ?t }} INSERT {{ {since} {datetime_term(at)} }} WHERE {{ OPTIONAL {{ {since} ?t }} }}"

    async with street(tmp_path) as one:
        sequence = await one.desires(ON)
        await one.acknowledges(ON, sequence)
        await one.writes(back(noon))
        await one.writes(reported_update(iri(LAMP), ON, noon + timedelta(seconds=1), [broker]))
        assert "unconfirmed" not in kinds(one.links())
        await one.writes(back(noon + timedelta(seconds=2)))
        [link] = [link for link in one.links() if link.link == "unconfirmed"]
        assert (link.state, link.doubt) == (
            ON,
            "unconfirmed: not heard since http://e/broker/default came back at 2026-11-21T12:00:02Z",
        )
        assert as_json(one.explained(), NAMED)["links"][-1]["said"].startswith("the device reported")
        await one.writes(reported_update(iri(LAMP), ON, noon + timedelta(seconds=3), [broker]))
        assert "unconfirmed" not in kinds(one.links())


async def test_without_its_name_the_record_is_found_by_time(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        for state in (OFF, ON, OFF):
            await one.desires(state)
        await one.acknowledges(ON, None)
        notification = one.links()[1]
        assert (notification.record, notification.doubt) == ("1/3", "found by time")


async def test_actuations_of_older_versions_have_what_they_recorded(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await one.desires(ON)
        one.clock.advance(1)
        await one.writes(actuation_update(iri(LAMP), ON, one.clock.now))
        found = one.explained()
        assert (found.state, found.cause) == (ON, "")
        update_, notification, rule, request, acknowledgement = found.links
        assert (update_.record, notification.doubt) == ("1/2", "found by time")
        assert (rule.text, rule.doubt) == ("", "not recorded")
        assert (request.text, request.time, request.doubt) == ("lamp/set", None, "time not recorded")
        assert as_json(found, NAMED)["links"][-1]["after_s"] == 1
        assert acknowledgement.text == ""


async def test_a_notification_of_several_commits_names_the_newest_of_them(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await one.desires(ON)
        await update(one.runner, "INSERT DATA { <http://e/other> <http://e/p> 1 }")
        await one.acknowledges(ON, 3)
        assert [link.record for link in one.links()][:2] == ["1/2", "1/2"]


async def test_states_that_a_query_of_the_operator_computes_are_of_the_named_record(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await update(one.runner, "INSERT DATA { <http://e/other> <http://e/p> 1 }")
        await one.acknowledges(ON, 2)
        changed, notification, *_ = one.links()
        assert (changed.record, changed.quads[0].s, changed.state) == ("1/2", "<http://e/other>", None)
        assert (notification.record, notification.state, notification.doubt) == ("1/2", ON, "")


async def test_a_refusal_is_an_outcome(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        sequence = await one.desires(ON)
        await one.acknowledges(ON, sequence)
        await one.desires(OFF)
        await one.writes(refusal_update(iri(LAMP), "4.00: want json"))
        found = one.explained()
        assert (found.state, found.cause) == (OFF, "")
        assert kinds(found.links) == ["update", "notification", "refusal"]
        assert (found.links[-1].text, found.links[-1].record) == ("4.00: want json", "1/5")


async def test_a_state_that_is_not_acknowledged_yet_is_told(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        sequence = await one.desires(ON)
        assert kinds(one.links()) == ["update", "waiting"]
        assert one.explained().state == ON
        await one.acknowledges(ON, sequence)
        assert kinds(one.links())[-1] == "acknowledgement"
        await one.desires(OFF)
        waiting = one.links()[-1]
        assert (waiting.link, waiting.state, waiting.record) == ("waiting", OFF, "1/4")


async def test_a_state_that_was_given_by_hand_waits_for_nothing(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        await one.acknowledges(ON, await one.desires(ON))
        one.clock.advance(1)
        by_hand = change_log.Cause("mqtt", f"{BY_HAND_ORIGIN}lamp/set")
        await update(one.runner, followed_update(iri(LAMP), ON, OFF), cause=by_hand)
        last = one.links()[-1]
        assert (last.link, last.by, last.state) == ("reading", ("mqtt", "by hand, lamp/set"), OFF)
        assert as_json(one.explained(), NAMED)["links"][-1]["said"] == (
            "mqtt by hand, lamp/set: desired state false, was true"
        )


async def test_the_newest_outcome_up_to_a_time_is_explained(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        times = [one.clock.now]
        for state in (ON, OFF, ON):
            await one.acknowledges(state, await one.desires(state))
            times.append(one.clock.now)
        found = [one.explained(until=time).links for time in times[1:]]
        assert [links[-1].record for links in found] == ["1/3", "1/5", "1/7"]
        assert [kinds(links) for links in found] == [kinds(found[0])] * 3, "later states are not waiting then"
        with pytest.raises(ChangeLogError, match=rf"no actuation of .* up to 2026.*has actuations of {LAMP}"):
            one.explained(until=times[0])


async def test_an_actuator_without_actuation_is_refused_and_others_are_named(tmp_path: Path) -> None:
    async with street(tmp_path) as one:
        with pytest.raises(ChangeLogError, match="no actuation of <http://e/kitchen>; the log has no actuation"):
            one.explained("http://e/kitchen")
        await one.acknowledges(ON, await one.desires(ON))
        with pytest.raises(ChangeLogError, match=f"the log has actuations of {LAMP}"):
            one.explained("http://e/kitchen")


async def test_links_whose_records_were_dropped_by_retention_say_so(tmp_path: Path) -> None:
    async with street(tmp_path, CRAMPED) as one:
        sequence = await one.desires(ON)
        await one.acknowledges(ON, sequence)
        for _ in range(30):
            await one.acknowledges(ON, sequence, "client")
            await one.runner.log_keeper.turn()
        notification, report, *_ = one.links()
        first = History(tmp_path, one.clock).first()
        assert first is not None and first > (1, sequence), "otherwise nothing was dropped"
        assert (notification.link, notification.time, notification.record) == ("notification", None, f"1/{sequence}")
        wanted = f"record 1/{sequence} was dropped by retention; the oldest that is kept is 1/{first[1]}"
        assert notification.doubt == wanted
        assert report.link == "report"
        await one.acknowledges(ON, None)
        assert one.links()[0].doubt == "its record was dropped by retention"
        with pytest.raises(ChangeLogError, match=rf"records before 1/{first[1]} were dropped by retention"):
            one.explained("http://e/kitchen")


async def test_a_trigger_that_was_dropped_by_retention_ends_the_chain(tmp_path: Path) -> None:
    async with street(tmp_path, CRAMPED) as one:
        await one.reads(False)
        for number in range(30):
            await update(one.runner, f"INSERT DATA {{ <http://e/s> <http://e/p> {number} }}")
            await one.runner.log_keeper.turn()
        await time_passes(one.runner, one.clock, 31)
        last = History(tmp_path, one.clock).last()
        assert last is not None
        await one.acknowledges(OFF, last[1])
        links = one.links()
        assert kinds(links)[:3] == ["delay", "update", "notification"]
        assert "was dropped by retention" in links[0].doubt
        assert links[1].state == OFF
