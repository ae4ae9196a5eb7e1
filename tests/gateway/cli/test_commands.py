"""`verify`, `log`, `backup` and `restore` as a user meets them, while the gateway runs and when it does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lamplighter.engine.change_log import Cause, Followed, Gap, GraphChanges, Record, Timer
from lamplighter.engine.terms import Quad
from lamplighter.gateway.cli.commands import _Names
from lamplighter.gateway.log.reader import segments
from tests.support.gateway_parts import lines
from tests.support.oracle import parsed_dump
from tests.support.places import ROOT
from tests.support.rdf_patch_reader import applied
from tests.support.running_gateway import health, query, running_gateway, update

SENSOR = "<http://lamplighter.local/post/1>"


async def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with that folder's settings, and nobody at the keyboard."""
    line = [
        sys.executable,
        "-m",
        "lamplighter.gateway",
        *map(str, arguments),
        "--config",
        str(folder / "lamplighter.toml"),
    ]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    return await asyncio.to_thread(run)


def configured(folder: Path, url: str) -> None:
    (folder / "lamplighter.toml").write_text(f"[http]\nport = {urlsplit(url).port}\n")


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_the_past_is_read_while_the_gateway_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running_gateway(tmp_path) as addresses:
        configured(tmp_path, addresses.query)
        insert = f"INSERT DATA {{ {SENSOR} <http://www.w3.org/ns/sosa/hasSimpleResult>"
        await update(addresses, f"{insert} 1 . GRAPH <urn:g> {{ <urn:s> <urn:p> _:b }} }}", request_id="first")
        await update(addresses, f"{insert} 1 , 2 }}")
        await update(addresses, "CLEAR ALL", delay="PT1H")
        await update(addresses, "CREATE GRAPH <urn:empty>")
        before = tree(data)

        done = await command(tmp_path, "verify")
        assert done.returncode == 0, done
        assert "4 records in 1 segments" in done.stdout and done.stdout.endswith("verdict    good\n")
        assert done.stderr == "log/1-000000000001.ndjson.zst\nreplay log/1-000000000001.ndjson.zst\n"

        done = await command(tmp_path, "log", "show")
        assert (done.returncode, done.stderr) == (0, "")
        text = done.stdout.splitlines()
        heads = [line.split("  ") for line in text if not line.startswith(" ")]
        assert [(head[0], head[2]) for head in heads] == [
            ("1/1", "commit"),
            ("1/2", "commit"),
            ("1/3", "timer"),
            ("1/4", "commit"),
        ]
        assert heads[0][-1] == "request first"
        assert {"    + :post/1 sosa:hasSimpleResult 1", "    = :post/1 sosa:hasSimpleResult 1"} < set(text)
        assert "    + graph <urn:empty>" in text

        done = await command(tmp_path, "log", "show", "--json", "--from", 2, "--to", "1/3")
        written = [line.decode() for line in lines(segments(data / "log")[0].path)]
        assert done.stdout.splitlines() == written[1:3], "as they are"
        done = await command(tmp_path, "log", "show", "--json", "--type", "commit", "--last", 2)
        assert done.stdout.splitlines() == [written[1], written[3]]

        exported = tmp_path / "exported"
        done = await command(tmp_path, "log", "export", "--format", "ndjson", "-o", exported)
        assert (done.returncode, exported.read_text().splitlines()) == (0, written)
        done = await command(tmp_path, "log", "export", "--format", "rdfpatch")
        dataset = tmp_path / "dataset.nq"
        await command(tmp_path, "log", "restore", "--at", 4, "-o", dataset)
        assert applied(done.stdout) == set(parsed_dump(dataset.read_bytes()))
        assert len(parsed_dump(dataset.read_bytes())) == 3

        done = await command(tmp_path, "log", "restore", "--at", "1/1", "-o", tmp_path / "then.trig")
        assert done.stdout == f"2 quads as of record 1/1 are in {tmp_path / 'then.trig'}\n"
        assert "<urn:g> {" in (tmp_path / "then.trig").read_text()
        done = await command(tmp_path, "log", "restore", "--at", "2100-01-01T00:00:00Z", "-o", dataset)
        assert "as of record 1/4" in done.stdout and "1 named graphs without quads" in done.stderr
        assert tree(data) == before, "reading commands write nothing"


