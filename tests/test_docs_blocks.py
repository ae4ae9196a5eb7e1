"""Each block of each document is read by the program that it is for, so no command or file in them is out of date.

The tests that `EXECUTED` names run blocks. This module reads all of them, also those that no test machine can run:
command lines by the parser of the command, settings by the gateway, rules by the adapters, texts by the SPARQL engine.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from benchmarks.sub_engine import PARTS
from lamplighter.adapters.mapping import load_mapping
from lamplighter.cloud_sync.fleet.__main__ import parser as fleet_parser
from lamplighter.cloud_sync.fleet.package import ARCHIVE, SCRIPT
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import jsap
from lamplighter.engine.shacl.reading import read_shapes
from lamplighter.engine.sparql.requests import parse_query, parse_update
from lamplighter.engine.updating.documents import opened, quads_of
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.settings import Settings
from tests.support.places import ROOT
from tests.support.plain_yaml import read_yaml
from tests.support.tables import each_row

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("[a-z]*/README.md")])

EXECUTED = {
    "README.md": ("tests/test_docs.py", "tests/trials/test_operator.py"),
    "docs/applications.md": ("tests/examples/test_applications_document.py", "tests/trials/test_tinkerer.py"),
    "docs/change-log.md": ("tests/trials/test_operator.py", "tests/trials/test_researcher.py"),
    "docs/change-feed.md": ("tests/examples/test_changes_document.py",),
    "docs/python-client.md": ("tests/examples/test_client_document.py",),
    "docs/concepts.md": ("tests/examples/test_concepts_document.py",),
    "docs/coap-devices.md": (
        "tests/e2e/test_coap_lamp.py",
        "tests/e2e/test_coap_sensor.py",
        "tests/e2e/test_coap_discovery.py",
        "tests/trials/test_integrator.py",
    ),
    "docs/http-modbus-devices.md": ("tests/e2e/test_modbus_device.py", "tests/docs/test_device_pages.py"),
    "docs/mapping.md": ("tests/docs/test_mapping_reference.py",),
    "docs/mqtt-devices.md": (
        "tests/test_docs.py",
        "tests/trials/test_integrator.py",
        "tests/trials/test_tinkerer.py",
        "tests/e2e/test_recipes.py",
    ),
    "docs/first-steps.md": ("tests/test_docs.py",),
    "docs/fleet-subscriptions.md": ("tests/cloud_sync/fleet/subscriptions/test_commands.py",),
    "docs/fleet.md": (
        "tests/cloud_sync/fleet/local/test_one_machine_document.py",
        "tests/cloud_sync/fleet/test_cluster.py",
        "tests/trials/test_researcher.py",
    ),
    "docs/fleet-tables.md": ("tests/cloud_sync/fleet/tables/test_tables.py", "tests/trials/test_researcher.py"),
    "docs/home.md": ("tests/trials/test_new_house.py",),
    "docs/inference-shapes.md": ("tests/examples/test_inference_document.py", "tests/examples/test_shacl_document.py"),
    "docs/choose-interface.md": ("tests/examples/test_interfaces_document.py", "tests/e2e/test_browsers.py"),
    "docs/library.md": ("tests/examples/test_library_document.py",),
    "docs/query-classes.md": ("tests/examples/test_query_classes_document.py",),
    "docs/language-models.md": ("tests/examples/test_mcp_document.py",),
    "docs/mqtt-tls.md": ("tests/e2e/test_mqtt_tls_document.py",),
    "docs/ngsi-ld.md": ("tests/examples/test_ngsild_document.py",),
    "docs/install-upgrade.md": ("tests/systemd/test_units.py",),
    "docs/monitor.md": (
        "tests/docs/test_scrape_settings.py",
        "tests/systemd/test_units.py",
        "tests/trials/test_operator.py",
    ),
    "docs/backup-restore.md": ("tests/trials/test_operator.py",),
    "docs/grafana.md": ("tests/examples/test_sensorthings_document.py",),
    "docs/secure.md": (
        "tests/whole_gateway/security/test_security_document.py",
        "tests/trials/test_operator.py",
    ),
    "docs/sensorthings.md": ("tests/examples/test_sensorthings_document.py",),
    "docs/sepa.md": ("tests/clients/test_sepa_document.py", "tests/trials/test_sepa_developer.py"),
    "docs/time.md": ("tests/examples/test_time_document.py",),
    "docs/webhooks-ldn.md": ("tests/examples/test_webhooks_document.py",),
    "docs/ship.md": ("tests/trials/test_researcher.py",),
    "docs/wot.md": ("tests/whole_gateway/gates/wot/test_wot_document.py",),
}
"""document -> the tests that run blocks of it."""

ONLY_READ = {
    "CONTRIBUTING.md": "targets of make",
    "docs/appliance.md": "commands on an appliance, which tests/image gives in its own words",
    "docs/protocol.md": "requests that other tests send in their own words",
    "docs/reproduce.md": "targets of make",
    "docs/troubleshoot.md": "commands that the tests of each command give in their own words",
}
"""document with blocks that only this module reads -> what they are."""

OTHER_PROGRAMS = {
    "apt": "installs the package",
    "cat": "shows a file",
    "coap-client-notls": "run in tests/trials and tests/e2e",
    "curl": "run in tests/test_docs.py and by the tests of secure.md and change-feed.md; the paths are checked here",
    "install": "run in tests/e2e/test_recipes.py; makes files for the broker",
    "journalctl": "needs systemd",
    "mkdir": "makes a folder",
    "mosquitto_passwd": "run in tests/e2e/test_recipes.py",
    "mosquitto_pub": "run in tests/trials and tests/e2e",
    "mosquitto_sub": "run in tests/trials and tests/e2e",
    "mount": "needs the image",
    "openssl": "run by the tests of secure.md",
    "pip": "needs the network",
    "rm": "removes a file",
    "scp": "needs the image",
    "spark-submit": "run in tests/cloud_sync/fleet/test_cluster.py; files and arguments are checked here",
    "systemctl": "needs systemd",
    "tar": "packs files",
    "touch": "makes a file",
    "websockets": "the messages are sent in tests/test_docs.py",
}
"""program of a documented command that is not of the project -> how it is tested, or why not."""


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    text: str
    """Without the indentation of a list."""

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(document: Path) -> Iterator[Block]:
    text = document.read_text()
    for found in re.finditer(r"^( *)```([\w-]*)\n(.*?)^ *```$", text, re.M | re.S):
        indent, language, body = found.groups()
        yield Block(
            str(document.relative_to(ROOT)),
            text.count("\n", 0, found.start()) + 1,
            language,
            re.sub(rf"^{indent}", "", body, flags=re.M),
        )


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]


# --- command lines -----------------------------------------------------------------------------------------------


def command_lines(text: str) -> Iterator[str]:
    """The commands of a console block, with their further lines."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(("$ ", "# ")):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines)
            yield command


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without sudo, ssh and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if token in ("<", ">", ">>"):
            next(tokens)
        elif token in ("&&", "||", "|", ";", "&"):
            while words and (words[0] in ("sudo", "-u") or re.fullmatch(r"[A-Z_]+=.*", words[0])):
                words = words[2 if words[0] == "-u" else 1 :]
            if words[:1] == ["ssh"]:
                yield from simple_commands(words[2])
            elif words:
                yield words
            words = []
        else:
            words.append(token)


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    return {"lamplighter": command_parser(), "lamplighter-fleet": fleet_parser()}


