"""`lamplighter load` with a running gateway."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pyoxigraph as ox

from tests.support.commands import command
from tests.support.running_gateway import query, running_gateway
from tests.support.secure_gateway import SecureGateway

TURTLE = """\
@prefix : <http://e/> .
:a :name "A\\nB" , "C"@it ; :knows [ :name "D" ; :knows [ :name "E" ] ] .
<b> :list ( 1 2 3 ) .
"""


async def load(*arguments: object, code: int = 0) -> str:
    done = await asyncio.to_thread(command, "load", *arguments)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


async def test_each_format_gives_the_same_graph(tmp_path: Path) -> None:
    wanted = ox.Dataset(ox.parse(TURTLE.encode(), format=ox.RdfFormat.TURTLE, base_iri="http://e/"))
    wanted.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    formats = {"ttl": ox.RdfFormat.TURTLE, "nt": ox.RdfFormat.N_TRIPLES, "rdf": ox.RdfFormat.RDF_XML}
    formats |= {"jsonld": ox.RdfFormat.JSON_LD, "trig": ox.RdfFormat.TRIG, "nq": ox.RdfFormat.N_QUADS}
    async with running_gateway(tmp_path) as at:
        url = ("--url", at.query.removesuffix("/query"))
        for name, format_ in formats.items():
            triples = [quad.triple for quad in wanted] if name in ("ttl", "nt", "rdf") else list(wanted)
            (tmp_path / f"a.{name}").write_bytes(ox.serialize(triples, format=format_))
            graph = f"http://e/{name}"
            assert "loaded 13 quads" in await load(tmp_path / f"a.{name}", "--graph", graph, *url)
            found = (
                await query(at, f"CONSTRUCT {{ ?s ?p ?o }} {{ GRAPH <{graph}> {{ ?s ?p ?o }} }}", "text/turtle")
            ).body
            loaded = ox.Dataset(ox.parse(found, format=ox.RdfFormat.TURTLE))
            loaded.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
            assert loaded == wanted, name


async def test_a_large_file_goes_in_slices_and_again_without_effect(tmp_path: Path) -> None:
    lines = [f"<http://e/s{number}> <http://e/p> {number} ." for number in range(4200)]
    (tmp_path / "a.ttl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    async with running_gateway(tmp_path) as at:
        arguments = (tmp_path / "a.ttl.gz", "--url", at.query.removesuffix("/query"), "--json")
        for _ in range(2):
            told = json.loads(await load(*arguments))
            assert (told["quads"], told["updates"]) == (4200, 5)
            counted = (await query(at, "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }", "text/csv")).body
            assert counted.split() == [b"n", b"4200"]


async def test_errors_change_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        url = ("--url", at.query.removesuffix("/query"))
        (tmp_path / "bad.ttl").write_text("<http://e/s> <http://e/p> 1 .\n<http://e/s> oops .")
        (tmp_path / "a.txt").write_text("")
        assert f"{tmp_path / 'bad.ttl'} line 2, column" in await load(tmp_path / "bad.ttl", *url, code=4)
        assert "does not tell the format" in await load(tmp_path / "a.txt", *url, code=4)
        assert "name an RDF file" in await load(tmp_path / "none.ttl", *url, code=2)
        assert (await query(at, "SELECT * { ?s ?p ?o }", "text/csv")).body.count(b"\n") == 1
    (tmp_path / "good.ttl").write_text("<http://e/s> <http://e/p> 1 .")
    assert "0 of 1 quad are loaded" in await load(tmp_path / "good.ttl", *url, code=3)


def test_a_client_of_a_secure_gateway_loads_what_it_may_write(tmp_path: Path) -> None:
    with SecureGateway(tmp_path) as gateway:
        secret = gateway.client("me", write=["http://e/mine"])
        (tmp_path / "token").write_text(gateway.bearer("me", secret).removeprefix("Bearer "))
        (tmp_path / "a.ttl").write_text("<http://e/s> <http://e/p> 1 .")
        there = ("--url", f"https://localhost:{gateway.port}", "--ca", gateway.authority)
        mine = (tmp_path / "a.ttl", *there, "--token", tmp_path / "token", "--graph", "http://e/mine")
        assert command("load", *mine).returncode == 0
        done = command("load", *mine[:-1], "http://e/other")
        assert (done.returncode, "forbidden" in done.stderr) == (4, True), done
        assert command("load", tmp_path / "a.ttl", *there).returncode == 4
        assert command("load", tmp_path / "a.ttl", "--config", gateway.toml).returncode == 0, "the local socket"
