"""The simulated fleet is what real gateways would ship, and its truth is true."""

import hashlib
from pathlib import Path

import msgspec
import pyoxigraph as ox
import pytest

from lamplighter.adapters.model.descriptions import description_update
from lamplighter.adapters.model.latest import reading_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.demo.fleet.simulate import Mishaps
from lamplighter.demo.fleet.simulated_gateway import BASE
from lamplighter.demo.fleet.simulated_machine import FleetPlan
from lamplighter.demo.fleet.truth import read_truth
from lamplighter.engine import Engine
from lamplighter.engine.change_log import Seal, segment_name
from lamplighter.engine.terms import iri
from lamplighter.ontology import vocabulary as v
from tests.support.small_lake import SmallFleet, records_of, small_fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> SmallFleet:
    return small_fleet(tmp_path_factory.mktemp("fleet"))


def test_the_deltas_are_net_and_lead_to_the_states_that_are_said_to_be_true(fleet: SmallFleet) -> None:
    for gateway, truth in fleet.truths.items():
        store: set[str] = set()
        states = {(state.epoch, state.seq): state for state in truth.states}
        seen = 0
        for record in fleet.records(gateway):
            removed, added, kept = ({quad.to_nquads() for quad in quads} for quads in (record.d, record.a, record.k))
            assert removed <= store and kept <= store and not added & store
            store = (store - removed) | added
            if (state := states.get((record.epoch, record.seq))) is not None:
                # Parsed and written by another library, so that terms are canonical and lines are N-Quads.
                parsed = ox.parse("\n".join(store), ox.RdfFormat.N_QUADS)
                lines = sorted(f"{quad} .\n" for quad in parsed)
                assert (len(lines), hashlib.sha256("".join(lines).encode()).hexdigest()) == (state.quads, state.sha256)
                seen += 1
        assert seen == len(states) >= 2


@pytest.mark.parametrize("kind", ["presence", "temperature"])
def test_readings_are_what_the_engine_makes_of_the_adapter_s_updates(fleet: SmallFleet, kind: str) -> None:
    gateway = next(name for name, truth in fleet.truths.items() if truth.model == "latest")
    mine = [record for record in fleet.records(gateway) if record.cause and record.cause.id == f"street/1/{kind}"]
    tail = f"sensor/1/{kind};lighting:{kind};post/1"
    stream = Stream(
        iri=iri(f"{BASE}stream/{tail}"),
        observation=iri(f"{BASE}observation/{tail}"),
        sensor=iri(f"{BASE}sensor/1/{kind}"),
        property=iri(f"{v.LIGHTING}{kind}"),
        feature=iri(f"{BASE}post/1"),
        platform=iri(f"{BASE}post/1"),
        unit=iri(f"{v.UNIT}DEG_C") if kind == "temperature" else None,
        topic=f"street/1/{kind}",
        label=f"{kind} at post 1",
        rule="",
    )
    engine = Engine()
    try:
        for record in mine[:12]:
            said = {quad.p: quad.o for quad in (*record.a, *record.k)}
            if iri(v.HAS_SIMPLE_RESULT) in said:
                reading = Reading(stream, said[iri(v.HAS_SIMPLE_RESULT)], said[iri(v.RESULT_TIME)], retained=False)
                commit = engine.update(reading_update(reading))
            else:
                commit = engine.update(description_update(stream))
            # What other streams said of the same post was there before, or not; what is asserted is the same.
            assert set(commit.removed) == set(record.d)
            assert set(commit.added) | set(commit.delta.kept) == set(record.a) | set(record.k)
            if iri(v.HAS_SIMPLE_RESULT) in said:
                assert set(commit.added) == set(record.a)
    finally:
        engine.close()


def test_segments_are_sealed_in_a_chain_and_say_what_became_of_them(fleet: SmallFleet) -> None:
    fates = set()
    for gateway, truth in fleet.truths.items():
        committed = 0
        for segment in truth.segments:
            name = segment_name(segment.name)
            assert name is not None
            good = fleet.folder / ("shipped" if segment.fate == "shipped" else "late") / gateway / segment.name
            seal = msgspec.json.decode(
                good.with_name(good.name.replace(".ndjson.zst", ".json")).read_bytes(), type=Seal
            )
            data = good.read_bytes()
            assert (seal.sha256, seal.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
            records = records_of(good)
            assert [record.seq for record in records] == list(range(segment.first, segment.last + 1))
            assert (seal.count, seal.first, seal.last) == (len(records), segment.first, segment.last)
            committed += len(records)
            fates.add(segment.fate)
            if segment.fate == "damaged":
                assert (
                    hashlib.sha256((fleet.folder / "shipped" / gateway / segment.name).read_bytes()).hexdigest()
                    != seal.sha256
                )
            if segment.resent is not None:
                fates.add("resent")
                assert records_of(fleet.folder / "shipped" / gateway / segment.resent)[-1].seq >= segment.first
        assert committed == truth.records
    assert fates == {"shipped", "late", "damaged", "resent"}


def test_the_same_seed_gives_the_same_fleet_and_another_one_does_not(tmp_path: Path) -> None:
    plan = FleetPlan(0.02, posts=1)
    hashes = [
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("*")) if path.is_file()]
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
        if small_fleet(tmp_path / name, 2, plan, Mishaps(), seed)
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_missing_segments_are_nowhere_and_a_snapshot_follows(tmp_path: Path) -> None:
    fleet = small_fleet(tmp_path, 1, FleetPlan(0.2, posts=2), Mishaps(missing=0.5))
    [truth] = fleet.truths.values()
    missing = [segment for segment in truth.segments[:-1] if segment.fate == "missing"]
    assert missing
    for segment in missing:
        assert not list(tmp_path.rglob(segment.name))
    snapshots = [path.name for path in (tmp_path / "shipped" / truth.gw / "snapshots").glob("*.zst")]
    assert f"1-{missing[0].last:012d}.ndjson.zst" in snapshots


def test_the_command_writes_truth_for_each_gateway_and_refuses_a_full_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", str(tmp_path / "out"), "--gateways", "2", "--days", "0.01", "--processes", "1"]
    assert main(arguments) == 0
    out, progress = capsys.readouterr()
    truths = [read_truth(path.read_bytes()) for path in sorted((tmp_path / "out" / "truth").iterdir())]
    assert [truth.gw for truth in truths] == ["gw-000001", "gw-000002"]
    assert out.startswith(f"2 gateways: {sum(truth.records for truth in truths):,} records")
    assert "2/2 gateways" in progress
    assert main(arguments) == 2
    assert "not empty" in capsys.readouterr().err
