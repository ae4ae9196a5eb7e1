"""`log`, `backup` and `restore` while the gateway runs."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from lamplighter.gateway.log.reader import segments
from tests.support.commands import command as lamplighter
from tests.support.gateway_parts import lines
from tests.support.oracle import parsed_dump
from tests.support.rdf_patch_reader import applied
from tests.support.running_gateway import health, query, running_gateway, update

SENSOR = "<http://lamplighter.local/post/1>"


async def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with that folder's settings, and with nothing at standard input."""
    return await asyncio.to_thread(lamplighter, *arguments, "--config", folder / "lamplighter.toml")


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
        assert "4 records in 1 segment," in done.stdout and done.stdout.endswith("verdict    good\n")
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
        assert done.stdout == f"wrote 2 quads as of record 1/1 to {tmp_path / 'then.trig'}\n"
        assert "<urn:g> {" in (tmp_path / "then.trig").read_text()
        done = await command(tmp_path, "log", "restore", "--at", "2100-01-01T00:00:00Z", "-o", dataset)
        assert "as of record 1/4" in done.stdout and "1 empty named graph:" in done.stderr
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
        assert done.stdout == f"backup of {name}/1/2: 3 quads, 1 delayed update, {size} bytes, checked\n"
        await update(addresses, "DELETE DATA { <urn:s> <urn:p> 1 , 2 } ; INSERT DATA { <urn:s> <urn:p> 4 }")
        done = await command(tmp_path, "restore", file, "--yes")
        assert done.returncode == 0, done
        assert done.stdout.splitlines()[1] == (
            "restored by record 4: 1 quad removed, 2 added, 1 delayed update cancelled, 1 set, 0 stored applications"
        )
        found = (await query(addresses, everything, "application/n-triples")).body
        assert sorted(found.splitlines()) == sorted(wanted.splitlines())

        damaged = tmp_path / "damaged"
        damaged.write_bytes(file.read_bytes()[:-5])
        done = await command(tmp_path, "restore", damaged, "--yes")
        assert done.returncode == 5 and f"{damaged}: damaged" in done.stderr
        assert (await health(addresses))["sequence"] == 6

    done = await command(tmp_path, "restore", file, "--yes")
    assert done.returncode == 3 and "no gateway answers at http://127.0.0.1:" in done.stderr
    before = tree(tmp_path / "data")
    done = await command(tmp_path, "backup", tmp_path / "offline")
    assert done.returncode == 0 and "3 quads, 1 delayed update" in done.stdout
    assert "no gateway answers" in done.stderr and f"made from {tmp_path / 'data'}" in done.stderr
    assert tree(tmp_path / "data") == before

    [segment] = segments(tmp_path / "data" / "log")
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 8
    segment.path.write_bytes(content)
    done = await command(tmp_path, "verify")
    assert done.returncode == 1, done
    assert f"PROBLEM    {segment.path}: " in done.stdout and done.stdout.endswith("verdict    1 problem\n")


async def test_wrong_use_is_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as addresses:
        configured(tmp_path, addresses.query)
        await update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")
    for arguments, said, code in (
        (["show", "--type", "comit"], "the types are commit, timer", 2),
        (["show", "--last", "0"], "it must be 1 or more", 2),
        (["show", "--from", "x"], "'x' is not a record", 2),
        (["restore", "--at", "7", "-o", tmp_path / "x.nq"], "no record 7 is kept; the log has 1/1 to 1/1", 4),
        (["restore", "--at", "1", "-o", tmp_path / "x.ttl"], "its name must end in .nq or .trig", 2),
        (["restore", "--at", "9" * 5000, "-o", tmp_path / "x.nq"], "is not a record", 2),
        (["restore", "--at", "99999-01-01T00:00:00Z", "-o", tmp_path / "x.nq"], "is no day of the years 1 to 9999", 4),
        (["restore", "--at", "2026-01-01T00:00:00", "-o", tmp_path / "x.nq"], "names no time zone", 4),
        (["restore", "--at", "yesterdayT", "-o", tmp_path / "x.nq"], "is not an xsd:dateTime", 4),
        (["restore", "--at", "1", "-o", tmp_path / "data" / "log" / "x.nq"], "it is in the data folder", 2),
        (["export", "--format", "ndjson", "-o", tmp_path / "none" / "x"], "name a file that can be written", 2),
    ):
        done = await command(tmp_path, "log", *arguments)
        assert done.returncode == code and said in done.stderr, done
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("x*"))
