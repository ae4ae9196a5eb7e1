"""The `lamplighter` command as a user meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from lamplighter.engine.client.files import read_file
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.cli import check_command
from lamplighter.gateway.cli.listing_commands import _timer_row
from lamplighter.gateway.security import certificates
from tests.support.commands import command
from tests.support.components import missing
from tests.support.places import ROOT

SECURE = "[security]\nenabled = true\nhost = '127.0.0.1'\nhttps_port = 0\nwss_port = 0\n"
PLAIN = "[http]\nport = 0\n[websocket]\nport = 0\n"


def config(folder: Path, text: str) -> Path:
    path = folder / "lamplighter.toml"
    path.write_text(text)
    return path


def test_check_prints_the_configuration_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    application = (ROOT / "apps" / "smart-lighting.jsap").read_text()
    (tmp_path / "apps" / "smart-lighting.jsap").write_text(application)
    done = command("check", "--config", config(tmp_path, PLAIN + '[gateway]\nbase_iri = "http://here.example/"\n'))
    assert (done.returncode, done.stderr) == (0, "")
    for part in (str(tmp_path), str(tmp_path / "data"), "http://here.example/", "none", "smart-lighting"):
        assert part in done.stdout
    assert not (tmp_path / "data").exists()


def test_check_names_overlapping_mapping_rules_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    rules = tmp_path / "mapping" / "home.toml"
    rule = "[[stream]]\ntopic = 'home/{room}/temperature'\nproperty = 'lighting:temperature'\npayload = 'number'\n"
    rules.write_text(rule + "\n" + rule.replace("{room}", "kitchen"))
    done = command("check", "--config", config(tmp_path, PLAIN))
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("  overlap ")]
    assert f"{rules} line 1: stream 1 and {rules} line 6: stream 2: both rules give topic home/kitchen/" in line


def test_check_names_rules_that_feed_themselves(tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    rule = "[[stream]]\ntopic = 'home/#'\nproperty = 'lighting:temperature'\npayload = 'number'\n"
    publish = "[[publish]]\ntopic = 'home/x'\nquery = 'SELECT ?x { ?x a lighting:Lamp }'\n"
    (tmp_path / "mapping" / "home.toml").write_text(rule + publish)
    done = command("check", "--config", config(tmp_path, PLAIN))
    assert (done.returncode, done.stderr) == (0, "")
    assert "  loop          " in done.stdout


def test_check_reads_the_shapes(tmp_path: Path) -> None:
    shape = "@prefix sh: <http://www.w3.org/ns/shacl#> . <urn:s> sh:targetClass <urn:C> ; sh:class <urn:D> ."
    (tmp_path / "shapes.ttl").write_text(shape)
    table = '[shacl]\nshapes = ["shapes.ttl"]\nprofile = true\n'
    done = command("check", "--config", config(tmp_path, PLAIN + table))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"  shapes +[0-9]+ with targets, reject", done.stdout)
    (tmp_path / "shapes.ttl").write_text(shape.replace("sh:class", "sh:sparql"))
    done = command("check", "--config", config(tmp_path, PLAIN + table))
    assert done.returncode == 2
    assert "shapes.ttl: shape <urn:s>: sh:sparql: SPARQL-based constraints are not supported" in done.stderr


def test_check_takes_the_data_folder_from_the_command_line(tmp_path: Path) -> None:
    done = command("check", "--config", config(tmp_path, PLAIN), "--data", tmp_path / "elsewhere")
    assert done.returncode == 0
    assert str(tmp_path / "elsewhere") in done.stdout


def test_the_repository_s_own_configuration_is_good(tmp_path: Path) -> None:
    for name in ("apps", "mapping"):
        shutil.copytree(ROOT / name, tmp_path / name)
    own = (ROOT / "lamplighter.toml").read_text()
    done = command("check", "--config", config(tmp_path, re.sub(r"(?m)^port = (8|9)000", "port = 0", own)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[http]\nprot = 8000\n", "prot"),
        ('[http]\nport = "8000"\n', "http.port"),
        ("[query]\nrows_max = 0\n", "query.rows_max"),
        ("[http\n", "not TOML"),
    ],
)
def test_a_bad_configuration_ends_with_2_and_one_line_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    done = command("check", "--config", config(tmp_path, text))
    assert done.returncode == 2
    assert named in done.stderr
    assert str(tmp_path) in done.stderr
    assert done.stderr.startswith("lamplighter: ")
    assert done.stderr.count("\n") == 1, "one line, and no traceback"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (SECURE + 'local_users = ["nosuch"]\n', "security.local_users: this machine has no user 'nosuch'"),
        (PLAIN + '[security]\ngrant_read = ["no iri"]\n', "security.grant_read, grant_write, grant_subscribe"),
        (SECURE + 'certificate_file = "a.pem"\nkey_file = "a.key"\n', "security.certificate_file: "),
        (
            SECURE + 'certificate_file = "lamplighter.toml"\nkey_file = "lamplighter.toml"\n',
            "has no certificate in PEM",
        ),
        (SECURE + 'names = ["no name"]\n', "security.names: 'no name'"),
        (SECURE + f'socket_folder = "{"x" * 200}"\n', "cannot listen on"),
        ("[http]\nport = 0\nhost = '0.0.0.0'\n[websocket]\nport = 0\n", "http.host = '0.0.0.0'"),
        (PLAIN.replace("[websocket]", "query_path = '/delayed'\n[websocket]"), "two resources have the path /delayed"),
        (f"[http]\nupdate_path = '/ca.pem'\n{SECURE}", "two resources have the path /ca.pem"),
        (f"[http]\nupdate_path = '/secure/query'\n{SECURE}", "two resources have the path /secure/query"),
    ],
)
def test_check_refuses_what_a_start_refuses_and_in_the_same_words(tmp_path: Path, text: str, named: str) -> None:
    path = config(tmp_path, text)
    checked = command("check", "--config", path)
    assert checked.returncode == 2, checked.stdout
    assert named in checked.stderr
    assert checked.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [path], "nothing was written"
    started = command("run", "--config", path)
    assert started.returncode == 2
    assert _words(started.stderr) == _words(checked.stderr)


def _words(text: str) -> str:
    """Without file and line, which a start cannot always name."""
    return re.sub(r"\S+/lamplighter.toml line [0-9]+: ", "", text)


def test_check_names_all_faults_of_all_parts(tmp_path: Path) -> None:
    path = config(tmp_path, "")
    for folder in ("apps", "mapping"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mapping" / "home.toml").write_text("[[steam]]")
    (tmp_path / "apps" / "a.jsap").write_text('{"updates": {"U": {"sparql": "CLEAR ALL", "dealy": "PT1S"}}}')
    (tmp_path / "apps" / "b.jsap").write_text(
        '{"queries": {"Q": {"sparql": "SELECT"}}, "updates": {"U": {"sparql": "CLEAR ALL"}}, '
        '"extended": {"lamplighter": {"aggregators": {"a": {"query": "Q", "added": "U"}}}}}'
    )
    lines = command("check", "--config", path).stderr.splitlines()
    assert [line.partition(f"{tmp_path}/")[2].partition("/")[2].partition(":")[0] for line in lines] == [
        "home.toml",
        "a.jsap line 1",
        "b.jsap line 1",
    ]
    assert 'updates.U.dealy: unknown member; did you mean "delay"?' in lines[1]
    assert "queries.Q.sparql: syntax error at ▶ in 'SELECT ▶'" in lines[2]
    path.write_text("[gatewy]")
    lines = command("check", "--config", path).stderr.splitlines()
    expected = ("gatewy", "steam", "dealy", "Q.sparql")
    assert [name in line for name, line in zip(expected, lines, strict=True)] == [True] * 4


def test_check_tells_what_it_may_not_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = tmp_path / "certificate.pem"

    def read(path: Path) -> bytes:
        if path == certificate:
            raise PermissionError(13, "Permission denied", str(path))
        return read_file(path)

    for name in ("certificate.pem", "key.pem"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(certificates, "read_file", read)
    path = config(tmp_path, SECURE + 'certificate_file = "certificate.pem"\nkey_file = "key.pem"\n')
    assert main(["check", "--config", str(path)]) == 0
    told = capsys.readouterr().out
    assert "is valid" in told
    assert (
        f"not checked, only the gateway's user may read it: security.certificate_file: {certificate}: Permission"
        in told
    )


def test_a_missing_file_ends_with_2(tmp_path: Path) -> None:
    done = command("check", "--config", tmp_path / "none.toml")
    assert done.returncode == 2
    assert str(tmp_path / "none.toml") in done.stderr


def test_a_bad_application_ends_with_2_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "broken.jsap").write_text("{")
    done = command("check", "--config", config(tmp_path, ""))
    assert done.returncode == 2
    assert "broken.jsap" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_use_ends_with_2() -> None:
    for arguments in ([], ["fly"], ["check", "--speed", "9"]):
        done = command(*arguments)
        assert done.returncode == 2
        assert "usage: lamplighter" in done.stderr


@pytest.mark.parametrize("gate", ["http", "websocket"])
def test_a_port_in_use_is_a_clear_error(tmp_path: Path, gate: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = "websocket" if gate == "http" else "http"
        done = command("run", "--config", config(tmp_path, f"[{gate}]\nport = {port}\n[{other}]\nport = 0\n"))
    assert done.returncode == 2
    assert f"{gate}: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_told() -> None:
    done = command("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("lamplighter ")


@pytest.mark.parametrize(
    ("in_s", "shown"),
    [
        (None, ""),
        (0.4, "00:00:00"),
        (-0.4, "00:00:00"),
        (-61, "-00:01:01"),
        (86_399.6, "1d 00:00:00"),
        (59.4, "00:00:59"),
    ],
)
def test_how_long_until_a_timer_is_due(in_s: float | None, shown: str) -> None:
    timer = {"id": "t", "due": "2030-01-01T00:00:00.000000Z", "in_s": in_s, "cause": None, "state": "late"}
    row = _timer_row({**timer, "missed": "run", "update": "CLEAR ALL"})
    assert row == ("t", "2030-01-01T00:00:00Z", shown, "", "late", "run", "CLEAR ALL")


def test_root_runs_no_gateway_in_the_data_folder_of_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("only root may give folders away")
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 990, 990)
    done = command("run", "--config", config(tmp_path, "[http]\nport = 0\n[websocket]\nport = 0\n"))
    assert done.returncode == 2
    assert "`systemctl start lamplighter-gateway`" in done.stderr
    assert list(data.iterdir()) == []


def test_a_timers_cause_is_shown_without_escape_sequences() -> None:
    cause = {"kind": "mine", "id": "\x1b[2J" + "x" * 200, "seq": None}
    timer = {"id": "t", "due": "2030-01-01T00:00:00Z", "in_s": 1.0, "cause": cause, "state": "late", "missed": "run"}
    shown = _timer_row({**timer, "update": "CLEAR ALL"})[3]
    assert shown.startswith("mine \\u001B[2Jxxx") and len(shown) == 60


def test_check_names_a_port_in_use_and_a_start_does_so_in_the_same_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = config(tmp_path, f"[http]\nport = {taken.getsockname()[1]}\n[websocket]\nport = 0\n")
        said = [command(name, "--config", path) for name in ("check", "run")]
    assert [done.returncode for done in said] == [2, 2]
    lines = [line for done in said for line in done.stderr.splitlines() if "cannot listen on" in line]
    told = {line.partition("cannot listen on")[2] for line in lines}
    assert f"{path} line 2: http.port: " in lines[0]
    assert len(told) == 1


def test_check_prints_json(tmp_path: Path) -> None:
    path = config(tmp_path, PLAIN)
    done = command("check", "--json", "--config", path)
    assert (done.returncode, json.loads(done.stdout)["valid"]) == (0, True)
    path.write_text("[http]\nprot = 1\n[gateway]\ndurability = 'fsnc'\n")
    done = command("check", "--json", "--config", path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["valid"], done.stderr) == (2, False, "")
    assert [fault.rpartition("lamplighter.toml ")[2] for fault in told["faults"]] == [
        "line 2: unknown key http.prot; did you mean port?",
        "line 4: gateway.durability: Invalid enum value 'fsnc'; did you mean \"fsync\"?; "
        'allowed: "fsync", "interval", "off"',
    ]


def test_check_names_a_query_for_clients_that_does_not_parse(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "a.jsap").write_text('{"queries": {"Q": {"sparql": "SELEKT ?x { ?x ?y ?z }"}}}')
    path = config(tmp_path, PLAIN)
    done = command("check", "--config", path)
    assert done.returncode == 2
    assert "a.jsap line 1: queries.Q.sparql: syntax error at ▶ in 'SELEKT ?x ▶" in done.stderr


def test_the_service_of_an_adapter_checks_without_what_it_may_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its unit hides the data folder. The stored applications in it are damaged here, and so would be refused."""
    path = tmp_path / "lamplighter.toml"
    path.write_text(f'[gateway]\ndata = "{tmp_path}/data"\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "data/applications.json").write_text("[")
    assert main(["check", "--config", str(path)]) == 2
    monkeypatch.setattr(check_command, "_is_hidden", lambda _: True)  # the tests are root
    assert main(["check", "--config", str(path)]) == 0
    assert f"not checked, only the gateway's user may read it: {tmp_path}/data" in capsys.readouterr().out
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps/smart-lighting.jsap").write_text((ROOT / "apps/smart-lighting.jsap").read_text())
    monkeypatch.setattr("lamplighter.gateway.history.records.History", None)  # the log is hidden, too
    (tmp_path / "data/log").mkdir()
    assert main(["check", "--config", str(path)]) == 0
