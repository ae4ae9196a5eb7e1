"""OSCORE contexts on disk: keys of devices, sender numbers and replay windows (RFC 8613).

A sender number that is used twice with one key discloses what was sent, so a number is stored before it is used. While
a process runs, the stored number is ahead of the used ones and the stored replay window is "unknown". After a crash or
a power cut, numbers are skipped, and the first request of each device is repeated with an Echo value (RFC 8613,
appendix B.1). Only `Contexts.close` stores the exact state.

A context is a folder with ``settings.json`` (identifiers, address), ``secret.json`` and ``sequence.json``; the first
two never change. The names of the members are those of aiocoap.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lamplighter.engine.client.files import json_document
from lamplighter.engine.client.state_files import state_document, with_unknown
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)

SETTINGS, SECRET, SEQUENCE, LOCK = "settings.json", "secret.json", "sequence.json", "lock"
# Sender numbers that one write reserves. The next ones are reserved when half of them are used, in a thread.
CHUNK = 200
# Sender numbers have 5 bytes (RFC 8613 section 5).
NUMBERS_MAX = 2**40 - 1
CONTEXTS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
# Suffix of incomplete files.
_NEW = ".new"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# RENAME_EXCHANGE of renameat2(2).
_RENAME_EXCHANGE = 2
_FILE_BYTES_MAX = 4096
_IDENTIFIER_BYTES_MAX = 7  # for AES-CCM-16-64-128 (RFC 8613 section 3.3)
_SECRET_BYTES_MIN = 16

# Replay window: the lowest number in it, and a bit for each number that was received.
Window = tuple[int, int]


SomeFile = TypeVar("SomeFile", bound=msgspec.Struct)


_NAMES = {
    "sender_id": "sender-id_hex",
    "recipient_id": "recipient-id_hex",
    "id_context": "id-context_hex",
    "secret": "secret_hex",
    "salt": "salt_hex",
    "hash_function": "kdf-hashfun",
    "next_to_send": "next-to-send",
    "settings_inode": "settings-inode",
}


class _SettingsFile(msgspec.Struct, frozen=True, rename=_NAMES):
    sender_id: str
    recipient_id: str
    address: str
    id_context: str | None = None
    # Contexts of aiocoap may name others than the defaults, with which the key would be misused.
    algorithm: None = None
    hash_function: None = None


class _SecretFile(msgspec.Struct, frozen=True, rename=_NAMES):
    secret: str
    salt: str = ""


class _WindowFile(msgspec.Struct, frozen=True):
    index: int
    bitfield: int


class _SequenceFile(msgspec.Struct, frozen=True, rename=_NAMES):
    next_to_send: int
    received: _WindowFile | str
    settings_inode: int


@dataclass(frozen=True)
class StoredSequence:
    """document: the file, with the members that another version may have written."""

    file: _SequenceFile
    document: Any


@dataclass(frozen=True)
class Key:
    """The part of a context that never changes. sender_id is the gateway's, recipient_id the device's.

    address: host or host:port of the device, as in a normalised ``coap://`` URI.
    """

    name: str
    address: str
    sender_id: bytes
    recipient_id: bytes
    secret: bytes
    salt: bytes
    id_context: bytes | None


class Numbers:
    """Sender numbers of one context. A number is durable before it is used.

    window: the stored replay window; None if it is unknown. later: runs a function in another thread.
    """

    def __init__(self, folder: Path, stored: StoredSequence, later: Callable[[Callable[[], None]], object]) -> None:
        """Reserves the first numbers. Raises OSError."""
        self._folder = folder
        self._later = later
        self._writing = threading.Lock()
        self._closed = False
        self._stored = stored
        self._next = self._reserved = stored.file.next_to_send
        received = stored.file.received
        self.window: Window | None = None if isinstance(received, str) else (received.index, received.bitfield)
        self._reserve()

    def take(self) -> int:
        """The next number. Raises UpstreamError if it cannot be stored, or if there are no more."""
        # The thread was too slow, or could not write: the caller waits for the disk rather than use a number twice.
        if self._next >= self._reserved:
            try:
                self._reserve()
            except OSError as error:
                place = self._folder / SEQUENCE
                raise UpstreamError(f"{place}: sender numbers cannot be stored: {error.strerror}") from error
        if self._closed or self._next >= NUMBERS_MAX:
            reason = "it is closed" if self._closed else f"all sender numbers are used; {_renewal(self._folder)}"
            raise UpstreamError(f"OSCORE context {self._folder.name}: {reason}")
        number = self._next
        self._next += 1
        # Equal, not less: the thread is asked once for each chunk.
        if self._reserved - self._next == CHUNK // 2:
            self._later(self._reserve)
        return number

    def close(self, window: Window | None) -> None:
        """Stores the exact state: the next process then skips no number and asks for no Echo. No effect if closed."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
            try:
                self._write(self._next, window)
            except OSError as error:
                reason = f"{error.strerror}; the first request of the device will be repeated"
                logger.warning("coap context not closed", context=self._folder.name, reason=reason)

    def _reserve(self) -> None:
        with self._writing:
            if not self._closed and self._reserved - self._next < CHUNK:
                upto = self._reserved + CHUNK
                # Without a window: after an unclean end it is not known what came since.
                self._write(upto, None)
                self._reserved = upto  # not before it is durable

    def _write(self, number: int, window: Window | None) -> None:
        inode, before = self._stored.file.settings_inode, self._stored.document
        _write_durably(self._folder / SEQUENCE, _sequence_text(number, window, inode, before))