async def test_a_backup_is_made_and_restored_by_commands(tmp_path: Path) -> None:
    file = tmp_path / "home.ndjson.zst"
    everything = "CONSTRUCT { ?s ?p ?o } { ?s ?p ?o }"
    async with running_gateway(tmp_path) as addresses:
        configured(tmp_path, addresses.query)
        await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 , 2 , 3 }")
        await update(addresses, "CLEAR ALL", delay="PT1H")
        wanted = (await query(addresses, everything, "application/n-triples")).body
        name = (await health(addresses))["gateway"]
        done = await command(tmp_path, "backup", file)
        assert (done.returncode, done.stderr) == (0, "")
        size = file.stat().st_size
        assert done.stdout == f"backup of {name}/1/2: 3 quads, 1 delayed updates, {size} bytes, checked\n"
        await update(addresses, "DELETE DATA { <urn:s> <urn:p> 1 , 2 } ; INSERT DATA { <urn:s> <urn:p> 4 }")
        done = await command(tmp_path, "restore", file, "--yes")
        assert done.returncode == 0, done
        assert done.stdout.splitlines()[1] == (
            "restored by record 4: 1 quads removed, 2 added, 1 delayed updates cancelled, 1 set"
        )
        found = (await query(addresses, everything, "application/n-triples")).body
        assert sorted(found.splitlines()) == sorted(wanted.splitlines())

        damaged = tmp_path / "damaged"
        damaged.write_bytes(file.read_bytes()[:-5])
        done = await command(tmp_path, "restore", damaged, "--yes")
        assert done.returncode == 2 and f"{damaged}: damaged" in done.stderr
        assert (await health(addresses))["sequence"] == 6

    done = await command(tmp_path, "restore", file, "--yes")
    assert done.returncode == 2 and "no gateway answers at http://127.0.0.1:" in done.stderr
    before = tree(tmp_path / "data")
    done = await command(tmp_path, "backup", tmp_path / "offline")
    assert done.returncode == 0 and "3 quads, 1 delayed updates" in done.stdout
    assert "no gateway answers" in done.stderr and f"made from {tmp_path / 'data'}" in done.stderr
    assert tree(tmp_path / "data") == before

    [segment] = segments(tmp_path / "data" / "log")
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 8
    segment.path.write_bytes(content)
    done = await command(tmp_path, "verify")
    assert done.returncode == 1, done
    assert f"PROBLEM    {segment.path}: " in done.stdout and done.stdout.endswith("verdict    1 problem\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify"], "no change log is there"),
        (["log", "show"], "no change log is there"),
        (["log", "export", "--format", "rdfpatch"], "no change log is there"),
        (["backup", "x"], "no change log is there"),
        (["restore", "none"], "none: No such file or directory"),
    ],
)
async def test_a_folder_without_a_log_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "lamplighter.toml").write_text("[http]\nport = 9\n")
    done = await command(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


async def test_wrong_use_is_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        configured(tmp_path, addresses.query)
        await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")
    for arguments, said in (
        (["show", "--type", "comit"], "the types are commit, timer"),
        (["show", "--last", "0"], "it begins with 1"),
        (["show", "--from", "x"], "'x' is no record"),
        (["restore", "--at", "7", "-o", tmp_path / "x.nq"], "no record 7 is kept; the log has 1/1 to 1/1"),
        (["restore", "--at", "1", "-o", tmp_path / "x.ttl"], "its name must end in .nq or .trig"),
        (["restore", "--at", "9" * 5000, "-o", tmp_path / "x.nq"], "is no record"),
        (["restore", "--at", "99999-01-01T00:00:00Z", "-o", tmp_path / "x.nq"], "is no day of the years 1 to 9999"),
        (["restore", "--at", "2026-01-01T00:00:00", "-o", tmp_path / "x.nq"], "names no time zone"),
        (["restore", "--at", "yesterdayT", "-o", tmp_path / "x.nq"], "is not an xsd:dateTime"),
        (["restore", "--at", "1", "-o", tmp_path / "data" / "log" / "x.nq"], "it is in the data folder"),
        (["export", "--format", "ndjson", "-o", tmp_path / "none" / "x"], "name a file that can be written"),
    ):
        done = await command(tmp_path, "log", *arguments)
        assert done.returncode == 2 and said in done.stderr, done
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("x*"))


