"""`lamplighter mapping test` and `lamplighter mapping check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lamplighter.gateway.__main__ import main
from tests.support.mapping_rules import TWO_READINGS as RULES

NO_GATEWAY = (
    "the rules in the dataset; no gateway answers at http://127.0.0.1:1/query: Connection refused; is it running, and "
    "with this configuration?"
)


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands say at once that no gateway runs."""

    def wait(*arguments: object) -> None:
        raise AssertionError("it waits for a gateway")

    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.setattr("asyncio.sleep", wait)


def run(
    folder: Path, capsys: pytest.CaptureFixture[str], rules: str, *arguments: str, settings: str = ""
) -> tuple[int, str]:
    (folder / "mapping").mkdir(exist_ok=True)
    (folder / "mapping" / "home.toml").write_text(rules)
    config = folder / "lamplighter.toml"
    config.write_text(settings + "[http]\nport = 1\n[websocket]\nport = 1\n")
    code = main(["mapping", *arguments, "--config", str(config)])
    return code, capsys.readouterr().out.replace(f"{folder}/", "")


def test_triples_of_a_message_with_the_rules_that_make_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES, "test", "z/hall", '{"temperature": 21.5}')
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "mapping/home.toml line 1: stream 1  (topic z/{device})"
    assert lines[1] == "  read 1"
    observation = "<http://lamplighter.local/observation/sensor/z/hall/temperature;lighting:temperature;feature/z/hall>"
    assert f'    {observation} sosa:hasSimpleResult "21.5"^^xsd:decimal' in lines
    assert any("qudt:hasUnit unit:DEG_C" in line for line in lines)
    assert "  not in the message: occupancy (optional)" in lines
    assert f"not tested: {NO_GATEWAY}" in lines


def test_the_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES, "test", "z/hall", '{"temperature": 21.5}', "--json")
    found = json.loads(out)
    assert (code, found["rules"][0]["missing"]) == (0, ["occupancy"])
    assert found["not_tested"] == [NO_GATEWAY]
    code, out = run(tmp_path, capsys, RULES, "test", "a", "1", "--json")
    assert (code, json.loads(out)["problem"]) == (1, "no rule covers the topic a")
    code, out = run(tmp_path, capsys, RULES + "[[steam]]\n", "check", "--json")
    assert code == 1 and "steam" in json.loads(out)["faults"][0]


def test_the_rules_of_one_file_are_tried_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.toml").write_text(RULES.replace("z/{device}", "z/+"))
    code, out = run(tmp_path, capsys, RULES, "test", "z/hall", "{}", "--rules", str(tmp_path / "new.toml"))
    assert code == 0 and out.startswith("new.toml line 1: stream 1  (topic z/+)") and "not tested" not in out
    assert run(tmp_path, capsys, RULES, "test", "z/hall", "{}", "--rules", str(tmp_path / "no.toml"))[0] == 2


def test_fault_of_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES, "test", "z/hall", '{"temperature": "warm"}')
    assert code == 1
    assert "  fault: temperature: not a number" in out


def test_topic_without_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES, "test", "z/hall/kitchen", "1")
    assert code == 1
    assert "no rule covers the topic z/hall/kitchen" in out


def test_payload_of_a_file_and_in_hexadecimal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = '[[stream]]\ntopic = "b"\npayload = "number"\nformat = "<h"\nproperty = "lighting:temperature"\n'
    (tmp_path / "payload").write_bytes(b"\xff\xff")
    for payload in ([f"@{tmp_path}/payload"], ["ffff", "--hex"]):
        code, out = run(tmp_path, capsys, rules, "test", "b", *payload)
        assert code == 0
        assert '"-1"^^xsd:integer' in out


def test_model_event_shows_the_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES, "test", "z/a", '{"temperature": 1}', settings='[mqtt]\nmodel = "event"\n')
    assert code == 0
    assert 'sosa:hasSimpleResult "1"^^xsd:integer  in <http://lamplighter.local/stream/' in out