# --- making ---------------------------------------------------------------------------------------------------


def contexts_folder(data: Path) -> Path:
    """The folder of the contexts of a gateway with this data folder."""
    whole = data.resolve()
    # The adapter's service cannot see the data folder, and a copy of the data folder must not contain sender numbers.
    return whole.with_name(f"{whole.name}-coap") / "contexts"


def make_folder(path: Path) -> None:
    """Makes a folder that only its owner can read, and those above it; durable on return. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    above = os.open(path.parent, _FOLDER)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def check_name(name: str) -> None:
    """Raises ConfigurationError for what is no name of a context."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name of a key; use up to 63 letters, digits, - and _")


def make_context(folder: Path, name: str, address: str, *, replace: bool = False) -> dict[str, str]:
    """Makes a context with a new key, and returns the device's half, in the format of aiocoap.

    address: as in `Key`. replace: whether a context of that name may exist. Raises ConfigurationError, OSError.
    """
    check_name(name)
    make_folder(folder)
    making = os.open(folder, _FOLDER)
    lock = None
    try:
        fcntl.flock(making, fcntl.LOCK_EX)  # so that two commands do not choose the same identifier
        old = folder / name
        if os.path.lexists(old):
            if not replace:
                raise ConfigurationError(f"{old} exists; add --replace to give the device a new key")
            lock = locked_folder(folder)
        sender_id, recipient_id = _identifiers(folder, name, address)
        secret, salt = secrets.token_hex(16), secrets.token_hex(8)
        new = folder / f".{name}{_NEW}"
        shutil.rmtree(new, ignore_errors=True)
        os.mkdir(new.name, 0o700, dir_fd=making)
        ids = {"sender-id_hex": sender_id.hex(), "recipient-id_hex": recipient_id.hex(), "address": address}
        _write_durably(new / SECRET, _json({"secret_hex": secret, "salt_hex": salt}))
        _write_durably(new / SETTINGS, _json(ids))
        # Last, since it has the inode of the settings.
        _write_durably(new / SEQUENCE, _sequence_text(0, (0, 0), _inode(new)))
        if lock is None:
            # The folder is complete and durable before it has its name.
            os.rename(new.name, name, src_dir_fd=making, dst_dir_fd=making)
            os.fsync(making)
        else:
            os.fsync(making)
            _exchange(making, new.name, name)  # a power cut leaves one of the keys, and never none
            os.fsync(making)
            shutil.rmtree(new)
    finally:
        if lock is not None:
            os.close(lock)
        os.close(making)
    return {
        "sender-id_hex": recipient_id.hex(),
        "recipient-id_hex": sender_id.hex(),
        "secret_hex": secret,
        "salt_hex": salt,
    }


def _identifiers(folder: Path, name: str, address: str) -> tuple[bytes, bytes]:
    """Identifiers of the gateway and the device for a new context. That of the device is unique in the folder."""
    used = set()
    for other in context_names(folder):
        if other == name:
            continue
        try:
            key = read_key(folder / other)
        except (ConfigurationError, OSError):
            continue  # it cannot be used either
        used.add(key.recipient_id)
        if key.address == address:
            raise ConfigurationError(f"{folder / other} has the address {address} too; write its name and --replace")
    if len(used) >= CONTEXTS_MAX:
        raise ConfigurationError(f"{folder}: there are {CONTEXTS_MAX:,} contexts; remove folders")
    numbers = (bytes([number]) if number < 256 else number.to_bytes(2, "big") for number in range(2 * CONTEXTS_MAX))
    device = next(number for number in numbers if number not in used)
    # Random, because a device with keys of several gateways tells them apart by this.
    gateway = next(number for number in iter(lambda: secrets.token_bytes(1), None) if number != device)
    return gateway, device


# --- files ----------------------------------------------------------------------------------------------------


def read_key(folder: Path) -> Key:
    """Raises ConfigurationError, OSError."""
    check_private(folder)
    settings, secret = _read_file(folder / SETTINGS, _SettingsFile), _read_file(folder / SECRET, _SecretFile)
    try:
        context = settings.id_context
        key = Key(
            name=folder.name,
            address=settings.address,
            sender_id=bytes.fromhex(settings.sender_id),
            recipient_id=bytes.fromhex(settings.recipient_id),
            secret=bytes.fromhex(secret.secret),
            salt=bytes.fromhex(secret.salt),
            id_context=None if context is None else bytes.fromhex(context),
        )
    except ValueError as error:
        raise ConfigurationError(f"{folder}: a member that ends with _hex is damaged; {_renewal(folder)}") from error
    ids = key.sender_id, key.recipient_id
    # Equal identifiers would make equal nonces of both directions (RFC 8613 section 3.3).
    if ids[0] == ids[1] or max(map(len, ids)) > _IDENTIFIER_BYTES_MAX or len(key.secret) < _SECRET_BYTES_MIN:
        raise ConfigurationError(f"{folder}: the identifiers or the secret are damaged; {_renewal(folder)}")
    return key


