"""What the documents say is true: README's commands and the documented settings."""

import ast
import asyncio
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import connect

from lamplighter.adapters.mapping import StreamTable, load_mapping
from lamplighter.adapters.mapping.command_payloads import command_payload
from lamplighter.adapters.mapping.tables import (
    CommandTable,
    PathTable,
    PublishTable,
    ResourceCommandTable,
    ResourceTable,
)
from lamplighter.adapters.specs import ADAPTERS
from lamplighter.engine.terms import XSD, literal
from lamplighter.gateway.settings import Settings
from lamplighter.ontology.vocabulary import DESIRED_STATE
from tests.docs.metrics_reference import metrics, name_of
from tests.support.brokers import free_port
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.running_gateway import running_gateway
from tests.support.sources import modules, source

README = (ROOT / "README.md").read_text()
PROTOCOLS = tuple(f"adapters/{spec.parts.split('.')[2]}" for spec in ADAPTERS)
"""Folders of adapters; adapters/specs.py names them."""
FIRST_STEPS = (ROOT / "docs" / "first-steps.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("adapters", "cloud_sync", "demo", "engine", "gateway", "ontology")


def test_documented_settings_are_the_defaults() -> None:
    documented = tomllib.loads((ROOT / "lamplighter.toml").read_text())
    assert msgspec.convert(documented, Settings) == Settings()
    defaults = msgspec.to_builtins(Settings())
    del defaults["coap"]["query"]  # the default is in the module's documentation
    del defaults["coap"]["plain"]  # None: it depends on security.enabled; a comment describes it
    del defaults["coap"]["devices"]  # as brokers
    del defaults["http_devices"]["devices"]
    for key in ("host", "echo"):  # as plain
        del defaults["coap"]["server"][key]
    del defaults["mqtt"]["brokers"]  # a comment describes its tables, for `brokers = {}` would forbid them
    assert {table: set(keys) for table, keys in documented.items()} == {
        table: set(keys) for table, keys in defaults.items()
    }
    assert documented["coap"]["server"] == defaults["coap"]["server"]


def shown(document: str, command: str) -> list[str]:
    """What a document shows below a command."""
    _, _, below = document.partition(f"$ {command}\n")
    assert below, command
    return list(itertools.takewhile(lambda line: not line.startswith(("$ ", "```")), below.splitlines()))


def commands(document: str, program: str) -> list[str]:
    """The commands that a document shows of a program."""
    return re.findall(rf"^\$ ({re.escape(program)} .*)$", document, re.M)


def run(command: str, http_port: str) -> str:
    words = shlex.split(command.replace("8000", http_port))
    words[0] = require_command(words[0])
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def shape(value: Any) -> Any:
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        varying = ("delayed", "spuid", "sequence")
        return {key: "..." if key in varying else shape(member) for key, member in value.items()}
    return [shape(member) for member in value] if isinstance(value, list) else value


LAMPLIGHTER = ".venv/bin/lamplighter"


@asynccontextmanager
async def running(command: str, folder: Path) -> AsyncIterator[asyncio.StreamReader]:
    """The output of a command of `lamplighter` that a document shows, which runs in a folder until left."""
    program, *arguments = shlex.split(command)
    assert program == LAMPLIGHTER
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "lamplighter.gateway",
        *arguments,
        stdout=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout
    try:
        yield process.stdout
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def lines(output: asyncio.StreamReader, count: int) -> list[str]:
    return [(await asyncio.wait_for(output.readline(), 120)).decode().rstrip("\n") for _ in range(count)]


async def test_readme_shows_what_its_commands_print(tmp_path: Path) -> None:
    ports = {"8000": str(free_port()), "9000": str(free_port())}
    shutil.copytree(ROOT / "apps", tmp_path / "apps")
    (tmp_path / "lamplighter.toml").write_text(f"[http]\nport = {ports['8000']}\n[websocket]\nport = {ports['9000']}\n")
    [subscribe], updates = commands(README, f"{LAMPLIGHTER} subscribe"), commands(README, f"{LAMPLIGHTER} update")
    assert len(updates) == 2
    [told] = re.findall(r"```\n((?:[+-] .*\n)+)```", README)

    async with running(f"{LAMPLIGHTER} run", tmp_path) as gateway:
        wanted = shown(README, f"{LAMPLIGHTER} run")
        for documented, used in ports.items():
            wanted = [line.replace(f":{documented}/", f":{used}/") for line in wanted]
        assert await lines(gateway, len(wanted)) == wanted
        async with running(subscribe, tmp_path) as subscriber:
            assert await lines(subscriber, 1) == shown(README, subscribe)
            for update in updates:
                async with running(update, tmp_path) as output:
                    assert await lines(output, 1) == shown(README, update)
            assert await lines(subscriber, 3) == told.splitlines()


async def test_first_steps_show_what_the_gateway_answers(tmp_path: Path) -> None:
    calls = commands(FIRST_STEPS, "curl")
    assert len(calls) == 3
    [sent] = re.findall(r"^> (\{.*)$", FIRST_STEPS, re.M)
    [first] = re.findall(r"^< (\{.*)$", FIRST_STEPS, re.M)

    async with running_gateway(tmp_path) as addresses:
        port = addresses.query.split(":")[2].partition("/")[0]
        async with connect(addresses.subscribe) as socket:
            await socket.send(sent)
            told = json.loads(await socket.recv())
            assert shape(told) == shape(json.loads(first))
            assert told["notification"]["sequence"] == 0
            for call in calls:
                [output] = shown(FIRST_STEPS, call)
                assert shape(json.loads(await asyncio.to_thread(run, call, port))) == shape(json.loads(output))
            notification = json.loads(await asyncio.wait_for(socket.recv(), 120))["notification"]
            assert notification["sequence"] == 1
            assert len(notification["addedResults"]["results"]["bindings"]) == 1
            late = json.loads(await asyncio.wait_for(socket.recv(), 120))["notification"]
            assert late["sequence"] == 2


def test_python_example_compiles_and_names_what_exists() -> None:
    [example] = re.findall(r"```python\n(.*?)```", FIRST_STEPS, re.S)
    body = example.replace("asyncio.run(main())", "")
    names: dict[str, Any] = {}
    exec(compile(body, "first-steps.md", "exec"), names)
    assert asyncio.iscoroutinefunction(names["main"])


DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(
        path
        for folder in ROOT.glob("[a-z]*")
        if folder.name != "build"
        for path in folder.rglob("*.md")
        if "node_modules" not in path.parts
    ),
]
"""Every document of the repository."""


