"""A disk that loses power, fills up and breaks: what is done to files, kept as a journal of what is durable.

Every operation of `gateway.disk.Disk` is done for real below a root folder, so that readers see what a running
system shows them. Beside it stands what the medium is sure to hold, and what was asked of it since. `cut` lays
out, in a new folder, one of the states that a power cut at this moment may leave behind.

The model:

Contents are durable after `sync` of the file, whatever was done to its name. What was written or cut off since
then may be on the medium as a whole, not at all, up to some point, or in any choice of 512-byte sectors: each
sector holds one of the states that it had since the last sync (a sector is written as a whole or not at all). The
length is one of those that the file had since then, whatever became of the sectors. A sector inside the length
that never reached the medium reads as zeros, as noise, or as a block of some file that was removed before
(`garbage` says which may occur: a journaling file system with ordered data shows zeros at most, FAT and ext2 show
anything).

Names: creating, renaming and removing changes a folder, and is durable after `sync_folder` of that folder, so a
file whose content is synced may be missing. What was not synced is forgotten or there: all of it, none, the first
so many changes (a journaling file system), or any choice of them (one without a journal). A rename gives the new
name first and takes the old one away then, so both may be there, and never none unless only the old name's folder
was synced. An exchange of two names is atomic. A folder's own name is an entry of the folder above it. The root is
there.

Not modelled, since no order of operations would help: synced contents that are gone, disks that lie about syncing.
A sync that *failed* leaves the file's changes in doubt for ever, even when a later one succeeds: Linux counts the
pages as clean then.

Cuts and faults are asked for by the number of operations from now: `stop_at`, `fail_after`.
"""

from __future__ import annotations

import errno
import os
import random as randoms
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lamplighter.gateway.disk import Disk

SECTOR = 512
BLOCK = 4096
"""What a file system gives to a file at once."""
_STALE_MAX = 256
"""Blocks of removed files that are remembered."""

Garbage = Literal["zeros", "noise", "stale"]
Operation = Literal[
    "make_folder",
    "create",
    "write",
    "sync",
    "truncate",
    "rename",
    "exchange",
    "link",
    "remove",
    "remove_folder",
    "sync_folder",
]

FULL_STOPS: frozenset[str] = frozenset({"make_folder", "create", "write", "rename", "exchange", "link"})
"""Operations that need room."""
READ_ONLY_STOPS: frozenset[str] = FULL_STOPS | {"truncate", "remove", "remove_folder"}
"""Operations that a file system mounted read-only refuses; syncing finds nothing to do and succeeds."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for thousands of small files, in memory where that can be had, and gone afterwards."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="disk-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


class PowerCut(BaseException):
    """The machine is off. No Exception, so that nobody goes on after it."""


@dataclass
class _Written:
    """A change of a file's content: data at offset, or its end at offset where data is None."""

    offset: int
    data: bytes | None


@dataclass
class _File:
    """durable: what is sure to be there; size: as the running system sees it; pending: what was done since the sync.

    doubtful: whether a sync failed, so that none can be believed any more.
    """

    durable: bytearray = field(default_factory=bytearray)
    size: int = 0
    pending: list[_Written] = field(default_factory=list)
    doubtful: bool = False

    def now(self) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            _apply(content, change)
        return bytes(content)


@dataclass
class _Folder:
    """Entries as the running system sees them, and those that are sure to be on the medium."""

    now: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Folder


@dataclass
class _Named:
    """A change of a folder that may not be on the medium: the entry is this node, or gone where it is None.

    after: the change that must be there before this one may be (the new name of a renamed file). other: a second entry
    of the folder that changes at the same time.
    """

    folder: _Folder
    name: str
    node: _Node | None
    after: _Named | None = None
    other: tuple[str, _Node] | None = None


@dataclass
class _Fault:
    """operations: which are meant; left: so many of them are still done; forever: until healed, or just once."""

    operations: frozenset[str]
    left: int
    number: int
    forever: bool
    hits: int = 0


