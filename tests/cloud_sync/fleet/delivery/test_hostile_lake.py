"""Manifests of `matches` and records of subscriptions that are damaged: `deliver` and `match` name them."""

import json
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.matcher import Matcher
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.engine.errors import ConfigurationError
from tests.cloud_sync.fleet.delivery.made_up_matches import lines, match, write_batch

SOUND = {"id": "000000000002", "files": ["batch=000000000002/part-0.parquet"], "rows": 1}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "out").mkdir()
    lake = Lake(str(tmp_path / "lake"))
    SubscriptionRegistry(lake).add("hot", "ASK {?s ?p ?o}", deliver=[FilesSink(url=str(tmp_path / "out"))])
    for number in (1, 2, 3):
        write_batch(lake, number, [match(seq=number)])
    return lake


def _delivered(tmp_path: Path) -> list[int]:
    return [one["sequence"] for one in lines(tmp_path / "out" / "hot")]


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"\xff\x00",
        b'{"id":' + b"[" * 100_000,
        json.dumps(SOUND)[:-9].encode(),
        json.dumps({**SOUND, "rows": "many"}).encode(),
        json.dumps({**SOUND, "id": "000000000009"}).encode(),
        json.dumps({**SOUND, "files": ["../../../etc/passwd"]}).encode(),
        json.dumps({**SOUND, "files": ["batch=000000000002/../../records/hot.json"]}).encode(),
        json.dumps({**SOUND, "files": ["batch=000000000002/gone.parquet"]}).encode(),
        json.dumps({**SOUND, "files": ["batch=000000000002/\u0000.parquet"]}).encode(),
    ],
)
def test_a_damaged_batch_is_named_and_delivery_continues_when_it_is_mended(
    lake: Lake, tmp_path: Path, manifest: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(lake.path("subscriptions", "matches", "_batches", "000000000002.json"))
    sound = path.read_bytes()
    path.write_bytes(manifest)
    command = ["subscriptions", "deliver", lake.url, "--once"]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "000000000002" in said
    assert "remove" in said
    assert _delivered(tmp_path) == [1, 3]
    assert main(["subscriptions", "status", lake.url]) == 1
    told = capsys.readouterr()
    assert "batch 000000000002 not read" in told.out
    assert "000000000002" in told.err
    path.write_bytes(sound)
    assert main(command) == 0
    assert _delivered(tmp_path) == [1, 2, 3]
    assert main(["subscriptions", "status", lake.url]) == 0


@pytest.mark.parametrize("name", ["abc", "999999999999", "1", "compact-1", "\u0663" * 12])
def test_a_name_that_is_no_number_is_refused_by_the_matcher(lake: Lake, name: str) -> None:
    content = json.dumps({**SOUND, "id": name}).encode()
    lake.write(content, "subscriptions", "matches", "_batches", f"{name}.json")
    with pytest.raises(ConfigurationError, match="not a batch of matches, whose names are numbers; remove it"):
        Matcher(None, lake).advance()  # type: ignore[arg-type]


def test_broken_records_and_links_in_a_circle_hide_no_other(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(lake.path("subscriptions", "records"))
    (folder / "circle.json").symlink_to(folder / "circle.json")
    (folder / "deep.json").write_bytes(b'{"query":' + b"[" * 100_000)
    (folder / "..json").write_bytes(b"{}")
    (folder / "gone.json").symlink_to(folder / "nothing")
    (folder / "large.json").write_bytes(b" " * 2_000_000)
    assert main(["subscriptions", "deliver", lake.url, "--once"]) == 1
    said = capsys.readouterr().err
    for name in ("circle.json: its links lead in a circle", "deep.json: not a subscription", "large.json: not a"):
        assert name in said
    assert _delivered(tmp_path) == [1, 2, 3]