def prose(document: Path) -> str:
    """A document without its blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.M | re.S)


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them; equal headings are numbered."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(document), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
        numbered = (f"{anchor}-{number}" for number in itertools.count(1))
        found.add(anchor if anchor not in found else next(name for name in numbered if name not in found))
    return found


def links(document: Path) -> set[str]:
    """The targets of links and pictures, in Markdown and in HTML."""
    text = re.sub(r"`[^`\n]*`", "", prose(document))
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(document)) + re.findall(r"^\[[^\]]+\]: +(\S+)", text, re.M)
    return {*targets, *re.findall(r"\b(?:href|src|srcset)=\"([^\" ]+)", text)}


def broken_links(document: Path) -> list[str]:
    found = []
    for target in sorted(links(document)):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", path):
            continue
        place = (document.parent / path).resolve() if path else document
        inside = not path or (place.is_relative_to(ROOT) and place.relative_to(ROOT).parts[:1] != ("build",))
        if not inside or not place.exists() or (anchor and (place.suffix != ".md" or anchor not in anchors(place))):
            found.append(f"{document.name}: {target}")
    return found


def test_links_lead_somewhere() -> None:
    assert len(DOCUMENTS) > 30
    assert [link for document in DOCUMENTS for link in broken_links(document)] == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text('# One\n# One\n[](#one) [](#one-1) [](#two) [x](none.md)\n<img src="no.png">\n[y]: none.txt\n')
    assert anchors(document) == {"one", "one-1"}
    assert broken_links(document) == [f"a.md: {target}" for target in ("#two", "no.png", "none.md", "none.txt")]


def test_pictures_are_shown_and_small() -> None:
    pictures = set((ROOT / "docs" / "images").iterdir())
    shown = {(document.parent / link).resolve() for document in DOCUMENTS for link in links(document)}
    assert pictures and pictures <= shown
    assert sum(picture.stat().st_size for picture in pictures) < 1_500_000


def test_index_has_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page != index} <= linked


def test_modules_that_architecture_names_are_there() -> None:
    for document in (ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")):
        text = document.read_text()
        for name in set(re.findall(rf"`((?:{'|'.join(PACKAGES)}|tests|apps|benchmarks)/[\w./-]+\.\w+)`", text)):
            # Files that the reader makes.
            readers = document.name in (
                "applications.md",
                "language-models.md",
            ) and name.startswith("apps/")
            assert readers or (ROOT / name).exists(), f"{document.name}: {name}"


def test_contributing_names_the_packages_of_the_components() -> None:
    script = (ROOT / "tests" / "install-components.sh").read_text()
    packages = set(re.findall(r'missing="\$missing ([\w-]+)"', script))
    assert len(packages) > 10
    assert packages <= set(re.findall(r"[\w-]+", (ROOT / "CONTRIBUTING.md").read_text()))


def test_metrics_that_pages_name_are_there() -> None:
    exported = {name_of(metric) for metric in metrics()}
    for page in ("monitor.md", "ship.md", "protocol.md"):
        named = re.findall(r"`(lamplighter_\w+[a-z])\b", (ROOT / "docs" / page).read_text())
        assert set(named) <= exported, page
    assert "lamplighter_broker_connected" in (ROOT / "docs" / "monitor.md").read_text()


def test_mapping_of_devices_adds_to_that_of_the_street(tmp_path: Path) -> None:
    [rule] = re.findall(r"( +\[\[stream\]\]\n.*?)```", (ROOT / "docs" / "mqtt-devices.md").read_text(), re.S)
    shutil.copy(ROOT / "mapping" / "street.toml", tmp_path)
    street = load_mapping(tmp_path, "http://lamplighter.local/")
    (tmp_path / "home.toml").write_text(rule)
    both = load_mapping(tmp_path, "http://lamplighter.local/")
    assert set(both.filters) - set(street.filters) == {"home/+/temperature"}


def test_mapping_rules_in_documents_are_good(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(\[\[stream\]\]\n.*?)```", (ROOT / "docs" / "mqtt-devices.md").read_text(), re.S)
    assert blocks
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.toml").write_text(block)
    assert load_mapping(tmp_path, "http://lamplighter.local/").rules


def test_lamp_of_the_documents_is_switched_as_they_say(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "mqtt-devices.md").read_text()
    [rule] = re.findall(r"( +\[\[command\]\]\n.*?)```", text, re.S)
    (tmp_path / "lamp.toml").write_text(rule)
    [command] = load_mapping(tmp_path, "http://lamplighter.local/").commands
    assert f"<{command.actuator}> <{DESIRED_STATE}> true" in text
    payload = command_payload(command, literal("true", datatype=XSD + "boolean")).decode()
    assert f"`{command.table.topic} {payload}`" in text


def test_commented_rule_of_the_street_is_good(tmp_path: Path) -> None:
    lines = (ROOT / "mapping" / "street.toml").read_text().splitlines()
    (tmp_path / "commented.toml").write_text(
        "\n".join(line[6:] for line in lines if line.startswith("#     ") and "  " not in line[6:])
    )
    mapping = load_mapping(tmp_path, "http://lamplighter.local/")
    [rule] = mapping.rules
    assert [read.name for read in rule.reads] == ["temperature", "occupancy"]
    assert [publish.table.topic for publish in mapping.publishes] == ["temperatures/{post}"]


def test_every_key_of_a_rule_is_explained() -> None:
    page = (ROOT / "docs" / "mapping.md").read_text()
    for table in (StreamTable, ResourceTable, PathTable, CommandTable, ResourceCommandTable, PublishTable):
        for key in table.__struct_fields__:
            assert re.search(rf"^\|`{key}`", page, re.M), key


def test_docstring_of_a_folder_names_its_files() -> None:
    found = {}
    for package in PACKAGES:
        for init in (ROOT / package).rglob("__init__.py"):
            folder = init.parent
            named = set(re.findall(r"\w+", ast.get_docstring(ast.parse(init.read_text())) or ""))
            files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
            packages = {path.parent.name for path in folder.glob("*/__init__.py")}
            if folder.name == "adapters":  # specs names its protocols
                packages -= {path.partition("/")[2] for path in PROTOCOLS}
            missing = (files | packages) - named
            if missing:
                found[str(init.relative_to(ROOT))] = sorted(missing)
    assert not found, f"these docstrings do not name these modules: {found}"


def test_architecture_is_short() -> None:
    assert len(ARCHITECTURE.split()) <= 2_500


def class_members() -> set[str]:
    """`Class.member` of every class of ours, attributes that are declared in the class included."""
    return {
        f"{definition.name.rpartition('.')[2]}.{member}"
        for package in PACKAGES
        for path in modules(package)
        for definition in source(path).definitions
        for member in definition.members
    }


def test_members_that_documents_name_are_there() -> None:
    members = class_members()
    for document in (
        ROOT / "ARCHITECTURE.md",
        ROOT / "docs" / "internals" / "engine.md",
        ROOT / "docs" / "internals" / "decisions.md",
    ):
        missing = set(re.findall(r"`(_?[A-Z]\w+\.[a-z_]\w+)`", document.read_text())) - members
        assert not missing, f"{document.name} names what is not there: {sorted(missing)}"


def test_folders_of_the_code_have_a_row_in_architecture() -> None:
    [rooms] = re.findall(r"^## Rooms$(.*?)^## ", ARCHITECTURE, re.M | re.S)
    named = set(re.findall(r"`([a-z_/]+)/`", rooms))
    for name in named:
        assert (ROOT / name).is_dir(), name
    for package in ("adapters", "cloud_sync", "engine", "gateway"):
        for init in (ROOT / package).glob("*/**/__init__.py"):
            folder = str(init.parent.relative_to(ROOT))
            assert folder in named or folder.rpartition("/")[0] in named or folder.startswith(PROTOCOLS), folder


def test_citation_names_the_version_and_the_papers() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
    dois = set(re.findall(r"doi: (\S+)", citation))
    assert len(dois) == 3
    assert dois == set(
        re.findall(r"https://doi\.org/([^)\s]+)", (ROOT / "docs" / "internals" / "papers-to-code.md").read_text())
    )