def test_check_names_all_faults_overlaps_and_unknown_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = """\
[[stream]]
topic = "a/{x}"
property = "lighting:temperature"
payload = "number"
unit = "furlong"
broker = "attic"
[[stream]]
topic = "a/b"
property = "lighting:temperature"
payload = "float"
[[stream]]
topic = "a/b"
property = "lighting:temperature"
payload = "number"
[[command]]
actuator = "lamp/1"
topic = "a/#"
[[command]]
actuator = "lamp/2"
topic = "lamp/2/set"
broker = "shed"
"""
    code, out = run(tmp_path, capsys, RULES + more, "check")
    assert code == 1
    assert "fault: mapping/home.toml line 18: stream 3: " in out
    assert "fault: mapping/home.toml line 26: command 1: topic = 'a/#': " in out
    assert "overlap: mapping/home.toml line 12: stream 2 and mapping/home.toml line 22: stream 4: both rules" in out
    assert "unknown broker: mapping/home.toml line 12: stream 2: broker = 'attic'; the brokers are: none" in out
    assert "unknown broker: mapping/home.toml line 29: command 2: broker = 'shed'; the brokers are: none" in out
    assert "unknown unit: mapping/home.toml line 12: stream 2: unit = 'furlong' is kept as text" in out
    assert "3 rules in files, 0 in the dataset, 1 command" in out


def test_check_of_good_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES, "check")
    assert code == 0
    assert "fault" not in out and "overlap" not in out


PUBLISH = """\
[[publish]]
query = "SELECT ?room { ?room lighting:temperature ?value }"
topic = "z/{room}"
"""


def test_check_reports_rules_that_feed_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, RULES + PUBLISH, "check")
    assert code == 0
    assert (
        "loop: mapping/home.toml line 12: publish 1 and mapping/home.toml line 1: stream 1: "
        "the first publishes to z/{room}, and the second reads it;" in out
    )
    assert out.splitlines()[-1] == "1 rule in files, 0 in the dataset, 0 commands, 1 publish rule"
    for other in ('topic = "y/{room}"', 'topic = "z/{room}/set"', 'topic = "z/{room}"\nbroker = "attic"'):
        rules = RULES.replace('payload = "number"', 'payload = "number"\nbroker = "default"', 1)
        _, out = run(tmp_path, capsys, rules + PUBLISH.replace('topic = "z/{room}"', other), "check")
        assert "loop: " not in out


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        (
            "SELECT ?room { ?room lighting:temperature }",
            "query: syntax error at ▶ in '{ ?room lighting:temperature ▶ }'",
        ),
        ("SELECT ?value { ?room lighting:temperature ?value }", "topic = 'z/{room}': the query does not select ?room"),
        ("SELECT ?room { SERVICE <http://e/> { ?room ?p ?o } }", "query: "),
        ("DESCRIBE ?room { ?room ?p ?o }", "query: write a SELECT or a CONSTRUCT query"),
    ],
)
def test_check_names_faults_of_queries_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], query: str, fault: str
) -> None:
    rules = PUBLISH.replace("SELECT ?room { ?room lighting:temperature ?value }", query)
    code, out = run(tmp_path, capsys, rules, "check")
    assert code == 1
    assert f"fault: mapping/home.toml line 1: publish 1: {fault}" in out
    assert main(["check", "--config", str(tmp_path / "lamplighter.toml")]) == 2
    assert f"mapping/home.toml line 1: publish 1: {fault}" in capsys.readouterr().err.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("command", [("check",), ("test", "z\x1b[2J/hall", "x")])
def test_control_sequences_of_rules_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    rules = RULES.replace("z/{device}", "z\\u001b[2J/{device}").replace('temperature"', 't\\u009b2J"', 1)
    _, out = run(tmp_path, capsys, rules + RULES.replace("z/{device}", "z\\u001b[2J/{device}"), *command)
    assert "z\\u001B[2J" in out
    assert out.replace("\n", "").isprintable()


COAP = """\
[[stream]]
resource = "coap://lamp/3303/0"
payload = "lwm2m"
member = "5700"
property = "gateway:temperature"
unit = "Cel"

[[stream]]
path = "readings/{room}"
payload = "number"
member = "t"
property = "gateway:temperature"
unit = "furlong"

[[command]]
actuator = "lamp/hall"
resource = "coap://lamp/on"
content_format = "json"
values = {true = "ON", false = "OFF"}
state = {member = "on"}
"""


