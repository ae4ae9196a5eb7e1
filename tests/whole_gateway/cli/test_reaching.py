"""`--url` and `--json`: commands at another gateway, and output for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.specs import ADAPTERS
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.cli.command_tree import tree
from tests.support.commands import command
from tests.support.secure_gateway import SecureGateway

NO_GATEWAY = {
    ("bundle",),
    *(("check",), ("verify",), ("completion",), ("init",), ("install",), ("uninstall",), ("demo",)),
    *(("run",), *((spec.name,) for spec in ADAPTERS), ("log",), ("sync",), ("try",)),
    ("devices", "key"),
    ("new-epoch",),
    ("notifications",),
}
"""Commands on files, those that run something, and one that reads the inboxes of others."""


NO_JSON = {
    *(("run",), *((spec.name,) for spec in ADAPTERS)),
    *(("demo",), ("completion",), ("install",), ("uninstall",), ("new-epoch",)),
    ("log", "export"),
    ("sync", "run"),
    ("mcp",),
}
"""Commands that run something, or print or write what has a format of its own."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("secure"), attempts_per_min=0) as running:
        secret = running.client("operator", read=["*"], write=["*"], subscribe=["*"], operate=True)
        bearer = running.bearer("operator", secret)
        (running.folder / "token").write_text(bearer.removeprefix("Bearer "))
        yield running


def told(gateway: SecureGateway, *arguments: object, code: int = 0) -> Any:
    """What a command prints as JSON, over the network and with settings of no gateway."""
    there = ("--url", f"https://localhost:{gateway.port}", "--ca", gateway.authority)
    done = command(*arguments, *there, "--token", gateway.folder / "token", cwd=gateway.folder.parent)
    assert done.returncode == code, done
    return json.loads(done.stdout)


def test_commands_work_at_another_gateway_and_print_json(gateway: SecureGateway, tmp_path: Path) -> None:
    update = told(gateway, "update", "INSERT DATA { <urn:s> <urn:p> 1 }", "--json")
    assert update["record"] >= 1 and update["delayed"] is None
    assert len(told(gateway, "query", "SELECT ?o { <urn:s> <urn:p> ?o }", "--json")["results"]["bindings"]) == 1
    timer = told(gateway, "update", "CLEAR ALL", "--delay", "P1D", "--json")["delayed"]
    assert [one["id"] for one in told(gateway, "timers", "--json")["delayed"]] == [timer]
    assert told(gateway, "timers", "cancel", timer, "--json") == {"cancelled": [timer]}
    assert told(gateway, "subscriptions", "--json")["total"] == 0
    assert told(gateway, "status", "--json")["engine"]["version"]
    made = told(gateway, "backup", tmp_path / "b.zst", "--json")
    assert made["quads"] == 1
    assert told(gateway, "restore", tmp_path / "b.zst", "--yes", "--json")["removed"] == 0
    assert told(gateway, "clients", "add", "lamp", "--json")["name"] == "lamp"
    assert "lamp" in [one["name"] for one in told(gateway, "clients", "list", "--json")["clients"]]
    assert told(gateway, "clients", "code", "bulb", "--json")["code"]
    assert told(gateway, "keys", "rotate", "--json")["kid"]


def test_rules_are_tried_and_checked_at_another_gateway(gateway: SecureGateway, tmp_path: Path) -> None:
    rule = {"stream": {"topic": "z/+", "payload": "number", "property": "gateway:temperature", "unit": "furlong"}}
    text = json.dumps(json.dumps(rule))
    kind = "http://lamplighter.example/ns/gateway#"
    told(
        gateway,
        *("update", f"INSERT DATA {{ <urn:mapping> a <{kind}Mapping> ; <{kind}rule> {text} }}", "--json"),
    )
    found = told(gateway, "mapping", "test", "z/hall", "21.5", "--json")
    [trial] = found["rules"]
    assert trial["about"] == "topic z/+" and trial["made"][0]["triples"]
    assert told(gateway, "mapping", "test", "a/b", "1", "--json", code=1)["problem"] == "no rule covers the topic a/b"
    (tmp_path / "new.toml").write_text('[[stream]]\ntopic = "a/b"\npayload = "number"\nproperty = "gateway:load"\n')
    [trial] = told(gateway, "mapping", "test", "a/b", "1", "--rules", tmp_path / "new.toml", "--json")["rules"]
    assert trial["about"] == "topic a/b"
    checked = told(gateway, "mapping", "check", "--json")
    assert (checked["in_files"], checked["in_dataset"], checked["faults"]) == (0, 1, [])
    [unit] = checked["unknown_units"]
    assert "'furlong' is kept as text" in unit
    told(gateway, "update", "DELETE WHERE { <urn:mapping> ?p ?o }", "--json")


def test_rules_of_a_gateway_that_does_not_answer_are_not_replaced_by_these(tmp_path: Path) -> None:
    for name in (("test", "a", "1"), ("check",)):
        done = command("mapping", *name, "--url", "http://127.0.0.1:9", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (3, ""), done


def test_commands_that_print_lines_of_json(gateway: SecureGateway) -> None:
    there = ("--url", f"https://localhost:{gateway.port}", "--ca", gateway.authority)
    for name in (("devices", "list"), ("devices", "problems"), ("readings",)):
        done = command(*name, "--json", *there, "--token", gateway.folder / "token", cwd=gateway.folder.parent)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name


def test_a_gateway_elsewhere_that_does_not_answer_is_not_replaced_by_this_one(tmp_path: Path) -> None:
    done = command("backup", tmp_path / "b.zst", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 3 and not (tmp_path / "b.zst").exists(), done


def test_what_verify_and_log_restore_did_is_json(gateway: SecureGateway, tmp_path: Path) -> None:
    done = command("verify", "--json", "--config", gateway.toml)
    found = json.loads(done.stdout)
    assert (done.returncode, found["problems"], found["damage"]) == (0, [], [])
    assert "accepted" not in found
    told(gateway, "update", "INSERT DATA { <urn:s> <urn:p> 1 }", "--json")
    file = tmp_path / "past.nq"
    done = command("log", "restore", "--at", "1", "-o", file, "--json", "--config", gateway.toml)
    written = json.loads(done.stdout)
    assert (written["wrote"], written["quads"]) == (str(file), len(file.read_text().splitlines()))


@pytest.mark.parametrize(("option", "others"), [("--url", NO_GATEWAY), ("--json", NO_JSON)])
def test_each_command_has_the_option_or_is_named_here(option: str, others: set[tuple[str, ...]]) -> None:
    without = []
    for one in tree(command_parser()).all():
        words = one.words[1:]
        if words and not one.subcommands and words[:1] not in others and words not in others:
            strings = [string for action in one.options for string in action.option_strings]
            without += [] if option in strings else [one.name]
    assert without == []