def read_sequence(folder: Path) -> StoredSequence:
    """Raises ConfigurationError, also if the folder is a copy of a context."""
    place = folder / SEQUENCE
    document = _document(place)
    stored = _as_kind(place, document, _SequenceFile)
    received = stored.received
    known = received == "unknown" if isinstance(received, str) else min(received.index, received.bitfield) >= 0
    if not known or stored.next_to_send < 0:
        raise ConfigurationError(f"{place}: the sender numbers are damaged; {_renewal(folder)}")
    # A restored copy would use numbers a second time with the same key, which breaks AES-CCM.
    if stored.settings_inode != _inode(folder):
        reason = "this context is a copy or from a backup, and its sender numbers may be used already"
        raise ConfigurationError(f"{place}: {reason}; {_renewal(folder)}")
    return StoredSequence(stored, document)


def _inode(folder: Path) -> int:
    """Tells a context from its copies: a file that is copied or restored is another file."""
    return (folder / SETTINGS).stat().st_ino


def _sequence_text(number: int, window: Window | None, inode: int, before: Any = None) -> bytes:
    """before: the document that it replaces."""
    file = _SequenceFile(number, "unknown" if window is None else _WindowFile(*window), inode)
    return _json(with_unknown(file, before))


def _json(members: Mapping[str, Any]) -> bytes:
    return json.dumps(members, indent=1).encode() + b"\n"


def _read_file(path: Path, kind: type[SomeFile]) -> SomeFile:
    """Raises ConfigurationError that names the file and the cure, OSError."""
    return _as_kind(path, _document(path), kind)


def _as_kind(path: Path, document: Any, kind: type[SomeFile]) -> SomeFile:
    try:
        return state_document(path, document, kind)
    except msgspec.DecodeError as error:
        raise _damage_error(path, error) from error


def _damage_error(path: Path, reason: object) -> ConfigurationError:
    return ConfigurationError(f"{path}: damaged ({reason}); {_renewal(path.parent)}")


def _document(path: Path) -> Any:
    try:
        file = os.open(path, _READ)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path}: missing; {_renewal(path.parent)}") from error
    try:
        _check_mode(path, os.fstat(file), 0o600)
        text = os.read(file, _FILE_BYTES_MAX)
    finally:
        os.close(file)
    try:
        return json_document(text)
    except msgspec.DecodeError as error:
        raise _damage_error(path, error) from error


def check_private(folder: Path) -> None:
    _check_mode(folder, folder.lstat(), 0o700)


def _check_mode(path: Path, found: os.stat_result, mode: int) -> None:
    """Raises ConfigurationError if the path is another user's, no file or folder, or open to other users."""
    if not (stat.S_ISDIR if mode == 0o700 else stat.S_ISREG)(found.st_mode):
        raise ConfigurationError(f"{path}: not a {'folder' if mode == 0o700 else 'regular file'}; remove it")
    if found.st_uid != os.geteuid():
        raise ConfigurationError(f"{path}: belongs to another user; `chown` it to the user of the adapter")
    # Who could read it may have the key: a new mode alone does not mend that.
    if stat.S_IMODE(found.st_mode) & 0o077:
        reason = f"other users may read it (mode {stat.S_IMODE(found.st_mode):04o})"
        raise ConfigurationError(f"{path}: {reason}; run `chmod {mode:o} {path}`, or make a new key if one did")


def context_names(folder: Path) -> list[str]:
    """Names of the folders with contexts. Those with a leading point are incomplete."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")
    except FileNotFoundError:
        return []


def locked_folder(folder: Path) -> int:
    """A descriptor that holds the lock of the contexts. Raises ConfigurationError if another process has it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigurationError(f"{folder}: another process uses these contexts; stop the CoAP adapter") from error
    return lock


def _write_durably(path: Path, content: bytes) -> None:
    """Replaces a file atomically; durable on return, with its name. Raises OSError."""
    new = path.name + _NEW
    folder = os.open(path.parent, _FOLDER)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            while content:
                content = content[os.write(file, content) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)  # otherwise a power cut may bring back the old file, and its numbers
    finally:
        os.close(folder)


def _exchange(folder: int, one: str, other: str) -> None:
    """Exchanges two names in a folder atomically. Python has no function for it. Raises ConfigurationError, OSError."""
    import ctypes  # most commands need none

    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        raise ConfigurationError(
            f"the file system cannot replace the key {other} safely; delete its folder, and run the command without "
            "--replace"
        )
    raise OSError(number, os.strerror(number), other)


def _renewal(folder: Path) -> str:
    return f"make a new key with `{key_command(folder.name)} --replace`"


def key_command(name: str) -> str:
    return f"lamplighter devices key {name} --address HOST"
