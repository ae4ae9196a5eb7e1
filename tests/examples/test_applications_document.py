"""docs/applications.md says what is so: its files are loaded, and its commands run against a gateway."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lamplighter.gateway.state.applications import load_applications
from lamplighter.gateway.templates.catalogue import TEMPLATES
from tests.support.commands import command
from tests.support.gateway_parts import FakeClock, recovered_runner, update
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "applications.md").read_text()
FILE, *EXCERPTS = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", DOCUMENT, re.S)]
INIT, FIRST, MISTAKES, TRY = re.findall(r"```console\n(.*?)```", DOCUMENT, re.S)
HOME = "/home/you/lamplighter"


def steps(console: str) -> list[tuple[list[str], str]]:
    """The arguments of each command of `lamplighter`, and what the document shows below it."""
    found = []
    for part in console.split("$ lamplighter ")[1:]:
        line, _, output = part.partition("\n")
        found.append((shlex.split(line), output))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "apps").mkdir()
    # Not the default ports: `check` names one that a test beside this one uses.
    (tmp_path / "lamplighter.toml").write_text("[http]\nport = 0\n[websocket]\nport = 0\n")
    return tmp_path


def here(folder: Path, *arguments: str) -> tuple[str, str]:
    """What a command prints in a folder, with the document's name for the folder."""
    done = command(*arguments, cwd=folder)
    return done.stdout.replace(str(folder), HOME), done.stderr.replace(str(folder), HOME)


def test_template_prints_what_the_document_shows_and_its_parts_are_explained(folder: Path) -> None:
    [(arguments, output)] = steps(INIT)
    assert here(folder, *arguments) == (output, "")
    written = json.loads((folder / "apps" / "motion-light.jsap").read_text())
    aggregators = written["extended"]["lamplighter"]["aggregators"]
    parts = {**written["queries"], **written["updates"], **aggregators}
    explained: dict[str, Any] = dict(itertools.chain.from_iterable(excerpt.items() for excerpt in EXCERPTS))
    assert explained == parts


async def test_try_prints_what_the_document_shows(folder: Path) -> None:
    """But for the numbers."""
    [(arguments, output)] = steps(INIT)
    here(folder, *arguments)
    clock = FakeClock()
    async with recovered_runner(folder / "data", clock) as runner:
        await update(runner, "INSERT DATA { <urn:house> a <urn:House> }")
        for seconds, value in ((1, "true"), (5, "false"), (5, "true"), (5, "false"), (60, "true")):
            clock.advance(seconds)
            await update(
                runner,
                "PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX g: <http://lamplighter.example/ns/gateway#> "
                "DELETE { <urn:r> sosa:hasSimpleResult ?before } INSERT { <urn:r> sosa:hasSimpleResult "
                f"{value} ; sosa:observedProperty g:motion ; sosa:hasFeatureOfInterest "
                "<http://lamplighter.local/area/Hall> } WHERE { OPTIONAL { <urn:r> sosa:hasSimpleResult ?before } }",
            )
    [(arguments, output)] = steps(TRY)
    shown, _ = here(folder, *arguments[:-1], "1")
    kinds = {re.sub(r"\d+", "0", line) for line in output.splitlines()}
    assert kinds <= {re.sub(r"\d+", "0", line) for line in shown.splitlines()}


def test_each_template_and_its_defaults_are_in_the_table() -> None:
    for name, template in TEMPLATES.items():
        [row] = re.findall(rf"^\| `{name}` \| (.*) \|$", DOCUMENT, re.M)
        if template.delay is not None:
            amount, unit = re.fullmatch(r"PT(\d+)([SM])", template.delay[1]).groups()  # type: ignore[union-attr]
            assert f"(`--{template.delay[0]}`, {amount} {'s' if unit == 'S' else 'min'})" in row
        if template.span is not None:
            assert f"`--from` ({template.span.begins})" in row
            assert f"`--until` ({template.span.ends})" in row
        for state, number in template.states.items():
            assert f"`--{state}` ({number})" in row


def test_first_application_does_what_the_document_shows(folder: Path) -> None:
    (folder / "apps" / "windows.jsap").write_text(json.dumps(FILE))
    (checked, output), (run, ready), *following = steps(FIRST)
    assert here(folder, *checked) == (output, "")
    assert (run, ready) == (["run"], "Lamplighter is ready, with 0 records from data\n")
    with GatewayProcess(folder):
        for arguments, shown in following:
            assert here(folder, *arguments) == (shown, "")
        [record] = re.findall(r"```\n1/3 .*?(commit .*\n.*\n)```", DOCUMENT)
        assert record in here(folder, "log", "show", "--last", "3")[0].replace(" (clock not synchronised)", "")
        *_, example = re.findall(r"`lamplighter (update --jsap [^`]*)`", DOCUMENT)
        assert here(folder, *shlex.split(example))[0] == "record 6\n"


def test_mistakes_are_reported_as_the_document_shows(folder: Path) -> None:
    (folder / "apps" / "lamp.jsap").write_text(
        """{
  "queries": {
    "Q": {"sparql": "SELECT ?light WHERE { ?light <http://example.org/p> 1 }"}
  },
  "updates": {
    "OFF": {"sparql": "CLEAR ALL", "dealy": "PT30S"},
    "ON": {"sparql": "DELETE WHERE { ?lamp ?p ?o }", "forcedBindings": {"lamp": {"type": "uri", "value": ""}}}
  },
  "extended": {"lamplighter": {
    "aggregators": {
      "a": {"query": "Q", "added": "ON"}
}}}}
"""
    )
    [(arguments, output)] = steps(MISTAKES)
    assert here(folder, *arguments) == ("", output)


def test_each_kind_of_forced_binding_is_a_declaration(folder: Path) -> None:
    [table] = re.findall(r"^## Forced bindings\n(.*?)^## ", DOCUMENT, re.M | re.S)
    declared = [json.loads(text) for text in re.findall(r"^\| `(\{.*?\})` \|", table, re.M)]
    assert len(declared) == 5
    bindings = {f"x{number}": one for number, one in enumerate(declared)}
    (folder / "apps" / "a.jsap").write_text(
        json.dumps({"namespaces": {"ex": "http://e/"}, "updates": {"U": {"sparql": "", "forcedBindings": bindings}}})
    )
    [application] = load_applications(folder / "apps")
    given = {"x0": "<http://e/x>", "x1": '"v"'}
    application.profile.update_text("U", given)
