"""`lamplighter query`, `update`, `subscribe` and `register` as a user meets them, at a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from lamplighter.gateway.addresses import Addresses
from tests.support.commands import command as lamplighter
from tests.support.fork_server import ForkedProcess
from tests.support.places import ROOT
from tests.support.profiles import settings
from tests.support.running_gateway import TIMEOUT_S, running_gateway, update

HOSTILE = "INSERT DATA { <http://a> <http://p> 'x\x1b[31m\t'@en, 3 . <http://b> <http://p> 'ვაიმეე' }"
ALL = "SELECT ?s ?o { ?s <http://p> ?o } ORDER BY ?s ?o"
SHOWN = """\
s         o
--------  --------------------
http://a  3
http://a  x\\u001B[31m\\u0009@en
http://b  ვაიმეე
(3 rows)
"""


async def command(*arguments: object, stdin: str = "", code: int = 0) -> str:
    """What the command prints: its output, or its errors where it is to fail with that code."""
    done = await asyncio.to_thread(lamplighter, *arguments, input=stdin)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stdout == ""
        assert done.stderr.startswith("lamplighter: ")
        return done.stderr
    assert done.stderr == ""
    return done.stdout


def base(at: Addresses) -> str:
    return at.query.removesuffix("/query")


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Addresses]:
    async with running_gateway(folder, query={"concurrent_max": 32}) as at:  # commands side by side
        assert (await update(at, HOSTILE)).status == 200
        yield at


async def test_a_past_dataset_is_queried(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        for number in (1, 2, 3):
            assert (await update(at, f"INSERT DATA {{ <http://a> <http://p> {number} }}")).status == 200
        asked = ("query", "--url", base(at), "--format", "csv", "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }", "--at")
        for format_, output in (("csv", "n\n2\n"), ("table", "n\n-\n2\n(1 row)\n")):
            done = await asyncio.to_thread(lamplighter, *asked, "2", "--format", format_)
            assert (done.returncode, done.stdout.replace("\r", "")) == (0, output)
            assert done.stderr.startswith("lamplighter: dataset as of record 1/2 20")
        assert "the log has 1/1 to 1/3" in await command(*asked, "9", code=4)


async def test_results_come_in_each_format(tmp_path: Path) -> None:
    async with filled(tmp_path) as at:
        url = ("--url", base(at))
        (tmp_path / "all.rq").write_text(ALL)
        table, shown, csv, tsv, turtle = await asyncio.gather(
            command("query", *url, "--format", "table", ALL),
            command("query", *url, tmp_path / "all.rq"),
            command("query", *url, "--format", "csv", "-", stdin="SELECT (COUNT(*) AS ?n) { ?s ?p ?o }"),
            command("query", *url, "--format", "tsv", "SELECT ?o { <http://b> ?p ?o }"),
            command("query", *url, "--format", "turtle", "CONSTRUCT WHERE { <http://b> ?p ?o }"),
        )
        assert table == SHOWN
        assert [row["s"]["value"] for row in json.loads(shown)["results"]["bindings"]] == ["http://a"] * 2 + [
            "http://b"
        ]
        assert (csv.split(), tsv.split()) == (["n", "3"], ["?o", '"ვაიმეე"'])
        assert turtle == '<http://b> <http://p> "ვაიმეე" .\n'
        yes, graph, later, kept = await asyncio.gather(
            command("query", *url, "--format", "table", "ASK { <http://b> ?p ?o }"),
            command("query", *url, "--format", "table", "CONSTRUCT WHERE { <http://a> ?p ?o }"),
            command("update", *url, "--delay", "PT1H", "CLEAR ALL"),
            command("query", *url, "--default-graph", "http://none", "--format", "csv", ALL),
        )
        assert yes == "yes\n"
        assert "\x1b" not in graph
        assert later.startswith("delayed update ") and later.endswith(" is stored\n")
        assert kept.split() == ["s,o"]


async def test_errors_are_one_readable_line(tmp_path: Path) -> None:
    async with filled(tmp_path) as at:
        url = ("--url", base(at))
        (tmp_path / "a.jsap").write_text('{"queries": {"Q": {"sparql": "ASK {}"}}}')
        (tmp_path / "bytes.rq").write_bytes(b"\xff")
        jsap = ("--jsap", tmp_path / "a.jsap")
        wrong = [
            (("query", *url, "SELECT * {"), 4, "line 1, column"),
            (("update", *url, "oops"), 4, "SPARQL11ProtocolException"),
            (("query", *url, "--format", "turtle", ALL), 4, "not_acceptable"),
            (("subscribe", "--url", at.subscribe, "DESCRIBE <http://x>"), 4, "SELECT"),
            (("query", "--url", "http://127.0.0.1:1", ALL), 3, "no answer from http://127.0.0.1:1/query"),
            (("query", "--url", "gopher://h", ALL), 2, "--url: 'gopher://h' is not an address"),
            (("query", *url, "--bind", "a=b", ALL), 2, "name it with --jsap"),
            (("query", *url, *jsap, "--bind", "a", "Q"), 2, "write name=value"),
            (("query", *url, *jsap, "NONE"), 4, "queries has no 'NONE'"),
            (("query", *url, "--client", tmp_path / "none", ALL), 2, "register"),
            (("query", *url, "--token", tmp_path / "none", ALL), 2, "--token"),
            (("query", *url, tmp_path / "bytes.rq"), 2, "SPARQL text"),
            (("query", *url, tmp_path / "gone.rq"), 2, "is neither an existing file"),
        ]
        told = await asyncio.gather(*(command(*arguments, code=code) for arguments, code, _ in wrong))
        for errors, (_, _, expected) in zip(told, wrong, strict=True):
            assert expected in errors
            assert errors.count("\n") == 1


async def test_a_profile_gives_texts_and_addresses(tmp_path: Path) -> None:
    document = {
        "host": "nowhere.invalid",
        "queries": {
            "OF": {"sparql": "SELECT ?s ?o { ?s <http://p> ?o }", "forcedBindings": {"s": {"type": "uri", "value": ""}}}
        },
        "updates": {
            "PUT": {
                "sparql": "INSERT DATA { <http://c> <http://p> ?o }",
                "forcedBindings": {"o": {"type": "literal", "datatype": "xsd:decimal"}},
            }
        },
    }
    async with filled(tmp_path) as at:
        (tmp_path / "a.jsap").write_text(json.dumps(document))
        changed = [part for setting in settings(at) for part in ("--set", setting)]
        jsap = ("--jsap", tmp_path / "a.jsap")
        assert await command("update", *jsap, *changed, "--bind", "o=1.5", "PUT") == "record 2\n"
        query = ("query", *jsap, *changed, "--format", "csv", "OF")
        bound = await command(*query, "--bind", "s=http://c")
        assert bound.split() == ["s,o", "http://c,1.5"]
        both = await command(*query, "--bind", "s=http://c", "--bind", "s=http://b", "--url", base(at))
        assert sorted(both.split()[1:]) == ["http://b,ვაიმეე", "http://c,1.5"]
        lines = await command("subscribe", *jsap, *changed, "--bind", "s=http://c", "--count", "1", "OF")
        assert lines.split("\n") == ["  s         o", "+ http://c  1.5", ""]
        errors = await command("update", *jsap, *changed, "--bind", "o=x } ; CLEAR ALL", "PUT", code=4)
        assert "PUT, forced binding o:" in errors


@asynccontextmanager
async def following(*arguments: str) -> AsyncIterator[ForkedProcess]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = await asyncio.to_thread(ForkedProcess, ["subscribe", *arguments], cwd=ROOT, **pipes)
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


async def heard(process: ForkedProcess) -> str:
    assert process.stdout
    async with asyncio.timeout(TIMEOUT_S):
        return str(await asyncio.to_thread(process.stdout.readline))


async def test_changes_are_printed_as_they_happen_until_somebody_interrupts(tmp_path: Path) -> None:
    async with filled(tmp_path) as at:
        query = "SELECT ?s ?o { ?s <http://q> ?o }"
        async with (
            following("--url", at.subscribe, query) as rows,
            following("--url", at.subscribe, "--json", query) as lines,
        ):
            assert await heard(rows) == "  s  o\n"
            first = json.loads(await heard(lines))
            assert (first["sequence"], first["addedResults"]["results"]["bindings"]) == (0, [])
            await update(at, "INSERT DATA { <http://a> <http://q> 1 }")
            assert await heard(rows) == "+ http://a  1\n"
            await update(at, "DELETE DATA { <http://a> <http://q> 1 } ; INSERT DATA { <http://a> <http://q> '\x07' }")
            assert await heard(rows) == "- http://a  1\n"
            assert await heard(rows) == "+ http://a  \\u0007\n"
            assert json.loads(await heard(lines))["sequence"] == 1
            assert len(json.loads(await heard(lines))["removedResults"]["results"]["bindings"]) == 1
            for process in (rows, lines):
                process.send_signal(signal.SIGINT)
                _, errors = await asyncio.to_thread(process.communicate, TIMEOUT_S)
                assert (process.returncode, errors) == (130, "")


async def test_on_a_terminal_results_are_tables_and_changes_have_colours(tmp_path: Path) -> None:
    async with filled(tmp_path) as at:
        for arguments, expected in (
            (("query", "--url", base(at), ALL), SHOWN),
            (("subscribe", "--url", at.subscribe, "--count", "1", ALL), "\x1b[32m+ http://b  ვაიმეე\x1b[0m\n"),
        ):
            shown = await asyncio.to_thread(on_terminal, *arguments)
            assert expected in shown.replace("\r\n", "\n")


def on_terminal(*arguments: str) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    try:
        with tempfile.TemporaryFile() as errors:
            streams = {"stdout": theirs, "stderr": errors, "stdin": subprocess.DEVNULL}
            process = ForkedProcess(list(arguments), cwd=ROOT, **streams)
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(ours, 65536):
                    shown += part
            except OSError:
                pass  # that is how a terminal ends
            assert process.wait(TIMEOUT_S) == 0
            return shown.decode()
    finally:
        os.close(ours)


async def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path) -> None:
    async with filled(tmp_path) as at:
        many = "SELECT ?x { VALUES ?a { 1 2 3 4 5 6 7 8 9 } VALUES ?b { 1 2 3 4 5 6 7 8 9 } ?s ?p ?o "
        many += "BIND(CONCAT('a long text that fills the pipe', STR(?o)) AS ?x) VALUES ?c { 1 2 3 4 5 6 7 8 9 } }"
        script = f'{sys.executable} -m lamplighter.gateway query --url {base(at)} --format csv "{many}" | head -1'
        done = await asyncio.to_thread(
            subprocess.run, script, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert (done.stdout, done.stderr) == ("x\n", "")


async def test_in_secure_mode_this_machine_needs_nothing_and_others_register(tmp_path: Path) -> None:
    security = {"enabled": True, "host": "127.0.0.1", "https_port": 0, "wss_port": 0, "registration": "open"}
    grants = {f"grant_{kind}": ["*"] for kind in ("read", "write", "subscribe")}
    async with running_gateway(tmp_path, security={**security, **grants}) as at:
        config = tmp_path / "lamplighter.toml"
        config.write_text("[security]\nenabled = true\n")
        here = ("--config", config, "--data", tmp_path / "data")
        assert await command("update", *here, HOSTILE) == "record 1\n"
        assert await command("query", *here, "--format", "table", ALL) == SHOWN
        lines = await command("subscribe", *here, "--count", "1", ALL)
        assert len(lines.splitlines()) == 4

        ca, file = tmp_path / "data" / "security" / "authority.pem", tmp_path / "me.json"
        https = f"https://127.0.0.1:{urlsplit(at.query).port}"
        told = await command("register", "--url", https, "--ca", ca, "me", file)
        assert told == f"client me: its credentials are in {file}\n"
        told = await command("register", "--url", https, "--ca", ca, "you", tmp_path / "you.json", "--json")
        assert json.loads(told) == {"registered": "you", "file": str(tmp_path / "you.json")}
        mine = ("--ca", ca, "--client", file)
        assert await command("query", "--url", https, *mine, "--format", "table", ALL) == SHOWN
        assert await command("update", "--url", https, *mine, "INSERT DATA { <a:a> <a:b> 1 }") == "record 2\n"
        refused = await asyncio.gather(
            command("query", "--url", https, "--ca", ca, ALL, code=4),
            command("query", "--url", https, "--client", file, ALL, code=3),
            command("register", "--url", https, "--ca", ca, "me", file, code=2),
            command("register", "--url", https, "--ca", ca, "me", tmp_path / "again.json", code=4),
        )
        for errors, expected in zip(
            refused,
            ("invalid_request (401)", "ertificate", "already exists", "not_authorized_identity"),
            strict=True,
        ):
            assert expected in errors