def test_the_configuration_may_be_named_before_the_mode_too(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "lamplighter.gateway", "log", "--data", str(tmp_path), "show"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and f"{tmp_path}: no change log is there" in done.stderr


def record(kind: str, **members: object) -> Record:
    return Record(
        1,
        kind,
        "gw-1",
        2,
        17,
        "2026-11-21T02:00:00.123456Z",
        False,
        "b",
        1,
        **members,  # type: ignore[arg-type]
    )


def shown(kind: str, **members: object) -> list[str]:
    """What is shown of a record below its first line."""
    return [line.strip() for line in _Names("http://here/").record(record(kind, **members)).splitlines()[1:]]


def test_a_record_is_shown_with_its_time_and_cause() -> None:
    text = _Names("http://here/").record(record("commit", cause=Cause("timer", "id-1", 5), request="r\x1b[2J"))
    assert text == (
        "2/17  2026-11-21 02:00:00.123 (clock not synchronised)  commit  by timer id-1  after 5  request r\\u001B[2J\n"
    )


def test_quads_are_shown_short() -> None:
    xsd = "http://www.w3.org/2001/XMLSchema#"
    rdf_type = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
    assert shown(
        "commit",
        a=(
            Quad("<http://here/post/1>", rdf_type, "<http://www.w3.org/ns/sosa/Sensor>"),
            Quad("_:b", "<http://e/p>", f'"1.5"^^<{xsd}decimal>', "<http://here/g>"),
            Quad("_:b", "<http://e/p>", f'"P1D"^^<{xsd}duration>'),
            Quad("_:b", "<http://e/p>", '"a ^^b>"@en'),
            Quad("_:b", "<http://e/p>", '"\u202e\x9b"'),
            Quad("_:b", "<http://e/p>", f'"{"x" * 500}"'),
        ),
        graphs=GraphChanges(("<http://here/g>",), ("<http://e/h>",)),
    ) == [
        "- graph <http://e/h>",
        "+ :post/1 a sosa:Sensor",
        "+ _:b <http://e/p> 1.5  in :g",
        '+ _:b <http://e/p> "P1D"^^xsd:duration',
        '+ _:b <http://e/p> "a ^^b>"@en',
        '+ _:b <http://e/p> "\\u202E\\u009B"',
        f'+ _:b <http://e/p> "{"x" * 118}…',
        "+ graph :g",
    ]
    assert shown("commit", d=tuple(Quad("_:b", "<http://e/p>", f'"{n}"') for n in range(25)))[-1] == "- and 5 more"


def test_what_is_no_commit_is_shown_in_words() -> None:
    assert shown("timer", timer=Timer("t", "CLEAR\n  ALL", 1_500_000)) == ["t in 1.5 s: CLEAR ALL"]
    at = "2030-01-01T00:00:00Z"
    assert shown("timer", timer=Timer("t", "CLEAR ALL", None, at)) == [f"t at {at}: CLEAR ALL"]
    assert shown("cancel", cancel="t") == ["t"]
    assert shown("gap", gap=Gap(1, 3, "the card")) == ["the records from 1/3 on are lost: the card"]
    assert shown("gap", gap=Gap(1, 3, "room", 9)) == ["the records from 1/3 to 1/9 are lost: room"]
    secret = "sepa://subscription/0123456789abcdef"
    [line] = shown("subscribe", subscribe=Followed(secret, "SELECT * { ?s ?p ?o }", 1))
    assert line.endswith(": SELECT * { ?s ?p ?o }") and "9abcdef" not in line, "who knows all of it may resume it"
    assert secret not in shown("unsubscribe", unsubscribe=secret)[0]
