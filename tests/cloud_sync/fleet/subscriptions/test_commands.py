"""`lamplighter-fleet subscriptions`, by its command line."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from tests.support.places import ROOT

QUERY = "SELECT ?s ?v WHERE {\n  ?s <http://www.w3.org/ns/sosa/hasSimpleResult> ?v\n}"
OTHER = "ASK { ?s ?p 1 }"


class Commands:
    """Runs subcommands on one lake."""

    def __init__(self, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.lake = lake
        self._capsys = capsys

    def __call__(self, name: str, *arguments: str, code: int = 0) -> str:
        """What it wrote: on stdout if the code is 0, else on stderr."""
        assert main(["subscriptions", name, str(self.lake), *arguments]) == code
        said = self._capsys.readouterr()
        if code == 2:
            assert said.out == ""
            assert len(said.err.splitlines()) == 1
        return said.err if code else said.out

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self("list", "--json", *arguments).splitlines()]

    def refused(self, *arguments: str) -> str:
        """What argparse says."""
        with pytest.raises(SystemExit) as ended:
            main(["subscriptions", *arguments])
        assert ended.value.code == 2
        return self._capsys.readouterr().err


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "lake", capsys)


def test_a_subscription_lives_through_all_its_states(run: Commands, tmp_path: Path) -> None:
    assert run("add", "co2", "--query", QUERY) == "subscription co2 is active, version 1, to no sink\n"
    (tmp_path / "other.rq").write_text(OTHER)
    assert run("replace", "co2", "--query-file", str(tmp_path / "other.rq")).startswith("subscription co2 is active, v")
    assert run("pause", "co2") == "subscription co2 is paused, version 2, to no sink\n"
    [record] = run.records()
    assert (record["state"], record["version"], record["query"], record["begin"]) == ("paused", 2, OTHER, "now")
    assert run("resume", "co2").startswith("subscription co2 is active, version 2")
    assert run("remove", "co2").startswith("subscription co2 is removed, version 2")
    assert run.records() == []
    assert [record["state"] for record in run.records("--removed")] == ["removed"]
    assert run("add", "co2", "--query", QUERY, "--begin", "all").startswith("subscription co2 is active, version 3")
    assert run.records()[0]["begin"] == "all"


def test_sinks_of_the_command_line_are_in_the_record(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ("files:out", "cold=files:s3://bucket/out", "webhook:https://a.example/x?y=1", "mqtt:broker/alarms/co2")
    more = ("v6=mqtt:[::1]:1884/a", "abs=files:/srv/my out")
    run("add", "co2", "--query", QUERY, *(word for text in (*texts, *more) for word in ("--to", text)))
    [record] = run.records()
    assert [{"name": sink["kind"], **sink} for sink in record["deliver"]] == [
        {"kind": "files", "name": "files", "url": str(tmp_path / "out")},
        {"kind": "files", "name": "cold", "url": "s3://bucket/out"},
        {"kind": "webhook", "name": "webhook", "url": "https://a.example/x?y=1"},
        {"kind": "mqtt", "name": "mqtt", "broker": "broker", "topic": "alarms/co2"},
        {"kind": "mqtt", "name": "v6", "broker": "::1", "port": 1884, "topic": "a"},
        {"kind": "files", "name": "abs", "url": "/srv/my out"},
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/srv/out", "write files:FOLDER-OR-URL, webhook:URL or mqtt:HOST"),
        ("update:x", "or use --sink-file"),
        ("webhook:ftp://a.example/", "write http://HOST/PATH"),
        ("webhook:https://u:p@a.example/", "headers_file"),
        ("files:sftp://u:p@a.example/", "options_file"),
        ("mqtt:broker", "topic"),
        ("mqtt:/topic", "broker"),
        ("mqtt:broker:99999/topic", "out of range"),
        ("mqtt:u:p@broker/topic", "password_file"),
        ("mqtt:broker/a/#", "without '+', '#'"),
    ],
)
def test_a_sink_that_cannot_be_read_is_refused(run: Commands, text: str, reason: str) -> None:
    said = run.refused("add", str(run.lake), "co2", "--query", QUERY, "--to", text)
    assert reason in said
    assert not run.lake.exists()


def test_a_sink_file_names_secrets_and_has_none(run: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "sinks"
    folder.mkdir()
    (folder / "hook.key").write_text("the secret")
    (folder / "hook.toml").write_text(
        'kind = "webhook"\nurl = "https://a.example/"\n'
        'secret_file = "hook.key"\nheaders_file = "of-systemd"\nca_file = "./ca/our.pem"\n'
    )
    (folder / "loop.toml").write_text(
        'kind = "update"\nname = "everywhere"\ngateways = ["*"]\n'
        'update = "INSERT DATA { <http://example.org/a> <http://example.org/b> 1 }"\n'
    )
    (folder / "out.toml").write_text('kind = "files"\nurl = "out"\n')
    files = [word for name in ("hook", "loop", "out") for word in ("--sink-file", str(folder / f"{name}.toml"))]
    run("add", "co2", "--query", QUERY, "--to", "second=files:/srv/out", *files)
    [record] = run.records()
    second, hook, loop, out = record["deliver"]
    assert (second["name"], loop["name"], out["url"]) == ("second", "everywhere", str(folder / "out"))
    assert hook == {
        "kind": "webhook",
        "url": "https://a.example/",
        "secret_file": str(folder / "hook.key"),
        "headers_file": "of-systemd",
        "ca_file": str(folder / "ca" / "our.pem"),
    }
    shown = run("show", "co2") + run("show", "co2", "--json") + run("list")
    assert "the secret" not in shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kind = ", "not TOML"),
        ('kind = "fax"', "fax"),
        ('kind = "webhook"\nurl = "https://a.example/"\npassword = "x"', "unknown field `password`"),
        ('kind = "mqtt"\nbroker = "b"\ntopic = "t"\nqos = 7', "qos"),
        ('kind = "update"\ngateways = ["*"]', "update"),
        ("\xff", "not UTF-8"),
        ("#" * 131_073, "more than 131,072 bytes"),
    ],
)
def test_a_sink_file_that_cannot_be_read_is_named(run: Commands, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "sink.toml").write_bytes(text.encode("latin-1"))
    said = run("add", "co2", "--query", QUERY, "--sink-file", str(tmp_path / "sink.toml"), code=2)
    assert f"{tmp_path / 'sink.toml'}: " in said and reason in said
    assert run.records() == []


def test_a_file_that_is_not_there_is_named(run: Commands, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for option in (("--query-file", missing), ("--query", QUERY, "--sink-file", missing)):
        assert f"{missing}: No such file or directory" in run("add", "co2", *option, code=2)


def test_two_sinks_of_one_name_are_refused(run: Commands) -> None:
    said = run("add", "co2", "--query", QUERY, "--to", "files:/a", "--to", "files:/b", code=2)
    assert "two sinks have the name 'files'; give each a name of its own" in said


def test_what_is_not_given_stays(run: Commands) -> None:
    run("add", "co2", "--query", QUERY, "--gateway", "gw-1", "--gateway", "gw-2*", "--to", "files:/a")
    run("replace", "co2", "--changes", "both")
    [record] = run.records()
    assert (record["query"], record["gateways"], len(record["deliver"])) == (QUERY, ["gw-1", "gw-2*"], 1)
    run("replace", "co2", "--all-gateways", "--no-sinks")
    [record] = run.records()
    assert (record["gateways"], record["deliver"], record["version"]) == ([], [], 2)
    assert "both" in run("replace", "co2", "--all-gateways", "--gateway", "gw", code=2)
    assert "both" in run("replace", "co2", "--no-sinks", "--to", "files:/a", code=2)


def test_a_query_that_is_not_supported_is_refused_with_its_place(run: Commands) -> None:
    said = run("add", "co2", "--query", "ASK { ?s ?p ?o }\nLIMIT 1", code=2)
    assert "line 2, column 1: LIMIT is not available in fleet subscriptions" in said
    assert run("add", "co2", "--query", "ASK {", code=2).startswith("lamplighter-fleet subscriptions: ")
    assert run.records() == []


def test_the_example_of_the_document_runs(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "fleet-subscriptions.md").read_text()
    [query] = re.findall(r"^```sparql\n(.*?)^```$", text, re.M | re.S)
    block, *_ = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "co2.rq").write_text(query)
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "), comments=True)
        assert (program, main(words)) == ("lamplighter-fleet", 0)
    capsys.readouterr()
    assert [record["state"] for record in run.records("--removed")] == ["removed"]


def test_unknown_and_known_ids_are_said(run: Commands) -> None:
    run("add", "co2", "--query", QUERY)
    assert "it exists" in run("add", "co2", "--query", QUERY, code=2)
    for name in ("show", "pause", "resume", "remove", "replace"):
        assert "'lux': not in lake" in run(name, "lux", code=2)
        assert "not an id" in run(name, "../co2", code=2)


def test_the_list_is_one_line_for_each_without_control_characters(run: Commands) -> None:
    for number in range(25):
        run("add", f"s{number:02d}", "--query", QUERY)
    run("add", "zz", "--query", "ASK { ?s ?p '\x1b[31m\u202e' }", "--gateway", "gw-1")
    lines = run("list").splitlines()
    assert lines[0].endswith(": 26 subscriptions")
    assert lines[1].split() == ["id", "state", "version", "changes", "gateways", "sinks", "query"]
    assert len(lines) == 3 + 26
    assert lines[3].split(maxsplit=6)[-1].startswith("SELECT ?s ?v WHERE { ?s <http://www.w3.org/")
    shown = run("list") + run("show", "zz") + run("list", "--json") + run("show", "zz", "--json")
    assert all(sign.isprintable() or sign == "\n" for sign in shown)


def test_a_broken_record_is_listed_beside_the_others(run: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    run("add", "co2", "--query", QUERY)
    broken = run.lake / "subscriptions" / "records" / "bad.json"
    broken.write_text("{")
    assert main(["subscriptions", "list", str(run.lake), "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["id"] == "co2"
    assert f"{broken}: not a subscription record" in said.err


def test_show_has_the_lines_of_the_query(run: Commands) -> None:
    run("add", "co2", "--query", QUERY, "--to", "files:/srv/out", "--gateway", "gw-*")
    lines = run("show", "co2").splitlines()
    assert lines[0] == "subscription co2: active, version 1"
    assert lines[2] == "events: added, of gw-*, begin: now"
    assert lines[-4:] == ["query:", *QUERY.splitlines()]
    assert json.loads(run("show", "co2", "--json"))["query"] == QUERY


def test_no_subcommand_of_subscriptions_loads_spark(tmp_path: Path) -> None:
    script = (
        "import sys; from lamplighter.cloud_sync.fleet.__main__ import main; "
        f"main(['subscriptions', 'add', {str(tmp_path)!r}, 'co2', '--query', {OTHER!r}]); "
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