class SimulatedDisk(Disk):
    """A disk over a root folder that is empty, or holds what is taken as durable.

    operations: how many were asked for; failures: how many failed, failed_in: the last of them; stopped: whether the
    power is off, stopped_in: the operation in which it went.
    """

    def __init__(self, root: Path, *, garbage: tuple[Garbage, ...] = ("zeros", "noise", "stale")) -> None:
        self.root = root
        self.operations = 0
        self.stopped = False
        self.stopped_in = ""
        self.failures = 0
        self.failed_in = ""
        self._garbage = garbage
        self._lock = threading.RLock()
        self._stop_at: int | None = None
        self._fault: _Fault | None = None
        self._short = False  # the write before took a part
        self._tree = _Folder()
        self._named: list[_Named] = []
        self._open: dict[int, tuple[_File, Path]] = {}
        self._stale: list[bytes] = []
        root.mkdir(parents=True, exist_ok=True)
        self._read_in(root, self._tree)

    def _read_in(self, path: Path, folder: _Folder) -> None:
        for entry in path.iterdir():
            node: _Node
            if entry.is_dir():
                node = _Folder()
                self._read_in(entry, node)
            else:
                content = entry.read_bytes()
                node = _File(bytearray(content), len(content))
            folder.now[entry.name] = folder.durable[entry.name] = node

    # --- trouble that is asked for ---

    def stop_at(self, number: int) -> None:
        """The power goes in the number-th operation from now, 1 being the next one."""
        with self._lock:
            self._stop_at = self.operations + number

    def stop(self) -> None:
        """The power goes now."""
        self.stopped = True

    def fail_after(
        self, number: int, error: int, *, forever: bool = True, operations: frozenset[str] | None = None
    ) -> None:
        """The number-th operation from now of those that it may hit fails with this errno, and all of them after it
        until `heal` if forever. operations: None for those that fail like that on Linux.

        A write that finds the disk full takes half of the data first, and fails when it is asked for the rest.
        """
        if operations is None:
            usual = {errno.ENOSPC: FULL_STOPS, errno.EROFS: READ_ONLY_STOPS, errno.EIO: frozenset({"sync"})}
            operations = usual[error]
        with self._lock:
            self._fault = _Fault(operations, number, error, forever)

    @property
    def failed(self) -> bool:
        """Whether an operation failed, and they still do."""
        return self._fault is not None and self._fault.hits > 0

    def heal(self) -> None:
        """The disk is well again."""
        with self._lock:
            self._fault, self._short = None, False

    def _begin(self, kind: Operation, path: Path) -> bool:
        """Counts an operation, which fails if that was asked for; whether a write is to take only a part."""
        if self.stopped:
            raise PowerCut
        self.operations += 1
        if self._stop_at is not None and self.operations >= self._stop_at:
            # Whatever it changes is not durable, so that it may be found done, not done, or done in part.
            self.stopped = True
            self.stopped_in = f"{kind} {self._place(kind, path)}"
        fault = self._fault
        if fault is None or kind not in fault.operations or self.stopped:
            return False
        fault.left -= 1
        if fault.left > 0:
            return False
        if kind == "write" and fault.number == errno.ENOSPC and not self._short and fault.hits == 0:
            self._short = True
            fault.left = 1
            return True
        fault.hits += 1
        self.failures += 1
        self.failed_in = f"{kind} {self._place(kind, path)}"
        self._short = False
        if not fault.forever:
            self._fault = None
        raise OSError(fault.number, os.strerror(fault.number), str(path))

    def _place(self, kind: Operation, path: Path) -> str:
        """Which kind of file it was, for figures."""
        folder = path if kind in ("make_folder", "sync_folder") else path.parent
        place = f"in {folder.name}" if folder != self.root else "in root"
        suffixes = "".join(path.suffixes[-2:]) if folder != path else ""
        return f"{place} {suffixes}".rstrip()

    def _end(self) -> None:
        if self.stopped:
            raise PowerCut

    # --- the operations ---

    def make_folder(self, path: Path) -> None:
        with self._lock:
            if path.is_dir():
                if self.stopped:
                    raise PowerCut
                return
            self._begin("make_folder", path)
            path.mkdir(parents=True, exist_ok=True)
            folder = self._tree
            for part in path.relative_to(self.root).parts:
                node = folder.now.get(part)
                if node is None:
                    node = folder.now[part] = _Folder()
                    self._named.append(_Named(folder, part, node))
                assert isinstance(node, _Folder)
                folder = node
            self._end()

    def create(self, path: Path) -> int:
        with self._lock:
            self._begin("create", path)
            descriptor = super().create(path)
            folder = self._folder(path.parent)
            node = folder.now.get(path.name)
            if node is None:
                node = folder.now[path.name] = _File()
                self._named.append(_Named(folder, path.name, node))
            assert isinstance(node, _File)
            if node.size:
                self._forget_blocks(node)
                node.pending.append(_Written(0, None))
                node.size = 0
            self._open[descriptor] = (node, path)
            if self.stopped:
                self.close(descriptor)
            self._end()
            return descriptor

    def write(self, file: int, data: bytes) -> int:
        with self._lock:
            node, path = self._open[file]
            if self._begin("write", path):
                data = data[: len(data) // 2]
            written = super().write(file, data)
            node.pending.append(_Written(node.size, bytes(data[:written])))
            node.size += written
            self._end()
            return written

    def sync(self, file: int) -> None:
        with self._lock:
            node, path = self._open[file]
            try:
                self._begin("sync", path)
            except OSError:
                node.doubtful = True
                raise
            self._end()  # the power went before the disk was done
            if not node.doubtful:
                for change in node.pending:
                    _apply(node.durable, change)
                node.pending.clear()

    def truncate(self, file: int, size: int) -> None:
        with self._lock:
            node, path = self._open[file]
            self._begin("truncate", path)
            super().truncate(file, size)
            node.pending.append(_Written(size, None))
            node.size = size
            self._end()

    def close(self, file: int) -> None:
        with self._lock:
            if self._open.pop(file, None) is not None:
                super().close(file)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._begin("rename", target)
            super().rename(source, target)
            old, new = self._folder(source.parent), self._folder(target.parent)
            node = old.now.pop(source.name)
            assert isinstance(node, _File), "folders are not renamed"
            replaced = new.now.get(target.name)
            if isinstance(replaced, _File):
                self._forget_blocks(replaced)
            new.now[target.name] = node
            linked = _Named(new, target.name, node)
            self._named += [linked, _Named(old, source.name, None, linked)]
            self._end()

    def exchange(self, one: Path, other: Path, exchange: Callable[[], None]) -> None:
        """Exchanges two names of one folder. exchange: does it for real."""
        with self._lock:
            self._begin("exchange", other)
            exchange()
            folder = self._folder(one.parent)
            now = folder.now
            now[one.name], now[other.name] = now[other.name], now[one.name]
            self._named.append(_Named(folder, one.name, now[one.name], other=(other.name, now[other.name])))
            self._end()

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            self._begin("link", target)
            super().link(source, target)
            folder = self._folder(target.parent)
            replaced = folder.now.get(target.name)
            if replaced is not None:
                self._named.append(_Named(folder, target.name, None))
            node = self._folder(source.parent).now[source.name]
            assert isinstance(node, _File)
            folder.now[target.name] = node
            self._named.append(_Named(folder, target.name, node))
            self._end()

    def remove(self, path: Path) -> None:
        with self._lock:
            if not path.exists():
                if self.stopped:
                    raise PowerCut
                return
            self._begin("remove", path)
            super().remove(path)
            folder = self._folder(path.parent)
            node = folder.now.pop(path.name)
            assert isinstance(node, _File)
            self._forget_blocks(node)
            self._named.append(_Named(folder, path.name, None))
            self._end()

    def remove_folder(self, path: Path) -> None:
        with self._lock:
            self._begin("remove_folder", path)
            path.rmdir()
            folder = self._folder(path.parent)
            del folder.now[path.name]
            self._named.append(_Named(folder, path.name, None))
            self._end()

    def sync_folder(self, path: Path) -> None:
        with self._lock:
            self._begin("sync_folder", path)
            self._end()
            folder = self._folder(path)
            for change in self._named:
                if change.folder is folder:
                    _set(folder.durable, change)
            self._named = [change for change in self._named if change.folder is not folder]
            for change in self._named:
                if change.after is not None and change.after.folder is folder:
                    change.after = None  # the new name is durable

    def _folder(self, path: Path) -> _Folder:
        node: _Node = self._tree
        for part in path.relative_to(self.root).parts:
            assert isinstance(node, _Folder)
            node = node.now[part]
        assert isinstance(node, _Folder)
        return node

    def _forget_blocks(self, file: _File) -> None:
        """Its blocks may be given to other files, which show what is in them until they are written."""
        content = file.now()
        self._stale += [content[start : start + BLOCK] for start in range(0, len(content), BLOCK)][:8]
        del self._stale[:-_STALE_MAX]

    def revive(self) -> None:
        """The process is gone and the machine is not: what was not durable is not durable still, but all is there."""
        with self._lock:
            self.stopped, self.stopped_in, self._stop_at = False, "", None
            for descriptor in list(self._open):
                self.close(descriptor)

    # --- what is left ---

    def check(self, *unknown: str) -> None:
        """Raises AssertionError when files were changed by another way than this one. unknown: names that may be."""
        with self._lock:
            _compare(self.root, self._tree, set(unknown))

    def cut(self, random: randoms.Random, target: Path) -> Counter[str]:
        """Lays out what a power cut now may leave, in a new folder; what happened to how many files and names."""
        with self._lock:
            self.stopped = True
            report: Counter[str] = Counter()
            entries = self._entries_left(random, report)
            contents: dict[int, bytes] = {}
            target.mkdir(parents=True)
            self._lay_out(random, self._tree, target, entries, contents, report)
            for descriptor in list(self._open):
                self.close(descriptor)
            return report

    def _entries_left(self, random: randoms.Random, report: Counter[str]) -> dict[int, dict[str, _Node]]:
        """The entries of each folder, by the folder's id."""
        entries: dict[int, dict[str, _Node]] = {}
        for folder in _folders(self._tree):
            entries[id(folder)] = dict(folder.durable)
        for change in self._named:
            entries.setdefault(id(change.folder), dict(change.folder.durable))
        way = random.choice(("all", "none", "first", "any", "any"))
        first = random.randint(0, len(self._named))
        there: set[int] = set()
        for number, change in enumerate(self._named):
            kept = {"all": True, "none": False, "first": number < first, "any": random.random() < 0.5}[way]
            if kept and (change.after is None or id(change.after) in there):
                there.add(id(change))
                _set(entries[id(change.folder)], change)
            else:
                report["names forgotten"] += 1
        return entries

    def _lay_out(
        self,
        random: randoms.Random,
        folder: _Folder,
        path: Path,
        entries: dict[int, dict[str, _Node]],
        contents: dict[int, bytes],
        report: Counter[str],
    ) -> None:
        for name, node in sorted(entries[id(folder)].items()):
            if isinstance(node, _Folder):
                (path / name).mkdir()
                entries.setdefault(id(node), dict(node.durable))
                self._lay_out(random, node, path / name, entries, contents, report)
                continue
            if id(node) not in contents:
                contents[id(node)] = self._content_left(random, node, report)
            (path / name).write_bytes(contents[id(node)])

    def _content_left(self, random: randoms.Random, file: _File, report: Counter[str]) -> bytes:
        if not file.pending:
            return bytes(file.durable)
        way = random.choice(("all", "none", "first", "sectors", "sectors"))
        if way == "all":
            report["files kept"] += 1
            return file.now()
        if way == "none":
            report["files lost"] += 1
            return bytes(file.durable)
        report["files torn"] += 1
        if way == "first":
            content = bytearray(file.durable)
            count = random.randrange(len(file.pending))
            for change in file.pending[:count]:
                _apply(content, change)
            next_one = file.pending[count]
            if next_one.data is not None:
                # up to a sector's end, as the data went to the medium in order
                end = random.randint(next_one.offset, next_one.offset + len(next_one.data))
                end = min(-(-end // SECTOR) * SECTOR, next_one.offset + len(next_one.data))
                _apply(content, _Written(next_one.offset, next_one.data[: end - next_one.offset]))
            return bytes(content)
        return self._sectors_left(random, file)

    def _sectors_left(self, random: randoms.Random, file: _File) -> bytes:
        """Each sector as it was after one of the changes, or as it was before all of them."""
        durable_sectors = -(-len(file.durable) // SECTOR)
        states: dict[int, list[bytes]] = {}
        sizes = [len(file.durable)]
        content = bytearray(file.durable)
        for change in file.pending:
            _apply(content, change)
            sizes.append(len(content))
            if change.data:
                last = (change.offset + len(change.data) - 1) // SECTOR
                for sector in range(change.offset // SECTOR, last + 1):
                    states.setdefault(sector, []).append(bytes(content[sector * SECTOR : (sector + 1) * SECTOR]))
        size = random.choice((max(sizes), sizes[-1], random.choice(sizes)))
        garbage = random.choice(self._garbage)
        share = random.choice((0.1, 0.5, 0.9))  # of the sectors that reached the medium
        found = bytearray()
        block = b""
        for sector in range(-(-size // SECTOR)):
            if sector % (BLOCK // SECTOR) == 0:
                block = self._block(random, garbage)
            if sector in states and random.random() < share:
                state = random.choice((states[sector][-1], random.choice(states[sector])))
            elif sector < durable_sectors:
                state = bytes(file.durable[sector * SECTOR : (sector + 1) * SECTOR])
            else:
                inside = sector * SECTOR % BLOCK
                state = block[inside : inside + SECTOR]
            found += state.ljust(SECTOR, b"\0")
        return bytes(found[:size])

    def _block(self, random: randoms.Random, garbage: Garbage) -> bytes:
        """What a block shows that was given to a file and never written."""
        if garbage == "noise":
            return random.randbytes(BLOCK)
        if garbage == "stale" and self._stale:
            return random.choice(self._stale).ljust(BLOCK, b"\0")
        return bytes(BLOCK)


def _apply(content: bytearray, change: _Written) -> None:
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    if change.data is None:
        del content[change.offset :]
    else:
        content[change.offset : change.offset + len(change.data)] = change.data


def _set(entries: dict[str, _Node], change: _Named) -> None:
    if change.other is not None:
        entries[change.other[0]] = change.other[1]
    if change.node is None:
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.node


def _folders(folder: _Folder) -> Iterator[_Folder]:
    """The folder and all below it, as the running system sees them or as the medium holds them."""
    yield folder
    below = {id(node): node for entries in (folder.now, folder.durable) for node in entries.values()}
    for node in below.values():
        if isinstance(node, _Folder):
            yield from _folders(node)


def _compare(path: Path, folder: _Folder, unknown: set[str]) -> None:
    names = {entry.name for entry in path.iterdir()} - unknown
    expected = set(folder.now) - unknown
    assert names == expected, f"{path}: {sorted(names)} on the disk, {sorted(folder.now)} in the journal"
    for name in names:
        node = folder.now[name]
        if isinstance(node, _Folder):
            _compare(path / name, node, unknown)
        else:
            assert (path / name).read_bytes() == node.now(), f"{path / name} was changed by another way"
