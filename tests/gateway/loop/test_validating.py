"""Validation in the gateway: begun by one commit, and all that changes the dataset is checked or marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.access import VIOLATIONS
from lamplighter.engine.change_log import Cause
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, InvalidShapesError, ShapesViolatedError
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.settings.reasoning import ShaclSettings
from tests.gateway.history.test_backup import restored, saved
from tests.support.gateway_parts import (
    CLIENT,
    FakeClock,
    FullDisk,
    application,
    dump,
    idle,
    opened_log,
    records,
    recovered,
    recovered_runner,
    running,
    time_passes,
    update,
)
from tests.support.shacl_engine import PREFIXES, found

SHAPES = f"""{PREFIXES}
:Lamp a sh:NodeShape ; sh:targetClass :Lamp ; sh:property [ sh:path :level ; sh:minCount 1 ; sh:maxInclusive 100 ] .
"""
REJECT = Settings(shacl=ShaclSettings(shapes=["shapes/*.ttl"]))
MARK = Settings(shacl=ShaclSettings(shapes=["shapes/*.ttl"], mode="mark"))
OFF = Settings()
GOOD, BAD = (f"{PREFIXES} INSERT DATA {{ {triples} }}" for triples in (":a a :Lamp ; :level 5", ":b a :Lamp"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "shapes"
    folder.mkdir()
    (folder / "lamps.ttl").write_text(SHAPES)
    return tmp_path


def violations(runner: Runner) -> set[str]:
    return found(runner._engine)


def causes(data: Path) -> list[str]:
    return [record.cause.kind for record in records(data) if record.cause is not None and record.d + record.a]


async def test_a_refused_update_leaves_neither_record_nor_quad(data: Path) -> None:
    async with recovered_runner(data, settings=REJECT) as runner:
        await update(runner, GOOD)
        before = dump(runner)
        with pytest.raises(ShapesViolatedError, match="fewer than 1 values"):
            await update(runner, BAD, request_id="1")
        assert dump(runner) == before
        await update(runner, f"{BAD} ; {PREFIXES} INSERT DATA {{ :b :level 1 }}", request_id="1")
    assert causes(data) == ["http", "http"]


async def test_the_start_brings_the_violations_in_line_by_one_commit(data: Path) -> None:
    async with recovered_runner(data, settings=OFF) as runner:
        await update(runner, BAD)
    for _ in range(2):
        async with recovered_runner(data, settings=REJECT) as runner:
            assert violations(runner) == {"b MinCount"}
            assert runner.figures.monitoring()["shacl"] == {"shapes": 2, "violations": 1}
        assert causes(data) == ["http", "shacl"]
    async with recovered_runner(data, settings=OFF) as runner:
        assert runner._engine.store.graphs() == []
        assert runner.figures.monitoring()["shacl"] is None
    assert causes(data) == ["http", "shacl", "shacl"]


async def test_marks_are_in_the_record_of_their_cause_and_survive_a_restart(data: Path) -> None:
    async with recovered_runner(data, settings=MARK) as runner:
        await update(runner, BAD)
        assert violations(runner) == {"b MinCount"}
    record = records(data)[-1]
    assert {quad[3] for quad in record.a} == {None, VIOLATIONS}
    async with recovered_runner(data, settings=MARK) as runner:
        await update(runner, f"{PREFIXES} INSERT DATA {{ :b :level 1 }}")
        assert violations(runner) == set()
    assert causes(data) == ["http", "http"]


async def test_a_disk_that_is_full_at_the_start_holds_up_updates(data: Path) -> None:
    async with recovered_runner(data) as runner:
        await update(runner, BAD)
    disk = FullDisk()
    sources = shape_sources(REJECT.shacl, data)
    runner = Runner(REJECT, opened_log(data, disk=disk), shapes=sources)
    disk.left = 0
    runner.recover()
    async with running(runner):
        with pytest.raises(ChangeLogError):
            await update(runner, GOOD)
        disk.left = None
        with pytest.raises(ShapesViolatedError):
            await update(runner, f"{PREFIXES} INSERT DATA {{ :c a :Lamp }}")
        assert violations(runner) == {"b MinCount"}


FOLLOWER: dict[str, Any] = {
    "namespaces": {"": "http://e/"},
    "queries": {"SEEN": {"sparql": f"{PREFIXES} SELECT ?x {{ ?x :seen true }}"}},
    "updates": {
        "BREAK": {
            "sparql": f"{PREFIXES} INSERT {{ ?x a :Lamp }} WHERE {{ }}",
            "forcedBindings": {"x": {"type": "uri", "value": ""}},
        }
    },
    "extended": {"lamplighter": {"aggregators": {"break": {"query": "SEEN", "added": "BREAK"}}}},
}


async def test_a_refused_reaction_is_counted_and_not_retried(data: Path) -> None:
    apps = [application("app", FOLLOWER)]
    async with recovered_runner(data, applications=apps, settings=REJECT) as runner:
        await update(runner, f"{PREFIXES} INSERT DATA {{ :x :seen true }}")
        await idle(runner)
        assert violations(runner) == set()
        assert runner.figures.monitoring()["applications"]["app"] == {"reactions": 1, "failed": 1, "refused": 0}
    [reaction] = [record for record in records(data) if record.cause and record.cause.id == "app/break/added"]
    assert reaction.a == ()
    async with recovered_runner(data, applications=apps, settings=REJECT) as runner:
        await idle(runner)
        assert runner._engine.quad_count == 1


async def test_a_refused_delayed_update_fires_once_without_effect(data: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(data, clock, settings=REJECT) as runner:
        await update(runner, BAD, delay="PT1S")
        await time_passes(runner, clock, 2)
        await idle(runner)
        assert (runner.delayed_count, runner._engine.quad_count) == (0, 0)
    [fired] = [record for record in records(data) if record.cause and record.cause.kind == "timer"]
    assert fired.a == ()


async def test_graph_writes_are_checked(data: Path) -> None:
    settings = Settings(shacl=ShaclSettings(shapes=["shapes/*.ttl"], data=["http://e/g"]))
    async with recovered_runner(data, settings=settings) as runner:
        await update(runner, f"{PREFIXES} INSERT DATA {{ GRAPH :g {{ :a a :Lamp ; :level 1 }} }}")
        await update(runner, f"{PREFIXES} INSERT DATA {{ :b a :Lamp }}")
        with pytest.raises(ShapesViolatedError):
            await update(runner, f"{PREFIXES} COPY DEFAULT TO :g")
        await runner.updates.write_graph(GraphWrite(GraphVerb.DROP, "<http://e/g>"), CLIENT)


async def test_a_restore_is_marked_and_not_refused(data: Path) -> None:
    backup = data / "backup"
    async with recovered_runner(data, settings=MARK) as runner:
        await update(runner, BAD)
        await saved(runner, backup)
        await update(runner, "DROP ALL")
        assert runner._engine.quad_count == 0
    async with recovered_runner(data, settings=REJECT) as runner:
        await restored(runner, backup)
        assert violations(runner) == {"b MinCount"}
    async with recovered_runner(data, settings=OFF) as runner:
        await restored(runner, backup)
        assert runner._engine.store.graphs() == []


async def test_readings_of_devices_are_checked(data: Path) -> None:
    async with recovered_runner(data, settings=REJECT) as runner:
        with pytest.raises(ShapesViolatedError):
            await update(runner, BAD, cause=Cause("mqtt", "lamps/b"))


async def test_a_shapes_graph_that_is_not_valid_stops_the_start(data: Path) -> None:
    async with recovered_runner(data) as runner:
        await update(runner, f"{PREFIXES} INSERT DATA {{ GRAPH :s {{ :S sh:targetClass :C ; sh:minCout 1 }} }}")
    with pytest.raises(ConfigurationError, match=r"shacl\.graph: shape <http://e/S>: sh:minCout .* start without it"):
        recovered(data, settings=Settings(shacl=ShaclSettings(graph="http://e/s")))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('graph = "lamps"', "line 2: shacl.graph: 'lamps' is not an absolute IRI"),
        ('graph = "urn:lamplighter:violations"', "the gateway itself writes urn:lamplighter:violations"),
        ('graph = "a:b"\ndata = ["a:b"]', "line 3: shacl.data: a:b has the shapes; name other graphs"),
        ("data = []", "shacl.data: name at least one graph"),
        ('data = ["all", "default"]', '"all" stands alone'),
        (f"data = {[f'a:{n}' for n in range(101)]}", "101 graphs are named; 100 are the most"),
        (f"shapes = {[f'{n}.ttl' for n in range(101)]}", "101 files are named; 100 are the most"),
        ('mode = "refuse"', 'allowed: "reject", "mark"'),
    ],
)
def test_wrong_settings_stop_the_start_and_are_named(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "lamplighter.toml"
    path.write_text(f"[shacl]\n{table}\n")
    with pytest.raises(ConfigurationError) as caught:
        read_settings(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "shacl.shapes: there is no file "),
        ({"a.ttl": ":x :y"}, "a.ttl line 1, column"),
        ({"a.ttl": f"{PREFIXES} :S sh:targetClass :C ; sh:minCout 1 ."}, "a.ttl: shape <http://e/S>: sh:minCout"),
        ({"a.txt": "x"}, "the name does not tell the format"),
        (
            {"a.ttl": f"{PREFIXES} :S sh:targetClass :C ; sh:node :T .", "b.ttl": f"{PREFIXES} :T sh:node :S ."},
            "it refers to itself, which is not supported; write the levels out, in the files together",
        ),
        (
            {
                "a.ttl": f"{PREFIXES} :S sh:targetClass :C ; sh:property :P .",
                "b.ttl": f"{PREFIXES} :P sh:path :p . :T sh:targetClass :C ; sh:minCout 1 .",
            },
            "b.ttl: shape <http://e/T>: sh:minCout",
        ),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    (tmp_path / "shapes").mkdir()
    for name, text in files.items():
        (tmp_path / "shapes" / name).write_text(text)
    (tmp_path / "lamplighter.toml").write_text('[shacl]\nshapes = ["shapes/*"]\n')
    with pytest.raises(ConfigurationError) as caught:
        Configuration.read(tmp_path / "lamplighter.toml", None)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["", "/", "a**b.ttl", "\x00"])
def test_a_name_that_no_file_can_have_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"shacl\.shapes: "):
        shape_sources(ShaclSettings(shapes=[name]), tmp_path)


def test_files_may_refer_to_shapes_of_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.ttl").write_text(f"{PREFIXES} :S sh:targetClass :Lamp ; sh:property :P , _:b . _:b sh:path :x .")
    (tmp_path / "b.ttl").write_text(f"{PREFIXES} :P sh:path :level ; sh:node _:b . _:b sh:minLength 1 .")
    assert shape_sources(ShaclSettings(shapes=["*.ttl"]), tmp_path) is not None


async def test_shapes_of_a_graph_change_while_the_gateway_runs(tmp_path: Path) -> None:
    settings = Settings(shacl=ShaclSettings(graph="http://e/shapes"))
    shape = "GRAPH :shapes { :S sh:targetClass :Lamp ; sh:property :P . :P sh:path :level ; sh:minCount 1 }"
    async with recovered_runner(tmp_path, settings=settings) as runner:
        await update(runner, BAD)
        await update(runner, f"{PREFIXES} INSERT DATA {{ {shape} }}")
        assert violations(runner) == {"b MinCount"}
        with pytest.raises(ShapesViolatedError):
            await update(runner, f"{PREFIXES} INSERT DATA {{ :c a :Lamp }}")
        with pytest.raises(InvalidShapesError):
            await update(runner, f"{PREFIXES} INSERT DATA {{ GRAPH :shapes {{ :S sh:node :S }} }}")
    async with recovered_runner(tmp_path, settings=settings) as runner:
        assert violations(runner) == {"b MinCount"}
        await update(runner, f"{PREFIXES} DELETE DATA {{ GRAPH :shapes {{ :P sh:minCount 1 }} }}")
        assert violations(runner) == set()
        await update(runner, f"{PREFIXES} INSERT DATA {{ :c a :Lamp }}")
