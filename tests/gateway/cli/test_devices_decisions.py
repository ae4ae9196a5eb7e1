"""What `devices adopt` and `devices ignore` print, with the engine in this process instead of a running gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.engine import Engine
from lamplighter.engine.terms import Term
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.cli.endpoint import RunningDataset
from lamplighter.gateway.settings import GatewaySettings
from tests.support.announcements import zigbee_house

COLUMNS = ("announcement", "adoption", "name", "area")
REGISTRY = Registry(GatewaySettings().base_iri)
LAMP, MOTION = (
    next(one for one in found.devices if one.name == f"room1/{name}")
    for found in [Announcements(["zigbee2mqtt"], devices_max=100).read("default", "z/bridge/devices", zigbee_house(1))]
    for name in ("lamp", "motion")
)


@dataclass
class Dataset:
    """meanwhile: what happens between the command's query and its first update."""

    engine: Engine = field(default_factory=Engine)
    meanwhile: Callable[[], None] = lambda: None

    def rows(self, query: str) -> list[tuple[Term | None, ...]]:
        return [tuple(row.get(name) for name in COLUMNS) for row in self.engine.query(query)]

    def update(self, text: str) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.engine.update(text)


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    found = Dataset()
    monkeypatch.setattr(RunningDataset, "rows", lambda self, query: found.rows(query))
    monkeypatch.setattr(RunningDataset, "update", lambda self, text: found.update(text))
    for device in (LAMP, MOTION):
        found.update(REGISTRY.announced(None, device, "ask") or "")
    return found


def run(folder: Path, *words: str) -> int:
    config = folder / "lamplighter.toml"
    config.write_text("")
    return main(["devices", *words, "--config", str(config)])


def renamed(dataset: Dataset) -> None:
    [entry] = [one for one in map(REGISTRY.entry, dataset.rows(REGISTRY.query)) if one.identity == LAMP.identity]
    dataset.engine.update(REGISTRY.announced(entry, msgspec.structs.replace(LAMP, name="other"), "ask") or "")


@pytest.mark.parametrize(("words", "state"), [(("adopt", "--all"), "adopted"), (("ignore", "room1/lamp"), "ignored")])
def test_a_device_that_announced_itself_in_another_way_meanwhile_is_named(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], state: str
) -> None:
    dataset.meanwhile = lambda: renamed(dataset)
    assert run(tmp_path, *words) == 1
    told = capsys.readouterr()
    assert f"{LAMP.identity} is still proposed: it changed meanwhile; try again" in told.err
    assert f"{state} {LAMP.identity}" not in told.out
    assert (f"adopted {MOTION.identity}" in told.out) == (state == "adopted"), "the others are adopted"
    assert run(tmp_path, words[0], LAMP.identity) == 0
    assert f"{state} {LAMP.identity}, other" in capsys.readouterr().out


def test_a_device_that_was_removed_meanwhile_is_named(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def removed() -> None:
        dataset.engine.update("CLEAR ALL")

    dataset.meanwhile = removed
    assert run(tmp_path, "adopt", LAMP.identity) == 1
    assert f"{LAMP.identity} is not there any more" in capsys.readouterr().err


def test_a_removal_that_the_dataset_refused_is_not_called_one(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sensor = REGISTRY.sensor_iri(MOTION.sensors[0])
    observed = "http://www.w3.org/ns/sosa/madeBySensor"

    def adopted() -> None:
        entries = [one for one in map(REGISTRY.entry, dataset.rows(REGISTRY.query)) if one.identity == MOTION.identity]
        dataset.engine.update(REGISTRY.adoption(entries[0]))
        dataset.engine.update(f"INSERT DATA {{ <http://e/o> <{observed}> {sensor} }}")

    dataset.meanwhile = adopted
    assert run(tmp_path, "remove", MOTION.identity, "--yes") == 1
    told = capsys.readouterr()
    assert f"{MOTION.identity} is still adopted: it changed meanwhile; try again" in told.err and not told.out
    assert dataset.engine.query(f"ASK {{ ?o <{observed}> {sensor} }}"), "nothing of it is removed"
    dataset.meanwhile = lambda: renamed(dataset)
    assert run(tmp_path, "remove", LAMP.identity, "--yes") == 1
    for identity in (MOTION.identity, LAMP.identity):
        assert run(tmp_path, "remove", identity, "--yes") == 0
        assert f"removed {identity}" in capsys.readouterr().out
    assert dataset.rows(REGISTRY.query) == []
    assert not dataset.engine.query(f"ASK {{ ?o <{observed}> {sensor} }}")