@cache
def targets() -> frozenset[str]:
    """The targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))


@cache
def paths() -> frozenset[str]:
    """The first parts of the paths that the gateway answers."""
    code = "".join(path.read_text() for path in (ROOT / "gateway" / "gates").rglob("*.py"))
    return frozenset(re.findall(r'"/([\w.-]+)', code)) | {"query", "update", "v1.1"}


def check_command(words: list[str], place: str) -> None:
    """Fails for a command line that its program would refuse."""
    program, *arguments = words
    program = program.removeprefix(".venv/bin/").removeprefix("~/lamplighter-notebook/bin/")
    if program in parsers():
        try:
            options = parsers()[program].parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{place}: {shlex.join(words)}: the command refuses this line")
        check_sparql_argument(program, arguments[0], options, place)
    elif program == "make":
        named = [word for word in arguments if "=" not in word]
        assert set(named) <= targets(), f"{place}: make has no target {named}"
    elif program in ("python", "python3"):
        module = arguments[0] == "-m"
        assert module or (ROOT / arguments[0]).exists(), f"{place}: {arguments[0]} does not exist"
    else:
        assert program in OTHER_PROGRAMS, f"{place}: {program}: not a known program"
        if program == "spark-submit":
            check_spark_submit(arguments, place)
        if program == "curl":
            [url] = [word for word in arguments if re.match(r"https?://", word)]
            segments = re.sub(r"^https?://[^/]*/(?:secure/)?", "", url).partition("?")[0].split("/")
            local = "127.0.0.1" in url or "kitchen.local" in url
            documented = segments[0] in paths() or segments[0] == "room"  # a resource of devices.md
            assert not local or documented, f"{place}: {url}: the gateway has no such path"


def check_spark_submit(arguments: list[str], place: str) -> None:
    """Fails unless the line submits what `lamplighter-fleet package` writes, with arguments of a command."""
    options = iter(arguments)
    found: dict[str, str] = {}
    for word in options:
        if not word.startswith("--"):
            assert Path(word).name == SCRIPT, f"{place}: {word} is not {SCRIPT}"
            break
        found[word] = next(options)
    assert Path(found.get("--py-files", "")).name == ARCHIVE, f"{place}: --py-files has to name {ARCHIVE}"
    unknown = found.keys() - {"--py-files", "--master", "--conf", "--packages"}
    assert not unknown, f"{place}: options that no test uses: {unknown}"
    check_command(["lamplighter-fleet", *options], place)


def check_sparql_argument(program: str, mode: str, options: argparse.Namespace, place: str) -> None:
    """Fails for a query or update of a command line that the engine refuses."""
    text = getattr(options, "sparql", None)
    if program == "lamplighter" and isinstance(text, str) and "{" in text:
        check_sparql(text, place, update=mode == "update")


def check_sparql(text: str, place: str, *, update: bool | None = None) -> None:
    if update is None:
        update = re.search(r"^\s*(?:INSERT|DELETE|LOAD|CLEAR|CREATE|DROP|WITH)\b", text, re.M) is not None
    try:
        if update:
            parse_update(text)
        else:
            parse_query(text)
    except Exception as error:
        pytest.fail(f"{place}: {error}")


# --- files -------------------------------------------------------------------------------------------------------

RULES = {"stream", "command", "publish", "prefixes"}


def check_console(block: Block, folder: Path) -> None:
    lines = list(command_lines(block.text))
    assert lines, f"{block.place}: no line begins with `$ `"
    for line in lines:
        for words in simple_commands(line):
            check_command(words, block.place)


def check_toml(block: Block, folder: Path) -> None:
    """Settings are read by the gateway, rules by the adapters. The files of `options_file` name themselves."""
    tables = tomllib.loads(block.text)
    if block.text.startswith("# sync-options.toml"):
        return
    if set(tables) & RULES:
        (folder / "rules.toml").write_text(block.text)
        load_mapping(folder, "http://lamplighter.local/")  # raises ConfigurationError
    else:
        if "brokers" in tables.get("mqtt", {}):  # an excerpt: the first broker is named above it
            tables["mqtt"].setdefault("host", "127.0.0.1")
        try:
            msgspec.convert(tables, Settings)
        except msgspec.ValidationError as error:
            pytest.fail(f"{block.place}: {error}")


def check_json(block: Block, folder: Path) -> None:
    value = json.loads(block.text)
    if {"queries", "updates"} & set(value):
        jsap.parse(block.text.encode())


def check_python(block: Block, folder: Path) -> None:
    """The imports of `lamplighter` have to exist; the documents' own tests run the programs."""
    tree = compile(block.text, block.place, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lamplighter"):
            module = import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{block.place}: {node.module} has no {name.name}"


def check_sql(block: Block, folder: Path) -> None:
    """DuckDB reads queries of result files. Spark runs those of tables, in the test of the document."""
    if "FROM 'results/" in block.text:
        assert duckdb.extract_statements(block.text), block.place
    else:
        run_elsewhere(block, folder)


def check_yaml(block: Block, folder: Path) -> None:
    assert read_yaml(block.text), block.place


def check_output(block: Block, folder: Path) -> None:
    """Output of programs and drawings have no commands."""
    found = re.findall(r"^(?:\$ |lamplighter |lamplighter-fleet |make |sudo ).*$", block.text, re.M)
    assert not found, f"{block.place}: mark the block as `console`, each command with `$ `: {found[0]}"


def run_elsewhere(block: Block, folder: Path) -> None:
    """A language that no library here reads: the programs are run by a test of their document."""
    assert block.document in EXECUTED, f"{block.place}: no test runs this block"


def check_shapes(block: Block, folder: Path) -> None:
    """Fails for a document that is no Turtle, or whose shapes the engine refuses."""
    try:
        quads = quads_of(opened(block.text.encode(), "ttl", BYTES_MAX), None, None, BYTES_MAX, BYTES_MAX)
        read_shapes(quad[:3] for quad in quads)
    except GatewayError as error:
        pytest.fail(f"{block.place}: {error}")


BYTES_MAX = 1_000_000

READERS: dict[str, Callable[[Block, Path], None]] = {
    "console": check_console,
    "toml": check_toml,
    "json": check_json,
    "python": check_python,
    "sparql": lambda block, _: check_sparql(block.text, block.place),
    "sql": check_sql,
    "turtle": check_shapes,
    "yaml": check_yaml,
    "js": run_elsewhere,
    "conf": run_elsewhere,
    "text": check_output,
    "": check_output,
}
"""language of a block -> what reads it."""


@each_row("block", BLOCKS, ids=lambda block: f"{block.place}-{block.language}")
def test_block_is_read_by_its_program(block: Block, tmp_path: Path) -> None:
    assert block.language in READERS, f"{block.place}: no test reads {block.language!r} blocks"
    READERS[block.language](block, tmp_path)


MISTAKES = [
    ("console", "$ lamplighter statsu\n"),
    ("console", "$ sudo lamplighter status --jsno > state && ls\n"),
    ("console", "$ ssh root@gateway 'lamplighter backupp /x && systemctl reboot'\n"),
    ("console", "$ lamplighter query 'SELEKT * {}'\n"),
    ("console", "$ curl http://127.0.0.1:8000/heatlh\n"),
    ("console", "$ make tset\n"),
    ("console", "$ spark-submit --py-files lamplighter.zip fleet.py silver lake\n"),
    ("console", "$ spark-submit --py-files lamplighter.zip lamplighter_fleet.py slver lake\n"),
    ("console", "$ no-such-program\n"),
    ("toml", "[mqtt]\nhots = 'x'\n"),
    ("toml", "[[stream]]\ntopic = 'a'\nfoo = 1\n"),
    ("json", '{"queries": {"A": {"sparkl": "x"}}}'),
    ("python", "from lamplighter.engine import Enginee\n"),
    ("sparql", "SELECT ?x { ?x foaf:name ?b }"),
    ("sql", "SELEKT * FROM 'results/x.parquet'"),
    ("js", "console.log(1)"),
    ("turtle", "<x:a> <x:b> ."),
    ("", "lamplighter run\n"),
]
"""Blocks of a document that no test runs."""


@each_row(("language", "text"), MISTAKES)
def test_mistake_in_a_block_is_found(language: str, text: str, tmp_path: Path) -> None:
    with pytest.raises((pytest.fail.Exception, Exception)):
        READERS[language](Block("docs/none.md", 1, language, text), tmp_path)


def test_documents_with_commands_have_tests() -> None:
    outputs = {"text", ""}
    documents = {block.document for block in BLOCKS if block.language not in outputs}
    assert documents == EXECUTED.keys() | ONLY_READ.keys()
    for document, tests in EXECUTED.items():
        for test in tests:
            assert (ROOT / test).exists(), f"{document}: {test} does not exist"
            assert Path(document).name in (ROOT / test).read_text(), f"{test} does not read {document}"


def test_other_programs_are_in_a_document() -> None:
    """A program that no document names any more leaves the list."""
    text = "".join(block.text for block in BLOCKS if block.language == "console")
    assert [name for name in OTHER_PROGRAMS if not re.search(rf"\b{re.escape(name)}\b", text)] == []


# --- commands in sentences ---------------------------------------------------------------------------------------


def inline_commands(text: str) -> Iterator[str]:
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    for command in re.findall(
        r"`((?:sudo )?(?:\.venv/bin/)?(?:lamplighter|lamplighter-fleet|make|python -m) [^`]+)`", prose
    ):
        yield re.sub(r"\s+", " ", command)


def check_inline(command: str, place: str) -> None:
    """Fails for a subcommand or an option that does not exist. A sentence may leave arguments out."""
    program, *words = command.removeprefix("sudo ").removeprefix(".venv/bin/").replace("|", " | ").split()
    if program == "make":
        assert words[0] in targets() or words[0].isupper(), f"{place}: `{command}`: make has no such target"
        if words[0] == "bench":
            named = re.findall(r"[\w-]+", command.partition("ARGS=")[2])
            parts = {name for name in named if not name.startswith("-")}
            assert parts <= {*PARTS, "idle", "report"}, f"{place}: `{command}`: no such part of the benchmarks"
        return
    if program.endswith("python"):
        module = command.partition(" -m ")[2].split()[0]
        assert find_spec(module), f"{place}: `{command}`: no such module"
        return
    parser: argparse.ArgumentParser = parsers()[program]
    for word in words:
        modes: dict[str, Any] = {}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                modes = dict(action.choices)
        if word in modes:
            parser = modes[word]
        elif word.startswith("--"):
            name = word.partition("=")[0].rstrip(",.]")
            known = {string for action in parser._actions for string in action.option_strings}
            assert name in known, f"{place}: `{command}`: no such option: {name}"
        elif modes and re.fullmatch(r"[a-z-]+", word):
            pytest.fail(f"{place}: `{command}`: no such command: {word}")


@each_row("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_sentences_exist(document: Path) -> None:
    for command in inline_commands(document.read_text()):
        check_inline(command, str(document.relative_to(ROOT)))


def test_every_benchmark_is_explained_and_can_be_repeated() -> None:
    explained = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "benchmarks" / "README.md").read_text(), re.M))
    reproduce = (ROOT / "docs" / "reproduce.md").read_text()
    repeated = set(" ".join(re.findall(r'`make bench ARGS="([a-z -]+)"`', reproduce)).split())
    assert explained == repeated == {*PARTS, "idle"}


@each_row("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_in_sentences_exist(document: Path) -> None:
    """`table.key` of `lamplighter.toml`. `log.bytes` is a figure of `/health`; `sync.*` and `changes.key` are files."""
    settings = msgspec.to_builtins(Settings())
    settings["log"] |= {"bytes": None}
    settings["sync"] |= {"json": None, "lock": None}
    settings["changes"] |= {"key": None}
    for table, key in re.findall(r"`([a-z]+)\.([a-z_]+)(?: = [^`]*)?`", document.read_text()):
        if table in settings and not (ROOT / "engine" / table).exists() and not (ROOT / table / key).exists():
            assert key in settings[table], f"{document.relative_to(ROOT)}: `{table}.{key}`: no such setting"
