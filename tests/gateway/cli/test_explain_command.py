"""What `lamplighter explain` understands, and how it shows a chain."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.terms import Quad, literal
from lamplighter.gateway.cli.explain_command import end_of, lines, texts_of
from lamplighter.gateway.history.chain_texts import link_texts
from lamplighter.gateway.history.explanation import ChainLink, Explanation, full_iri
from lamplighter.gateway.history.names import Names
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT
from tests.support.commands import command
from tests.support.places import ROOT

BASE = "http://lamplighter.local/"
NAMES = Names(BASE)
KITCHEN = f"<{BASE}actuator/kitchen>"
NOW = datetime(2026, 11, 21, 20, 30, tzinfo=UTC)  # 21:30 in Rome
ON, OFF = literal("ON"), literal("OFF")


@pytest.fixture(autouse=True)
def rome(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine is in a time zone of its own."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "name",
    ["actuator/kitchen", ":actuator/kitchen", f"{BASE}actuator/kitchen", KITCHEN],
)
def test_an_actuator_may_be_named_in_several_ways(name: str) -> None:
    assert full_iri(name, BASE) == KITCHEN[1:-1]


def test_a_known_prefix_is_one_and_another_is_a_scheme() -> None:
    assert full_iri("sosa:Actuator", BASE) == "http://www.w3.org/ns/sosa/Actuator"
    assert full_iri("urn:lamp:1", BASE) == "urn:lamp:1"


def test_what_is_no_iri_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not an IRI"):
        full_iri("my lamp", BASE)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("21:03", "2026-11-21T20:03:59.999999"),
        ("21:30:00", "2026-11-21T20:30:00.999999"),
        ("21:31", "2026-11-20T20:31:59.999999"),
        ("9:05", "2026-11-21T08:05:59.999999"),
        ("2026-11-20", "2026-11-20T22:59:59.999999"),
        ("2026-11-20T21:03", "2026-11-20T20:03:59.999999"),
        ("2026-11-20 21:03", "2026-11-20T20:03:59.999999"),
        ("2026-11-20 21:03:07", "2026-11-20T20:03:07.999999"),
        ("2026-11-20T21:03:07Z", "2026-11-20T21:03:07.999999"),
        ("2026-11-20T21:03:07.25Z", "2026-11-20T21:03:07.250000"),
        ("2026-11-20T21:03-05:00", "2026-11-21T02:03:59.999999"),
        ("2026-07-20T21:03", "2026-07-20T19:03:59.999999"),
    ],
)
def test_a_time_is_the_end_of_what_it_names(text: str, end: str) -> None:
    assert end_of(text, NOW).isoformat(timespec="microseconds") == f"{end}+00:00"


@pytest.mark.parametrize("text", ["", "x", "25:00", "yesterday", "2026-13-01", "21", "1/17"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write a time such as 21:03"):
        end_of(text, NOW)


CHAIN = [
    ChainLink(
        link="reading",
        time="2026-11-21T20:03:07.301000Z",
        record="1/7",
        by=("mqtt", "zigbee2mqtt/pir"),
        quads=(Quad(f"<{BASE}observation/pir>", f"<{HAS_SIMPLE_RESULT}>", '"1"', None),),
    ),
    ChainLink(
        link="query",
        time="2026-11-21T20:03:07.301000Z",
        application="light",
        aggregator="on",
        member="added",
        text="BASE <http://e/> PREFIX a: <http://a/>\nPREFIX : <http://b/> SELECT ?x { ?x a:p :y }",
    ),
    ChainLink(
        link="update",
        time="2026-11-21T20:03:07.303500Z",
        record="1/8",
        by=("application", "light/on/added"),
        state=ON,
        before=OFF,
    ),
    ChainLink(link="notification", time="2026-11-21T20:03:07.303500Z", record="1/8", state=ON),
    ChainLink(link="rule", time="2026-11-21T20:03:07.400000Z", text="mapping/home.toml line 7: command 1"),
    ChainLink(link="request", time="2026-11-21T20:03:07.400000Z", by=("mqtt", "lamp/set"), state=ON, text="lamp/set"),
    ChainLink(link="acknowledgement", time="2026-11-21T20:03:09Z", record="1/10", text="PUBACK"),
]


def told(explanation: Explanation) -> list[str]:
    return list(lines(explanation, NAMES, NAMES.term(explanation.actuator), link_texts(explanation, NAMES)))


def test_a_chain_has_a_line_for_each_link() -> None:
    assert told(Explanation(KITCHEN, ON, "notification", CHAIN)) == [
        ':actuator/kitchen: "ON", 2026-11-21, times of UTC+01:00',
        '21:03:07.301            reading          1/7   mqtt zigbee2mqtt/pir: "1" of :observation/pir',
        "21:03:07.301  +0.0 ms   query                  light, on added: SELECT ?x { ?x a:p :y }",
        '21:03:07.303  +2.5 ms   update           1/8   application light: desired state "ON", was "OFF"',
        '21:03:07.303  +0.0 ms   notification     1/8   desired state "ON"',
        "21:03:07.400  +96.5 ms  rule                   mapping/home.toml line 7: command 1",
        '21:03:07.400  +0.0 ms   request                mqtt lamp/set: "ON"',
        "21:03:09.000  +1.6 s    acknowledgement  1/10  PUBACK",
    ]


def shown(*links: ChainLink, cause: str = "notification") -> list[str]:
    return told(Explanation(KITCHEN, ON, cause, list(links)))


def test_times_of_several_days_have_their_days() -> None:
    _, *rows = shown(
        ChainLink(link="update", time="2026-11-19T10:00:00Z", by=("ws", "10.0.0.5:4711"), state=ON),
        ChainLink(
            link="update", time="2026-11-20T13:30:00Z", by=("http", "anna@10.0.0.5:4711"), client="anna", state=ON
        ),
        ChainLink(link="update", time="2026-11-20T15:35:00Z", by=("application", "light@0f3a"), state=ON),
        ChainLink(link="update", time="2026-11-20T15:37:05Z", by=("timer", "0123"), state=ON),
        ChainLink(link="update", time="2026-11-20T15:37:00Z", by=("bridge", "x"), state=ON),
    )
    assert [" ".join(row.split()) for row in rows] == [
        '2026-11-19 11:00:00.000 update client 10.0.0.5:4711 over WebSocket: desired state "ON"',
        '2026-11-20 14:30:00.000 +1 d 3 h update client anna at 10.0.0.5:4711 over HTTP: desired state "ON"',
        '2026-11-20 16:35:00.000 +2 h 5 min update start of application light: desired state "ON"',
        '2026-11-20 16:37:05.000 +2 min 5 s update delayed update: desired state "ON"',
        '2026-11-20 16:37:00.000 -5.0 s update bridge x: desired state "ON"',
    ]


def test_doubts_stand_behind_their_links() -> None:
    _, *rows = shown(
        ChainLink(link="notification", record="1/2", doubt="record 1/2 was dropped by retention", state=ON),
        ChainLink(
            link="request", time="2026-11-20T15:37:00Z", text="lamp/set", state=ON, trusted=False, doubt="by hand"
        ),
        ChainLink(link="acknowledgement", time="2026-11-20T15:37:00Z"),
    )
    assert rows[0].endswith('notification     1/2  desired state "ON" [record 1/2 was dropped by retention]')
    assert rows[1].endswith('lamp/set: "ON" [by hand; clock not synchronised]')


def test_clocks_that_were_never_synchronised_are_told_once() -> None:
    head, row = shown(ChainLink(link="acknowledgement", time="2026-11-20T15:37:00Z", trusted=False, text="2.04"))
    assert head.endswith("times of UTC+01:00, clock not synchronised")
    assert row.endswith("acknowledgement    2.04")


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("client", "since the device had another state or came back"),
        ("timer", "again at its interval, after attempts without an answer"),
    ],
)
def test_a_request_tells_why_it_was_sent_again(cause: str, said: str) -> None:
    [row] = shown(ChainLink(link="request", time=None, text="lamp/set", state=ON), cause=cause)[1:]
    assert row.endswith(f'lamp/set: "ON", {said}')


@pytest.mark.parametrize(
    "name", ["reading", "query", "update", "rule", "request", "acknowledgement", "refusal", "waiting", "delay"]
)
def test_texts_of_devices_cannot_control_the_terminal(name: str) -> None:
    text, by = "\x1b[31mred\nline", ("mqtt", "\x1b]0;x\x07")
    assert "".join(shown(ChainLink(link=name, text=text, by=by, application="\x1b", state='"\x1b"'))).isprintable()


def test_the_texts_of_queries_are_those_of_the_applications(tmp_path: Path) -> None:
    found = texts_of(ROOT / "apps", tmp_path)
    assert "lighting:presence" in found["smart-lighting", "switch-on"]
    (tmp_path / "wrong.jsap").write_text("{")
    assert texts_of(tmp_path, tmp_path) == texts_of(tmp_path / "none", tmp_path / "none") == {}


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    done: subprocess.CompletedProcess[str] = command("explain", "actuator/kitchen", "--data", tmp_path)
    assert done.returncode == 2
    assert "it has no change log" in done.stderr and "Traceback" not in done.stderr
