"""Inference of the gateway: begun by one commit, kept by all that changes the dataset, and readable as its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamplighter.engine.access import Access, Graphs
from lamplighter.engine.errors import AccessDeniedError, ChangeLogError, ConfigurationError, UnknownGraphError
from lamplighter.engine.inference.sources import Sources
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.settings.reasoning import InferenceSettings
from tests.gateway.history.test_backup import restored, saved
from tests.support.gateway_parts import (
    CLIENT,
    FullDisk,
    application,
    idle,
    lines,
    opened_log,
    put_lines,
    reactions,
    records,
    recovered,
    recovered_runner,
    running,
    segments,
    update,
)

ON = Settings(inference=InferenceSettings(graphs=["default"], ontologies=["http://e/ontology"]))
OFF = Settings()
INFERRED = "<urn:lamplighter:inferred:default>"
P = "PREFIX : <http://e/> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
SCHEMA = P + "INSERT DATA { GRAPH :ontology { :Lamp rdfs:subClassOf :Device } }"
LAMP = P + "INSERT DATA { :lamp a :Lamp }"


def devices(runner: Runner) -> set[str]:
    return {quad.s for quad in runner._engine.store.quads(INFERRED) if quad.o == "<http://e/Device>"}


def causes(data: Path) -> list[str]:
    return [record.cause.kind for record in records(data) if record.cause is not None and record.d + record.a]


async def test_the_start_brings_the_graph_in_line_by_one_commit_and_later_ones_change_nothing(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await update(runner, SCHEMA)
        await update(runner, LAMP)
        assert devices(runner) == set()
    for _ in range(2):
        async with recovered_runner(tmp_path, settings=ON) as runner:
            assert devices(runner) == {"<http://e/lamp>"}
        assert causes(tmp_path) == ["http", "http", "inference"]
    async with recovered_runner(tmp_path, settings=ON) as runner:
        await update(runner, P + "INSERT DATA { :other a :Lamp }")
    assert records(tmp_path)[-1].a == (
        ("<http://e/other>", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>", "<http://e/Lamp>", None),
        ("<http://e/other>", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>", "<http://e/Device>", INFERRED),
    )
    async with recovered_runner(tmp_path, settings=OFF) as runner:
        assert runner._engine.store.graphs() == ["<http://e/ontology>"]
    assert (causes(tmp_path)[-1], records(tmp_path)[-1].graphs.dropped) == ("inference", (INFERRED,))


async def test_a_disk_that_is_full_at_the_start_holds_up_updates_until_the_graph_is_in_line(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await update(runner, f"{SCHEMA} ; {LAMP}")
    disk = FullDisk()
    runner = Runner(ON, opened_log(tmp_path, disk=disk))
    disk.left = 0
    runner.recover()
    async with running(runner):
        with pytest.raises(ChangeLogError):
            await update(runner, P + "INSERT DATA { :other a :Lamp }")
        disk.left = None
        await update(runner, P + "INSERT DATA { :other a :Lamp }")
        assert devices(runner) == {"<http://e/lamp>", "<http://e/other>"}
    assert causes(tmp_path) == ["http", "inference", "http"]


ALARM = {
    "namespaces": {"": "http://e/"},
    "queries": {"SEEN": {"sparql": P + f"SELECT ?x FROM {INFERRED} {{ ?x a :Device }}"}},
    "updates": {
        "NOTE": {
            "sparql": P + "INSERT { ?x :noted [] } WHERE { }",
            "forcedBindings": {"x": {"type": "uri", "value": ""}},
        }
    },
    "extended": {"lamplighter": {"aggregators": {"note": {"query": "SEEN", "added": "NOTE"}}}},
}
"""A new node for each reaction, so that a second one would show."""
NOTED = ["<http://e/lamp>", "<http://e/other>"]


async def test_an_application_reacts_once_wherever_the_log_ends(tmp_path: Path) -> None:
    apps = [application("alarm", ALARM)]
    async with recovered_runner(tmp_path, applications=apps) as runner:
        await update(runner, SCHEMA)
        await update(runner, LAMP)
    async with recovered_runner(tmp_path, applications=apps, settings=ON) as runner:
        await update(runner, P + "INSERT DATA { :other a :Lamp }")
    assert [cause for cause, _ in reactions(tmp_path)] == ["alarm/note/added"] * 2
    assert causes(tmp_path) == ["http", "http", "inference", "application", "http", "application"]
    content = [line for path in segments(tmp_path) for line in lines(path)]
    for cut in range(1, len(content) + 1):
        data = tmp_path / f"cut-{cut}"
        put_lines(data, content[:cut])
        async with recovered_runner(data, applications=apps, settings=ON) as runner:
            await update(runner, f"{SCHEMA} ; {LAMP} ; {P} INSERT DATA {{ :other a :Lamp }}")
            await idle(runner)
            quads = runner._engine.store.quads(None)
            assert sorted(quad.s for quad in quads if quad.p == "<http://e/noted>") == NOTED, cut


async def test_a_restore_infers_by_the_settings_of_now(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with recovered_runner(tmp_path / "a", settings=ON) as runner:
        await update(runner, f"{SCHEMA} ; {LAMP}")
        await saved(runner, backup)
        await update(runner, "DROP ALL")
        await restored(runner, backup)
        assert devices(runner) == {"<http://e/lamp>"}
    async with recovered_runner(tmp_path / "b", settings=OFF) as runner:
        await restored(runner, backup)
        assert runner._engine.store.graphs() == ["<http://e/ontology>"]
    other = Settings(inference=InferenceSettings(graphs=["http://e/ontology"]))
    async with recovered_runner(tmp_path / "c", settings=other) as runner:
        await restored(runner, backup)
        assert runner._engine.store.graphs() == ["<http://e/ontology>"]
        await update(runner, P + "INSERT DATA { GRAPH :ontology { :x a :Lamp } }")
        assert len(runner._engine.store.graphs()) == 2


async def test_graph_writes_infer_and_do_not_reach_inferred_graphs(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=ON) as runner:
        await update(runner, f"{SCHEMA} ; {LAMP}")
        assert not await runner.updates.write_graph(GraphWrite(GraphVerb.DROP, "<http://e/ontology>"), CLIENT)
        assert devices(runner) == set()
        for verb in GraphVerb:
            with pytest.raises(AccessDeniedError, match="change the triples that they follow from"):
                await runner.updates.write_graph(GraphWrite(verb, INFERRED), CLIENT)
        with pytest.raises(UnknownGraphError):
            await runner.updates.write_graph(GraphWrite(GraphVerb.DROP, "<http://e/none>"), CLIENT)


async def test_a_client_reads_an_inferred_graph_if_it_reads_all_that_it_follows_from(tmp_path: Path) -> None:
    sources = Sources((None,), ("<http://e/ontology>",))

    def caller(*names: str | None) -> Caller:
        visible = Graphs(frozenset(names))
        return Caller("anna", sources.readable(Access(visible, visible, visible)), operator=False, registered=False)

    async with recovered_runner(tmp_path, settings=ON) as runner:
        await update(runner, f"{SCHEMA} ; {LAMP}")
        both = caller(None, "<http://e/ontology>")
        answer = await runner.queries.graph(INFERRED, "text/turtle", both)
        assert b"Device" in b"".join([chunk async for chunk in answer.chunks()])
        for less in (caller(None), caller("<http://e/ontology>"), caller("<http://e/ontology>", INFERRED)):
            with pytest.raises(AccessDeniedError, match="may not read the graph <urn:lamplighter:inferred:default>"):
                await runner.queries.graph(INFERRED, "text/turtle", less)
        told = (await update(runner, P + "INSERT DATA { :other a :Lamp }", caller=both, tells_delta=True)).delta
        assert told is not None
        assert len(told.added) == 2
        with pytest.raises(AccessDeniedError, match="nobody may write"):
            await update(runner, f"DROP GRAPH {INFERRED}", delay="PT1S")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('graphs = ["default", "lamps"]', "line 2: inference.graphs: 'lamps' is not an absolute IRI"),
        ('graphs = ["urn:lamplighter:inferred:default"]', "has inferred triples itself; name the graph that they"),
        ('graphs = []\nontologies = ["a b:c"]', "line 3: inference.ontologies: "),
        (f"graphs = {[f'a:{n}' for n in range(101)]}", "101 graphs are named; 100 are the most"),
        ("graph = []", "unknown key inference.graph"),
    ],
)
def test_what_is_no_graph_stops_the_start_and_is_named(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "lamplighter.toml"
    path.write_text(f"[inference]\n{table}\n")
    with pytest.raises(ConfigurationError) as caught:
        read_settings(path)
    assert message in str(caught.value)


async def test_a_difference_that_no_record_holds_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recovered_runner(tmp_path) as runner:
        await update(runner, f"{SCHEMA} ; {LAMP}")
    for name in ("RECORD_BYTES_MAX", "RECORD_REST_BYTES_MAX"):
        monkeypatch.setattr(f"lamplighter.gateway.log.writer.{name}", 10)
    with pytest.raises(ConfigurationError, match=r"inference\.graphs: the change-log record .* name fewer graphs"):
        recovered(tmp_path, settings=ON)
