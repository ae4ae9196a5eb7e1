"""Nothing is read or written through a symbolic link, whoever puts one where gateways and collectors meet."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lamplighter.cloud_sync.destinations import Destination, LocalFolder, destination
from lamplighter.cloud_sync.destinations.base import PART
from lamplighter.cloud_sync.files import open_plain, opened_folder, write_whole
from lamplighter.cloud_sync.fleet.collection.collector import CollectionSummary, Collector
from lamplighter.cloud_sync.settings import SyncSettings
from lamplighter.cloud_sync.shipper import Shipper, alone
from lamplighter.engine.change_log import SUFFIX
from lamplighter.engine.errors import GatewayError, UpstreamError
from tests.support.shipped_logs import DataFolder, landed_records, memory_folder, records_of, segments

LOG = segments("h", 1, [3, 2])
OTHER = segments("zz", 1, [2])
SECRET = b"the secret of another user"


class Place:
    """A source and a lake, and a file and a folder that are none of the gateways' business."""

    def __init__(self, folder: Path) -> None:
        self.source, self.lake, self.elsewhere = folder / "source", folder / "lake", folder / "elsewhere"
        self.source.mkdir()
        self.elsewhere.mkdir()
        self.secret = self.elsewhere / "secret"
        self.secret.write_bytes(SECRET)
        self.gateway = self.source / "h"
        for one in LOG:
            one.put(self.gateway)
        OTHER[0].put(self.source / "zz")

    def collect(self, source: LocalFolder | None = None) -> tuple[CollectionSummary, list[str]]:
        with Collector(source or LocalFolder(self.source), self.lake) as collector:
            return collector.collect(), collector.problems

    def check(self) -> None:
        """Nothing came from elsewhere, and nothing went there; the other gateway has landed."""
        assert {path.name for path in self.elsewhere.iterdir()} == {"secret"}
        assert self.secret.read_bytes() == SECRET
        for path in (*self.lake.rglob("*"), *self.source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                assert SECRET not in path.read_bytes(), path
        assert records_of(OTHER)[0] in landed_records(self.lake)


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_folder() as folder:
        yield Place(folder)


# --- the collector's source ---


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _fifo(path: Path, _: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _socket(path: Path, _: Path) -> None:
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("make", [_link, _fifo, _socket])
@pytest.mark.parametrize("suffix", [SUFFIX, ".json"])
def test_an_object_that_is_no_file_is_told_and_not_read(
    place: Place, make: Callable[[Path, Path], None], suffix: str
) -> None:
    make(place.gateway / f"{LOG[0].stem}{suffix}", place.secret)
    summary, problems = place.collect()
    assert (summary["landed"], summary["quarantined"], summary["failed"]) == (2, 0, 1)
    told = {_link: "a symbolic link", _fifo: "not a regular file", _socket: f"{LOG[0].stem}{suffix}"}[make]
    assert told in problems[0]
    place.check()


def test_a_link_as_the_folder_of_a_gateway_is_told_and_not_followed(place: Place) -> None:
    for one in LOG:
        one.put(place.elsewhere / "h")
    for path in place.gateway.iterdir():
        path.unlink()
    place.gateway.rmdir()
    place.gateway.symlink_to(place.elsewhere / "h")
    before = {path.name for path in (place.elsewhere / "h").iterdir()}
    summary, problems = place.collect()
    assert (summary["landed"], summary["failed"]) == (1, 1)
    assert f"{place.gateway}: a symbolic link, which is not followed here; remove it" in problems[0]
    assert {path.name for path in (place.elsewhere / "h").iterdir()} == before


def test_a_link_as_the_folder_of_snapshots_is_not_followed(place: Place) -> None:
    (place.gateway / "snapshots").symlink_to(place.elsewhere)
    summary, problems = place.collect()
    assert (summary["landed"], summary["failed"]) == (3, 1)
    assert "snapshots: a symbolic link" in problems[0]
    place.check()


class Swapped(LocalFolder):
    """Between listing and opening somebody else is quicker."""

    def __init__(self, path: Path, swap: Callable[[], None]) -> None:
        super().__init__(path)
        self._swap = swap

    def open(self, name: str) -> AbstractContextManager[Iterator[bytes] | None]:
        if name.startswith("h/") and name.endswith(SUFFIX):
            self._swap()
        return super().open(name)


def test_an_object_that_is_swapped_for_a_link_after_the_listing_is_not_read(place: Place) -> None:
    path = place.gateway / f"{LOG[0].stem}{SUFFIX}"
    summary, _ = place.collect(Swapped(place.source, lambda: _link(path, place.secret)))
    assert summary["failed"] == 1
    place.check()


def test_a_folder_that_is_swapped_for_a_link_after_the_listing_is_not_followed(place: Place) -> None:
    (place.elsewhere / f"{LOG[0].stem}{SUFFIX}").write_bytes(SECRET)

    def swap() -> None:
        if not place.gateway.is_symlink():
            place.gateway.rename(place.gateway.with_name(".aside"))
            place.gateway.symlink_to(place.elsewhere)

    summary, problems = place.collect(Swapped(place.source, swap))
    assert summary["failed"] >= 1
    assert "a symbolic link" in problems[0]
    (place.elsewhere / f"{LOG[0].stem}{SUFFIX}").unlink()
    place.check()


@pytest.mark.parametrize("name", [f"{LOG[0].stem}.landed.json", f"{LOG[0].stem}.landed.json{PART}"])
def test_an_answer_is_not_written_through_a_link(place: Place, name: str) -> None:
    _link(place.gateway / name, place.secret)
    place.collect()
    place.collect()
    place.check()
    assert landed_records(place.lake) == records_of([*LOG, *OTHER])


# --- the lake ---


@pytest.mark.parametrize("name", ["segments", "segments/h", "incoming", "quarantine"])
def test_a_link_in_the_lake_is_told_and_nothing_lands_elsewhere(place: Place, name: str) -> None:
    aim = place.lake.with_name("aim")
    aim.mkdir()
    (place.lake / name).parent.mkdir(parents=True, exist_ok=True)
    (place.lake / name).symlink_to(aim)
    (place.gateway / f"{LOG[1].stem}{SUFFIX}").write_bytes(b"noise")
    with contextlib.suppress(UpstreamError):
        _, problems = place.collect()
        assert any("a symbolic link" in problem for problem in problems)
    assert list(aim.iterdir()) == []
    (place.lake / name).unlink()
    place.collect()
    assert records_of(LOG)[0] in landed_records(place.lake)
    place.check()


def test_a_link_in_the_place_of_the_lock_is_refused(place: Place) -> None:
    place.lake.mkdir()
    (place.lake / "collector.lock").symlink_to(place.elsewhere / "new")
    with pytest.raises(GatewayError):
        place.collect()
    assert not (place.elsewhere / "new").exists()


def test_what_was_left_in_the_place_of_an_incoming_file_is_not_written_into(place: Place) -> None:
    (place.lake / "incoming").mkdir(parents=True)
    for number in range(9):
        (place.lake / "incoming" / f"{number}{PART}").symlink_to(place.secret)
    place.collect()
    place.check()


# --- the shipper ---


@pytest.fixture
def data(place: Place) -> DataFolder:
    found = DataFolder(place.source.parent / "data", "h")
    found.add(*LOG)
    return found


def _ship(data: DataFolder, to: Destination) -> None:
    Shipper(data.path, to, SyncSettings(destination=to.url)).run()


def test_the_shipper_does_not_write_through_a_link_as_its_folder(place: Place, data: DataFolder) -> None:
    to = place.source.parent / "to"
    to.mkdir()
    (to / "h").symlink_to(place.elsewhere)
    with pytest.raises(UpstreamError, match="a symbolic link, which is not followed here; remove it"):
        _ship(data, LocalFolder(to))
    assert {path.name for path in place.elsewhere.iterdir()} == {"secret"}


@pytest.mark.parametrize("name", [f"{LOG[0].stem}{SUFFIX}{PART}", f"{LOG[0].stem}.json{PART}"])
def test_the_shipper_does_not_write_through_a_link_as_a_part(place: Place, data: DataFolder, name: str) -> None:
    to = place.source.parent / "to"
    (to / "h").mkdir(parents=True)
    (to / "h" / name).symlink_to(place.secret)
    _ship(data, LocalFolder(to))
    assert place.secret.read_bytes() == SECRET
    assert (to / "h" / f"{LOG[0].stem}{SUFFIX}").read_bytes() == LOG[0].data


@pytest.mark.parametrize("target", ["secret", "none"])
def test_the_shipper_does_not_take_a_link_for_an_object(place: Place, data: DataFolder, target: str) -> None:
    to = place.source.parent / "to"
    (to / "h").mkdir(parents=True)
    (to / "h" / f"{LOG[0].stem}{SUFFIX}").symlink_to(place.elsewhere / target)
    with pytest.raises(UpstreamError, match="a symbolic link"):
        _ship(data, LocalFolder(to))
    assert {path.name for path in place.elsewhere.iterdir()} == {"secret"}


def test_the_shipper_does_not_ship_what_a_link_names(place: Place, data: DataFolder) -> None:
    to = place.source.parent / "to"
    to.mkdir()
    _link(data.path / "log" / str(LOG[0].name), place.secret)
    with pytest.raises(UpstreamError, match="a symbolic link"):
        _ship(data, LocalFolder(to))
    assert not [path for path in to.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def test_the_shipper_s_own_files_are_not_written_through_links(place: Place, data: DataFolder) -> None:
    for name in ("sync.json.sync-part", "shipped.json.sync-part"):
        (data.path / name).symlink_to(place.secret)
    to = place.source.parent / "to"
    to.mkdir()
    _ship(data, LocalFolder(to))
    (data.path / "sync.lock").symlink_to(place.elsewhere / "new")
    with pytest.raises(GatewayError), alone(data.path):
        pass
    assert place.secret.read_bytes() == SECRET
    assert {path.name for path in place.elsewhere.iterdir()} == {"secret"}


# --- the functions ---


def test_the_folder_that_the_operator_names_may_be_a_link(place: Place) -> None:
    (place.source.parent / "mounted").symlink_to(place.source)
    to = destination(str(place.source.parent / "mounted"), {})
    assert to.folders() == ["h", "zz"]
    assert len(to.entries("h")) == 4
    to.put("new/one.json", b"1")
    assert to.get("new/one.json") == b"1"


def test_a_url_of_fsspec_s_local_files_is_a_folder_too(place: Place) -> None:
    assert isinstance(destination(f"local://{place.source}", {}), LocalFolder)


def test_a_folder_is_opened_component_by_component(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "link").symlink_to("inner")
    with opened_folder(tmp_path, ["real", "inner"]):
        pass
    for parts in (["real", "link"], ["real", "link", "deeper"]):
        with (
            pytest.raises(UpstreamError, match="real/link: a symbolic link"),
            opened_folder(tmp_path, parts, make=True),
        ):
            pass
    with pytest.raises(FileNotFoundError), opened_folder(tmp_path, ["none"]):
        pass


def test_a_socket_and_a_device_are_not_opened(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            open_plain(tmp_path / "socket")
    with pytest.raises(UpstreamError, match="/dev/null: not a regular file"):
        open_plain(Path("/dev/null"))


def test_a_whole_file_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    (tmp_path / "file").symlink_to("other")
    write_whole(tmp_path / "file", b"new")
    assert ((tmp_path / "file").read_bytes(), (tmp_path / "other").read_text()) == (b"new", "other")
