"""Contexts on disk: no number is used twice and no replay window is lost, whatever ends a process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.coap import context_files
from lamplighter.adapters.coap.context_files import (
    CHUNK,
    NUMBERS_MAX,
    Key,
    Numbers,
    contexts_folder,
    make_context,
    read_key,
)
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from tests.support.amounts import Amounts
from tests.support.oscore_devices import crashed
from tests.support.places import ROOT
from tests.support.simulated_disk import PowerCut, SimulatedDisk, scratch
from tests.support.tables import each_row
from tests.support.units import UNITS

HALL = "192.168.7.20"
CURE = "lamplighter devices key hall --address HOST --replace"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_context(tmp_path / "contexts", "hall", HALL)
    return tmp_path / "contexts"


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[Contexts]:
    found = Contexts.load(folder)
    try:
        yield found
    finally:
        found.close()


def numbers(folder: Path, later: Callable[[Callable[[], None]], object] = lambda write: write()) -> Numbers:
    return Numbers(folder, context_files.read_sequence(folder), later)


def stored(folder: Path) -> Any:
    return json.loads((folder / "sequence.json").read_text())


# --- making ---


def test_only_the_owner_can_read_a_context(folder: Path) -> None:
    with loaded(folder) as found:
        found.named("hall").new_sequence_number()
        for place, names, _ in os.walk(folder):
            for name in names:
                assert stat.S_IMODE((Path(place) / name).stat().st_mode) == 0o700
        files = {path for path in folder.rglob("*") if path.is_file()}
        assert {path.name for path in files} == {"settings.json", "secret.json", "sequence.json", "lock"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_device_gets_the_other_half(tmp_path: Path) -> None:
    half = make_context(tmp_path, "hall", HALL)
    key = read_key(tmp_path / "hall")
    assert half == {
        "sender-id_hex": key.recipient_id.hex(),
        "recipient-id_hex": key.sender_id.hex(),
        "secret_hex": key.secret.hex(),
        "salt_hex": key.salt.hex(),
    }
    assert (key.name, key.address, len(key.secret), len(key.salt)) == ("hall", HALL, 16, 8)


def test_each_device_has_an_identifier_of_its_own(tmp_path: Path) -> None:
    keys = []
    for number in range(12):
        make_context(tmp_path, f"lamp{number}", f"192.168.7.{number}")
        keys.append(read_key(tmp_path / f"lamp{number}"))
    assert sorted(key.recipient_id for key in keys) == [bytes([number]) for number in range(12)]
    assert len({key.secret for key in keys}) == 12
    assert all(key.sender_id != key.recipient_id for key in keys)
    with loaded(tmp_path) as found:
        assert found.problems == {}
        assert all(found.by_kid(key.recipient_id, None) is found.named(key.name) for key in keys)


def test_identifiers_have_two_bytes_when_those_of_one_byte_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(folder: Path) -> Key:
        number = int(folder.name)
        device = bytes([number]) if number < 256 else number.to_bytes(2, "big")
        return Key(folder.name, folder.name, b"x", device, b"", b"", None)

    monkeypatch.setattr(context_files, "read_key", used)
    for count, identifier in ((255, b"\xff"), (256, b"\x01\x00"), (257, b"\x01\x01"), (999, b"\x03\xe7")):
        monkeypatch.setattr(
            context_files, "context_names", lambda folder, count=count: [f"{number}" for number in range(count)]
        )
        assert context_files._identifiers(tmp_path, "lamp", "lamp")[1] == identifier
    monkeypatch.setattr(context_files, "context_names", lambda folder: [f"{number}" for number in range(1000)])
    with pytest.raises(ConfigurationError, match="1,000 contexts"):
        context_files._identifiers(tmp_path, "lamp", "lamp")


@each_row("name", ["", ".hall", "../hall", "a/b", "hall\n", "x" * 64, "lämp"])
def test_a_name_is_a_name_of_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="no name of a key"):
        make_context(tmp_path, name, HALL)
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_replaced_only_if_this_is_asked_for(folder: Path) -> None:
    before = read_key(folder / "hall")
    with pytest.raises(ConfigurationError, match="add --replace"):
        make_context(folder, "hall", HALL)
    with pytest.raises(ConfigurationError, match=f"hall has the address {HALL} too"):
        make_context(folder, "other", HALL)
    assert read_key(folder / "hall") == before
    make_context(folder, "hall", HALL, replace=True)
    assert read_key(folder / "hall").secret != before.secret
    assert sorted(path.name for path in folder.iterdir()) == ["hall", "lock"]


def test_a_key_that_is_in_use_is_not_replaced(folder: Path) -> None:
    with loaded(folder):
        with pytest.raises(ConfigurationError, match="stop the CoAP adapter"):
            make_context(folder, "hall", HALL, replace=True)
        make_context(folder, "door", "192.168.7.21")  # for the next start
    with loaded(folder) as found:
        assert found.problems == {} and found.of("192.168.7.21") is not None


def test_the_folder_is_beside_the_data_folder() -> None:
    unit = (UNITS / "lamplighter-coap.service").read_text()
    assert "\nStateDirectory=lamplighter-coap\nStateDirectoryMode=0700\n" in unit
    assert contexts_folder(Path("/var/lib/lamplighter")) == Path("/var/lib/lamplighter-coap/contexts")


# --- loading ---


def test_without_contexts_nothing_is_loaded_or_made(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from lamplighter.adapters.coap.contexts import Contexts; "
        "found = Contexts.load(Path(sys.argv[1])); print(found.of('a'), found.by_kid(b'', None)); found.close(); "
        "print([name for name in ('cryptography', 'cbor2', 'filelock', 'aiocoap') if name in sys.modules])"
    )
    for place in (tmp_path / "none", tmp_path):
        command = [sys.executable, "-c", script, str(place)]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert said == "None None\n[]\n"
    assert list(tmp_path.iterdir()) == []


def test_a_context_is_found_by_name_address_and_kid(folder: Path) -> None:
    with loaded(folder) as found:
        context = found.named("hall")
        assert found.of(HALL) is context
        assert found.by_kid(context.recipient_id, None) is context
        assert found.by_kid(context.recipient_id, b"x") is None and found.by_kid(b"nobody", None) is None
        assert found.of("192.168.7.99") is None
        with pytest.raises(ConfigurationError, match="lamplighter devices key door --address HOST"):
            found.named("door")


def test_one_process_has_the_contexts(folder: Path) -> None:
    with loaded(folder):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="another process uses these contexts"):
                Contexts.load(folder)
    with loaded(folder) as found:
        assert found.problems == {}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("settings.json", None),
        ("settings.json", b""),
        ("settings.json", b"{}"),
        ("settings.json", b"\x00" * 512),
        ("settings.json", b'{"sender-id_hex": "xy", "recipient-id_hex": "01", "address": "a"}'),
        ("settings.json", b'{"sender-id_hex": "01", "recipient-id_hex": "01", "address": "a"}'),
        ("settings.json", b'{"sender-id_hex": "01", "recipient-id_hex": "0011223344556677", "address": "a"}'),
        ("settings.json", b'{"sender-id_hex": "01", "recipient-id_hex": "02", "address": "a", "algorithm": "x"}'),
        ("secret.json", None),
        ("secret.json", b'{"secret_hex": "00"}'),
        ("secret.json", b"\xff\xfe"),
        ("sequence.json", None),
        ("sequence.json", b""),
        ("sequence.json", b'{"next-to-send": 5}'),
        ("sequence.json", b'{"next-to-send": -5, "received": "unknown", "settings-inode": 1}'),
        ("sequence.json", b'{"next-to-send": 5, "received": "none", "settings-inode": 1}'),
        ("sequence.json", b'{"next-to-send": 5, "received": {"index": -1, "bitfield": 1}, "settings-inode": 1}'),
        ("sequence.json", b'{"next-to-send": 5, "received": {"index": 1}, "settings-inode": 1}'),
        ("sequence.json", b'{"next-to-send": 5, "received": "unknown"}'),
        ("sequence.json", b'{"next-to-send": 5, "received": "unknown", "settings-inode": 1}'),
    ],
)
def test_a_damaged_file_is_named_with_its_cure(folder: Path, file: str, content: bytes | None) -> None:
    make_context(folder, "door", "192.168.7.21")
    path = folder / "hall" / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with loaded(folder) as found:
        assert list(found.problems) == ["hall"]
        assert str(folder / "hall") in found.problems["hall"] and CURE in found.problems["hall"]
        if content is None or len(content) < 5:
            assert str(path) in found.problems["hall"]
        # Its device gets no plain request instead, and the other device is not affected.
        for ask in (lambda: found.named("hall"), lambda: found.of(HALL)):
            with pytest.raises(ConfigurationError, match="devices key hall"):
                ask()
        assert found.of("192.168.7.21") is found.named("door")
    make_context(folder, "hall", HALL, replace=True)
    with loaded(folder) as found:
        assert found.problems == {}


def test_while_an_address_is_unknown_no_device_is_taken_for_one_without_a_key(folder: Path) -> None:
    with loaded(folder) as found:
        assert found.of("192.168.7.99") is None
    (folder / "hall/secret.json").unlink()
    with loaded(folder) as found, pytest.raises(ConfigurationError, match=r"192\.168\.7\.99 has a key cannot be known"):
        found.of("192.168.7.99")


@pytest.mark.parametrize("name", ["", "hall", "hall/settings.json", "hall/secret.json", "hall/sequence.json"])
def test_a_file_that_others_can_read_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    path.chmod(path.stat().st_mode | 0o040)
    cure = f"chmod {'600' if path.is_file() else '700'} {path}"
    if name:
        with loaded(folder) as found:
            assert str(path) in found.problems["hall"] and cure in found.problems["hall"]
    else:
        with pytest.raises(ConfigurationError, match=cure):
            Contexts.load(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["hall", "hall/settings.json", "hall/sequence.json"])
def test_a_file_of_another_user_is_refused(folder: Path, name: str) -> None:
    os.chown(folder / name, 12345, 12345)
    with loaded(folder) as found:
        assert f"{folder / name}: belongs to another user; `chown`" in found.problems["hall"]


def test_what_is_no_context_is_refused_or_left_alone(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("hello")
    (folder / ".door.new").mkdir()
    (folder / "empty").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "hall")
    (folder / "hall/secret.json").rename(tmp_path / "elsewhere")
    (folder / "hall/secret.json").symlink_to(tmp_path / "elsewhere")
    with loaded(folder) as found:
        assert set(found.problems) == {"empty", "hall", "link"}
        assert f"{folder / 'empty/settings.json'}: missing" in found.problems["empty"]
        assert f"{folder / 'link'}: not a folder" in found.problems["link"]
        assert str(folder / "hall") in found.problems["hall"]


def test_a_copy_is_refused_and_the_original_is_used(folder: Path, tmp_path: Path) -> None:
    for copy in ("a-copy", "z-copy"):  # before and after the original
        shutil.copytree(folder / "hall", folder / copy)
    with loaded(folder) as found:
        assert set(found.problems) == {"a-copy", "z-copy"}
        assert all("is a copy or from a backup" in problem for problem in found.problems.values())
        assert found.of(HALL) is found.named("hall")
    shutil.copytree(folder, tmp_path / "restored")
    (tmp_path / "restored").chmod(0o700)
    with loaded(tmp_path / "restored") as found:
        assert "is a copy or from a backup" in found.problems["hall"] and CURE in found.problems["hall"]


def test_a_folder_that_is_moved_stays_a_context(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "moved")
    with loaded(tmp_path / "moved") as found:
        assert found.problems == {}


@pytest.mark.parametrize("member", ["address", "recipient-id_hex"])
def test_two_contexts_of_one_device_are_refused(folder: Path, member: str) -> None:
    make_context(folder, "door", "192.168.7.21")
    ours, others = folder / "hall/settings.json", folder / "door/settings.json"
    changed = json.loads(ours.read_text()) | {member: json.loads(others.read_text())[member], "sender-id_hex": "77"}
    ours.write_text(json.dumps(changed))
    with loaded(folder) as found:
        assert (
            "context door has the" in found.problems["hall"] and "remove one of the folders" in found.problems["hall"]
        )


# --- numbers ---


def test_after_a_clean_end_no_number_is_skipped(folder: Path) -> None:
    for start in range(3):
        with loaded(folder) as found:
            assert [found.named("hall").new_sequence_number() for _ in range(3)] == [start * 3 + n for n in range(3)]
            assert stored(folder / "hall")["received"] == "unknown"
        assert stored(folder / "hall")["next-to-send"] == start * 3 + 3
        assert stored(folder / "hall")["received"] == {"index": 0, "bitfield": 0}


def test_after_a_crash_numbers_are_skipped(folder: Path) -> None:
    used: list[int] = []
    chance = random.Random(1)
    for _ in range(20):
        found = Contexts.load(folder)
        used += [found.named("hall").new_sequence_number() for _ in range(chance.randrange(3 * CHUNK))]
        crashed(found)
    assert used == sorted(set(used))
    assert used[-1] < len(used) + 20 * 2 * CHUNK


def test_the_next_numbers_are_reserved_in_another_thread(folder: Path) -> None:
    writing, threads = context_files._write_durably, set()

    def noted(path: Path, content: bytes) -> None:
        threads.add(threading.current_thread().name)
        writing(path, content)

    with loaded(folder) as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_files, "_write_durably", noted)
        context = found.named("hall")
        assert found._writer is not None
        for _ in range(10 * CHUNK):
            context.new_sequence_number()
            found._writer.submit(lambda: None).result()  # as if the disk were never late
        assert {name.partition("_")[0] for name in threads} == {"coap contexts"}


def test_a_full_disk_stops_the_requests_and_not_the_process(folder: Path) -> None:
    with loaded(folder) as found, pytest.MonkeyPatch.context() as patch:
        context = found.named("hall")

        def full(path: Path, content: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(context_files, "_write_durably", full)
        assert [context.new_sequence_number() for _ in range(CHUNK)] == list(range(CHUNK))
        for _ in range(3):
            with pytest.raises(UpstreamError, match=r"hall/sequence\.json.*No space left"):
                context.new_sequence_number()
        patch.undo()
        assert context.new_sequence_number() == CHUNK
    with loaded(folder) as found:
        assert found.named("hall").new_sequence_number() == CHUNK + 1


def test_a_context_that_was_not_closed_well_asks_for_an_echo(folder: Path) -> None:
    found = Contexts.load(folder)
    used = found.named("hall").new_sequence_number()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_files, "_write_durably", lambda path, content: Path("/nowhere").stat())
        found.close()
    with loaded(folder) as found:
        context = found.named("hall")
        assert not context.recipient_replay_window.is_initialized()
        assert context.new_sequence_number() > used


def test_members_of_a_newer_version_stay(folder: Path) -> None:
    for name in ("settings.json", "secret.json", "sequence.json"):
        path = folder / "hall" / name
        inode = path.stat().st_ino
        path.write_text(json.dumps(json.loads(path.read_text()) | {"new": {"x": 1}}))
        assert path.stat().st_ino == inode  # another file would be a copy
    with loaded(folder) as found:
        number = found.named("hall").new_sequence_number()
        assert stored(folder / "hall")["new"] == {"x": 1}
    assert stored(folder / "hall")["next-to-send"] == number + 1
    assert stored(folder / "hall")["new"] == {"x": 1}
    assert json.loads((folder / "hall/secret.json").read_text())["new"] == {"x": 1}


def test_a_key_of_a_newer_version_is_left_to_it(folder: Path) -> None:
    path = folder / "hall/secret.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with loaded(folder) as found:
        problem = found.problems["hall"]
    assert str(path) in problem and "newer version" in problem and "--replace" not in problem


def test_a_closed_context_protects_nothing(folder: Path) -> None:
    with loaded(folder) as found:
        context = found.named("hall")
    found.close()
    with pytest.raises(UpstreamError, match="it is closed"):
        context.new_sequence_number()


def test_when_all_numbers_are_used_a_new_key_is_needed(folder: Path) -> None:
    sequence = stored(folder / "hall") | {"next-to-send": NUMBERS_MAX - 2}
    (folder / "hall/sequence.json").write_text(json.dumps(sequence))
    with loaded(folder) as found:
        context = found.named("hall")
        assert [context.new_sequence_number() for _ in range(2)] == [NUMBERS_MAX - 2, NUMBERS_MAX - 1]
        for _ in range(2):
            with pytest.raises(UpstreamError, match=f"all sender numbers are used; .*{CURE}"):
                context.new_sequence_number()


# --- power cuts ---


class OnDisk:
    """`os` for `contexts`, with the changes of files on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._folders: dict[int, Path] = {}
        self._read: set[int] = set()  # open and not written, so that the simulated disk does not know them

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            assert flags & os.O_EXCL and not (self._folders[dir_fd] / path).exists()
            return self._disk.create(self._folders[dir_fd] / path)
        file = os.open(path, flags, mode)
        self._read.add(file)
        if flags & os.O_DIRECTORY:
            self._folders[file] = Path(path)
        return file

    def write(self, file: int, data: bytes) -> int:
        return self._disk.write(file, data)

    def fsync(self, file: int) -> None:
        if file in self._folders:
            self._disk.sync_folder(self._folders[file])
        else:
            self._disk.sync(file)

    def close(self, file: int) -> None:
        if file in self._read:
            self._read.discard(file)
            self._folders.pop(file, None)
            os.close(file)
        else:
            self._disk.close(file)

    def mkdir(self, name: str, mode: int, *, dir_fd: int) -> None:
        path = self._folders[dir_fd] / name
        self._disk.make_folder(path)
        path.chmod(mode)

    def rename(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._disk.rename(self._folders[src_dir_fd] / source, self._folders[dst_dir_fd] / target)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        path = self._folders[dir_fd] / name
        if not path.exists():
            raise FileNotFoundError
        self._disk.remove(path)

    def exchange(self, folder: int, one: str, other: str) -> None:
        place = self._folders[folder]
        self._disk.exchange(place / one, place / other, lambda: EXCHANGE(folder, one, other))

    def rmtree(self, path: Path, ignore_errors: bool = False) -> None:
        if ignore_errors and not path.exists():
            return
        for file in path.iterdir():
            self._disk.remove(file)
        self._disk.remove_folder(path)


EXCHANGE = context_files._exchange


class Life:
    """A context over several power cuts. used: numbers that were sent; window: what was received."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.used: list[int] = []
        self.window = (0, 0)

    def until_the_power_goes(self, folder: Path) -> None:
        """Runs and ends the process in all ways, until the disk stops."""
        while True:
            found = numbers(folder, later=self._in_a_thread)
            assert found.window in (None, self.window), "a window that is too old lets replays in"
            for _ in range(self._chance.randrange(3 * CHUNK)):
                try:
                    self.used.append(found.take())
                except UpstreamError:
                    break
            if self._chance.random() < 0.5:
                self.window = (self.window[0] + 1, 1)
            if self._chance.random() < 0.5:
                found.close(self.window)

    def _in_a_thread(self, write: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            write()


def test_no_number_is_used_twice_and_no_window_is_old_after_power_cuts(
    monkeypatch: pytest.MonkeyPatch, amounts: Amounts
) -> None:
    monkeypatch.setattr(context_files, "_inode", lambda folder: 1)  # each cut is laid out in a new folder
    cuts = 0
    with scratch() as place:
        for seed in range(amounts.of(60)):
            chance, life = random.Random(seed), Life(seed)
            folder = place / f"{seed}"
            make_context(folder, "hall", HALL)
            for cut in range(8):
                disk = SimulatedDisk(folder)
                disk.stop_at(chance.randint(1, 60))
                if chance.random() < 0.2:
                    disk.fail_after(chance.randint(2, 10), errno.ENOSPC, forever=False)
                with monkeypatch.context() as patch, contextlib.suppress(PowerCut, OSError):
                    patch.setattr(context_files, "os", OnDisk(disk))
                    life.until_the_power_goes(folder / "hall")
                folder = place / f"{seed}-{cut}"
                disk.cut(chance, folder)
                for path in (folder, *folder.rglob("*")):
                    path.chmod(0o700 if path.is_dir() else 0o600)
                cuts += 1
            found = numbers(folder / "hall")
            assert found.window in (None, life.window)
            life.used.append(found.take())
            assert life.used == sorted(set(life.used)), seed
            for path in place.iterdir():
                shutil.rmtree(path)
    assert cuts == 8 * amounts.of(60)


def test_the_simulated_power_cut_finds_a_folder_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would prove nothing."""
    sync_folder = SimulatedDisk.sync_folder
    monkeypatch.setattr(SimulatedDisk, "sync_folder", lambda disk, path: None)
    with pytest.raises(AssertionError):
        test_no_number_is_used_twice_and_no_window_is_old_after_power_cuts(monkeypatch, Amounts(Fraction(1)))
    assert sync_folder is not SimulatedDisk.sync_folder


def test_a_power_cut_while_a_key_is_replaced_leaves_the_old_or_the_new_one(
    monkeypatch: pytest.MonkeyPatch, amounts: Amounts
) -> None:
    monkeypatch.setattr(context_files, "_inode", lambda folder: 1)  # each cut is laid out in a new folder
    left: Counter[str] = Counter()
    with scratch() as place:
        for seed in range(amounts.of(150)):
            chance, folder = random.Random(seed), place / f"{seed}"
            half = make_context(folder, "hall", HALL)
            for cut in range(3):  # the later ones find what the earlier ones left
                before, half = half["secret_hex"], {}
                disk = SimulatedDisk(folder)
                disk.stop_at(chance.randint(1, 40))
                system = OnDisk(disk)
                with monkeypatch.context() as patch, contextlib.suppress(PowerCut):
                    patch.setattr(context_files, "os", system)
                    patch.setattr(context_files, "shutil", system)
                    patch.setattr(context_files, "_exchange", system.exchange)
                    half = make_context(folder, "hall", HALL, replace=True)
                folder = place / f"{seed}-{cut}"
                disk.cut(chance, folder)
                for path in (folder, *folder.rglob("*")):
                    path.chmod(0o700 if path.is_dir() else 0o600)
                found = read_key(folder / "hall").secret.hex()
                if found != before:
                    assert numbers(folder / "hall").take() == 0
                assert found != before or not half, "the new key was given to the device"
                left["old" if found == before else "new"] += 1
                half = {"secret_hex": found}
            for path in place.iterdir():
                shutil.rmtree(path)
    assert min(left["old"], left["new"]) > 20, left


def test_a_file_system_that_cannot_exchange_folders_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_key(folder / "hall")
    monkeypatch.setattr(
        context_files, "_RENAME_EXCHANGE", 1 << 30
    )  # the system refuses it as it refuses an unknown flag
    with pytest.raises(ConfigurationError, match="delete its folder"):
        make_context(folder, "hall", HALL, replace=True)
    assert read_key(folder / "hall") == before
