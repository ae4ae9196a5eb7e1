"""The simulated disk: what it leaves after a cut is what a real one may leave, and what it holds is never lost."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lamplighter.gateway.disk import Disk
from tests.support.simulated_disk import PowerCut, SimulatedDisk, scratch

OLD, NEW = b"old" * 700, b"new" * 900


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


def left(
    tmp_path: Path, work: Callable[[SimulatedDisk, Path], None], *, times: int = 200, **files: bytes
) -> list[dict[str, bytes]]:
    """What `times` cuts leave after a work in a folder that has these files and `folder/`: name -> content."""
    found = []
    for seed in range(times):
        base = tmp_path / str(seed)
        for name, content in files.items():
            (base / "before").mkdir(parents=True, exist_ok=True)
            (base / "before" / name).write_bytes(content)
        disk = SimulatedDisk(base / "before")
        work(disk, disk.root)
        disk.check()
        disk.cut(random.Random(seed), base / "after")
        after = base / "after"
        found.append({str(p.relative_to(after)): p.read_bytes() for p in after.rglob("*") if p.is_file()})
    return found


def put(disk: Disk, path: Path, data: bytes, *, sync: bool) -> None:
    file = disk.create(path)
    disk.write_all(file, data)
    if sync:
        disk.sync(file)
    disk.close(file)


def test_rename_without_sync_may_leave_an_empty_file_under_the_new_name(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        put(disk, root / "temporary", NEW, sync=False)
        disk.rename(root / "temporary", root / "a")
        disk.sync_folder(root)

    found = {files["a"] for files in left(tmp_path, work, a=OLD)}
    assert {b"", NEW} <= found
    assert OLD not in found
    assert any(len(content) == len(NEW) and content != NEW for content in found), "torn"


def test_write_sync_rename_without_the_folders_sync_is_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        put(disk, root / "temporary", NEW, sync=True)
        disk.rename(root / "temporary", root / "a")

    found = left(tmp_path, work, a=OLD)
    assert {files["a"] for files in found} == {OLD, NEW}
    assert {frozenset(files) for files in found} == {frozenset({"a"}), frozenset({"a", "temporary"})}


def test_write_sync_rename_sync_folder_is_the_new_file(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        put(disk, root / "temporary", NEW, sync=True)
        disk.rename(root / "temporary", root / "a")
        disk.sync_folder(root)

    assert all(files == {"a": NEW} for files in left(tmp_path, work, a=OLD))


def test_synced_content_of_a_file_whose_name_is_not_synced_may_be_missing(tmp_path: Path) -> None:
    found = left(tmp_path, lambda disk, root: put(disk, root / "a", NEW, sync=True))
    assert {files.get("a") for files in found} == {None, NEW}


def test_a_new_folder_is_there_for_sure_after_a_sync_of_the_one_above(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        disk.make_folder(root / "folder")
        put(disk, root / "folder" / "a", NEW, sync=True)
        disk.sync_folder(root / "folder")

    def whole(disk: SimulatedDisk, root: Path) -> None:
        work(disk, root)
        disk.sync_folder(root)

    assert {files.get("folder/a") for files in left(tmp_path / "1", work)} == {None, NEW}
    assert {files.get("folder/a") for files in left(tmp_path / "2", whole)} == {NEW}


def test_what_was_appended_since_the_sync_is_torn_at_sectors_and_nothing_before_it_is_touched(tmp_path: Path) -> None:
    first, second = bytes(range(1, 251)) * 5, b"s" * 3000

    def work(disk: SimulatedDisk, root: Path) -> None:
        file = disk.create(root / "a")
        disk.sync_folder(root)
        disk.write_all(file, first)
        disk.sync(file)
        disk.write_all(file, second)
        disk.close(file)

    found = [files["a"] for files in left(tmp_path, work)]
    assert all(content.startswith(first) for content in found)
    assert {first, first + second} <= set(found)
    short = {content for content in found if len(content) < len(first + second)}
    holes = {c for c in found if len(c) == len(first + second) and c.endswith(b"s") and b"\0" * 400 in c}
    assert short - {first}, "a part was written"
    assert holes, "the middle is missing, and the end is there"
    for content in found:
        for start in range(0, len(content), 512):
            tail = content[max(start, len(first)) : start + 512].rstrip(b"\0")
            kinds = len(set(tail))
            assert kinds != 2 or b"s" not in tail, "a sector holds either what was written or what was there"


def test_a_removed_file_may_come_back_unless_its_folder_was_synced(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        disk.remove(root / "a")

    def whole(disk: SimulatedDisk, root: Path) -> None:
        work(disk, root)
        disk.sync_folder(root)

    assert {files.get("a") for files in left(tmp_path / "1", work, a=OLD)} == {None, OLD}
    assert {files.get("a") for files in left(tmp_path / "2", whole, a=OLD)} == {None}


def test_removals_that_were_not_synced_happen_in_any_order(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        disk.remove(root / "a")
        disk.remove(root / "b")

    found = {frozenset(files) for files in left(tmp_path, work, a=OLD, b=OLD)}
    assert found == {frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")}


def test_what_was_cut_off_may_be_there_again_until_the_file_is_synced(tmp_path: Path) -> None:
    def cut_off(sync: bool) -> Callable[[SimulatedDisk, Path], None]:
        def work(disk: SimulatedDisk, root: Path) -> None:
            file = disk.create(root / "a")
            disk.sync_folder(root)
            disk.write_all(file, OLD)
            disk.sync(file)
            disk.truncate(file, 10)
            disk.write_all(file, b"more")
            if sync:
                disk.sync(file)
            disk.close(file)

        return work

    found = {files["a"] for files in left(tmp_path / "1", cut_off(False))}
    assert {OLD, OLD[:10], OLD[:10] + b"more"} <= found
    assert {files["a"] for files in left(tmp_path / "2", cut_off(True))} == {OLD[:10] + b"more"}


def test_a_block_that_was_never_written_may_show_a_file_that_was_removed(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        put(disk, root / "b", NEW, sync=True)
        disk.remove(root / "b")
        put(disk, root / "a", b"s" * len(NEW), sync=False)
        disk.sync_folder(root)

    found = [files["a"] for files in left(tmp_path, work)]
    assert any(content[:512] == NEW[:512] for content in found)


def test_a_failed_sync_leaves_the_changes_in_doubt_for_ever(tmp_path: Path) -> None:
    def work(disk: SimulatedDisk, root: Path) -> None:
        file = disk.create(root / "a")
        disk.sync_folder(root)
        disk.write_all(file, NEW)
        disk.fail_after(1, errno.EIO, forever=False)
        with pytest.raises(OSError, match="Input/output"):
            disk.sync(file)
        disk.sync(file)
        disk.close(file)

    assert len({files["a"] for files in left(tmp_path, work)}) > 2


@pytest.mark.parametrize("old", [None, OLD], ids=["new", "replaced"])
def test_write_file_holds_wherever_the_power_is_cut(tmp_path: Path, old: bytes | None) -> None:
    """Before it returns the old file or the new one, whole; afterwards the new one."""
    places = set()
    for seed in range(500):
        chance = random.Random(seed)
        root = tmp_path / str(seed)
        root.mkdir()
        if old is not None:
            (root / "a").write_bytes(old)
        disk = SimulatedDisk(root)
        disk.stop_at(chance.randint(1, 8))
        done = False
        try:
            disk.write_file(root / "a", (NEW[start : start + 1000] for start in range(0, len(NEW), 1000)))
            done = True
        except PowerCut:
            places.add(disk.stopped_in.split()[0])
        disk.cut(chance, tmp_path / f"{seed}-after")
        path = tmp_path / f"{seed}-after" / "a"
        found = path.read_bytes() if path.exists() else None
        assert found == NEW if done else found in (old, NEW), seed
    assert places == {"create", "write", "sync", "rename", "sync_folder"}


def test_a_full_disk_takes_a_part_and_then_nothing_until_there_is_room(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path)
    file = disk.create(tmp_path / "a")
    disk.fail_after(2, errno.ENOSPC)
    assert disk.write(file, b"12345678") == 8
    with pytest.raises(OSError, match="No space"):
        disk.write_all(file, b"abcdefgh")
    assert (tmp_path / "a").read_bytes() == b"12345678abcd"
    with pytest.raises(OSError, match="No space"):
        disk.create(tmp_path / "b")
    disk.truncate(file, 8)
    disk.sync(file)
    assert disk.failures == 2
    disk.heal()
    disk.write_all(file, b"ABCD")
    disk.close(file)
    assert (tmp_path / "a").read_bytes() == b"12345678ABCD"
    disk.check()


def test_a_disk_that_is_read_only_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(OLD)
    disk = SimulatedDisk(tmp_path)
    disk.fail_after(1, errno.EROFS)
    for change in (
        lambda: disk.create(tmp_path / "b"),
        lambda: disk.remove(tmp_path / "a"),
        lambda: disk.rename(tmp_path / "a", tmp_path / "b"),
        lambda: disk.make_folder(tmp_path / "folder"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            change()
    disk.sync_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    disk.check()


def test_after_the_cut_everything_is_refused(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path)
    file = disk.create(tmp_path / "a")
    disk.stop_at(2)
    disk.write(file, b"1")
    with pytest.raises(PowerCut):
        disk.write(file, b"2")
    for work in (lambda: disk.write(file, b"3"), lambda: disk.sync(file), lambda: disk.sync_folder(tmp_path)):
        with pytest.raises(PowerCut):
            work()
    disk.close(file)


def test_a_change_by_another_way_is_told(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path)
    put(disk, tmp_path / "a", OLD, sync=True)
    (tmp_path / "lock").touch()
    disk.check("lock")
    with pytest.raises(AssertionError, match="lock"):
        disk.check()
    (tmp_path / "a").write_bytes(NEW)
    with pytest.raises(AssertionError, match="another way"):
        disk.check("lock")