def test_body_of_a_resource(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, COAP, "test", "coap://LAMP/3303/0", "e4164441ac0000", "--hex")
    assert code == 0
    lines = out.splitlines()
    place = "resource coap://lamp/3303/0, content format 11542 (lwm2m+tlv)"
    assert lines[0] == f"mapping/home.toml line 1: stream 1  ({place})"
    assert any('sosa:hasSimpleResult "21.5"^^xsd:decimal' in line for line in lines)
    assert f"not tested: {NO_GATEWAY}" in lines


@pytest.mark.parametrize("path", ["readings/hall", "/readings/hall"])
def test_body_for_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str) -> None:
    code, out = run(tmp_path, capsys, COAP, "test", path, '{"t": 21.5}')
    assert code == 0
    assert "line 8: stream 2  (path readings/{room}, content format 50 (json))" in out
    assert "<http://lamplighter.local/sensor/readings/hall>" in out


def test_state_that_a_device_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, COAP, "test", "coap://lamp/on", '{"on": "ON"}')
    assert code == 0
    assert "command 1  (resource coap://lamp/on, content format 50 (json))" in out
    assert '  reported state: "true"^^xsd:boolean' in out
    code, out = run(tmp_path, capsys, COAP, "test", "coap://lamp/on", "{}")
    assert code == 0 and "not in the body: the state" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("coap://lamp/3303/0", "e4164441ac0000", "--hex", "--format", "json"),
            "fault: the content format is 50 (json)",
        ),
        (("coap://lamp/3303/0", "e4164441ac0000", "--hex", "--format", "4711"), "fault: the content format is 4711"),
        (("coap://lamp/3303/0", "x"), "fault: payload ends within an entry"),
        (("readings/hall", '{"t": "warm"}'), "fault: not a number"),
        (("coap://lamp/on", "5"), "fault: member on is missing"),
        (("coap://lamp/other", "5"), "no rule covers the resource coap://lamp/other"),
    ],
)
def test_faults_of_bodies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    code, out = run(tmp_path, capsys, COAP.replace("state = {", "state = {optional = false, "), "test", *arguments)
    assert code == 1
    assert reason in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("coap://224.0.1.187/a", "5"), "multicast"),
        (("readings/hall", "5", "--format", "yaml"), "--format: write text, json, cbor"),
        (("readings/hall", "5", "--format", "70000"), "--format: write text, json, cbor"),
    ],
)
def test_arguments_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "lamplighter.toml").write_text("")
    assert main(["mapping", "test", *arguments, "--config", str(tmp_path / "lamplighter.toml")]) == 2
    assert reason in capsys.readouterr().err


def test_check_counts_and_checks_rules_for_coap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, COAP, "check")
    assert code == 0
    assert "unknown unit: mapping/home.toml line 8: stream 2: unit = 'furlong' is kept as text" in out
    assert "2 rules in files, 0 in the dataset, 1 command" in out
    code, out = run(tmp_path, capsys, COAP + '\n[[stream]]\nresource = "coap://lamp"\npath = "a"\n', "check")
    assert code == 1
    assert "fault: mapping/home.toml line 22: stream 3: resource and path: a rule has one of them" in out


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("SELECT ?actuator ?state { ?actuator gateway:desiredState ?state }", "query: it does not select ?n"),
        ("SELECT ?n ?actuator { ?actuator gateway:n ?n }", "query: it does not select ?state"),
        ("SELECT ?n {", "query: "),
    ],
)
def test_check_names_faults_of_queries_of_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], query: str, fault: str
) -> None:
    rules = f'[[command]]\nresource = "coap://lamp/{{n}}"\nquery = "{query}"\n'
    code, out = run(tmp_path, capsys, rules, "check")
    assert code == 1
    assert f"fault: mapping/home.toml line 1: command 1: {fault}" in out
    assert main(["check", "--config", str(tmp_path / "lamplighter.toml")]) == 2
    assert f"command 1: {fault}" in capsys.readouterr().err
