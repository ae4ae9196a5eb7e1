"""The files of deliveries in the data folder: the key of their secrets, and the positions of their receivers.

Secrets follow from a key of this gateway, or are encrypted with it, so that the change log, which others may read, has
none of them. Positions only save repetitions: without their file, deliveries begin again with a first result. Only the
gateway's user may read the folder.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from lamplighter.engine.client.files import json_document, own_problem, read_file
from lamplighter.engine.client.state_files import file_content
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.disk import Disk

logger = EventLogger(__name__)

FOLDER: Final = "deliveries"  # in the data folder
PAUSE_S = 1.0  # between two writes of positions
AGAIN_S = 10.0  # after one that failed
_KEY_BYTES = 32
_NONCE_BYTES = 12


def store(disk: Disk, path: Path, content: bytes) -> None:
    """Writes a file of the folder, durable on return. The folder is made for its first file. Raises OSError."""
    folder = path.parent
    if not folder.exists():
        disk.make_folder(folder)
        folder.chmod(0o700)
        disk.sync_folder(folder.parent)  # without the name of the folder, a power cut takes its files, too
    disk.write_file(path, [content])


class SecretKeys:
    """The key file, made at first use. Only its owner may read it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._key = b""

    def secret(self, name: str) -> str:
        """That of a delivery, by its id. Raises ConfigurationError when the file cannot be read or made."""
        return hmac.new(self._key_bytes(), name.encode(), hashlib.sha256).hexdigest()

    def signature(self, name: str, body: bytes) -> str:
        """HMAC-SHA256 of a body by the secret of a delivery, in hexadecimal."""
        return hmac.new(self.secret(name).encode(), body, hashlib.sha256).hexdigest()

    def seal(self, name: str, text: str) -> str:
        """A text that only this gateway can read, for this delivery. Raises ConfigurationError."""
        # Not above: it is 9 MB, which most gateways do not need.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = AESGCM(self._sealing()).encrypt(nonce, text.encode(), name.encode())
        return base64.b64encode(nonce + content).decode()

    def unseal(self, name: str, sealed: str) -> str:
        """The text that `seal` was given. Raises ConfigurationError, also where the key is another one now."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        content = base64.b64decode(sealed)
        try:
            content = AESGCM(self._sealing()).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], name.encode())
        except InvalidTag as error:
            raise ConfigurationError(
                "the headers for the receiver were encrypted with another key than that in the data folder; write them "
                "again"
            ) from error
        return content.decode()

    def _sealing(self) -> bytes:
        return hmac.digest(self._key_bytes(), b"encryption", "sha256")

    def _key_bytes(self) -> bytes:
        if self._key:
            return self._key
        try:
            key = read_file(self._path, follow=False) if self._path.exists() else self._new_key()
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: {own_problem(error, self._path, 'the key of signatures is there')}"
            ) from error
        if len(key) != _KEY_BYTES or not any(key):  # a power cut leaves zeros, which anybody could guess
            raise ConfigurationError(
                f"{self._path} is damaged; remove it, and register the deliveries again: their secrets change"
            )
        self._key = key
        return key

    def _new_key(self) -> bytes:
        key = secrets.token_bytes(_KEY_BYTES)
        store(self._disk, self._path, key)
        return key


class _PositionFile(msgspec.Struct, frozen=True):
    """positions: spuid -> sequence of the last acknowledged notification."""

    positions: dict[str, int] = {}


class Positions:
    """The file. written: called with a spuid and a sequence when it is certain that a restart knows it."""

    def __init__(self, disk: Disk, path: Path, written: Callable[[str, int], None]) -> None:
        self._disk = disk
        self._path = path
        self._written = written
        self._positions: dict[str, int] = {}
        self._unwritten: dict[str, int | None] = {}  # None: removed
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    def read(self) -> None:
        """A damaged file counts as none."""
        try:
            self._positions = json_document(read_file(self._path, follow=False), _PositionFile).positions
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("positions of deliveries not read", path=self._path, reason=error)

    def retain(self, spuids: Collection[str]) -> None:
        """Forgets all others: they have ended while nobody kept the file."""
        for spuid in self._positions.keys() - set(spuids):
            self.forget(spuid)

    def of(self, spuid: str) -> int:
        """-1 if the receiver has nothing."""
        return self._positions.get(spuid, -1)

    def acknowledge(self, spuid: str, sequence: int) -> None:
        self._positions[spuid] = self._unwritten[spuid] = sequence
        self._changed.set()

    def forget(self, spuid: str) -> None:
        if self._positions.pop(spuid, None) is not None:
            self._unwritten[spuid] = None
            self._changed.set()

    async def keep(self) -> None:
        """Writes what changes, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(PAUSE_S if await asyncio.shield(self.write()) else AGAIN_S)

    async def write(self) -> bool:
        """Writes what has changed; whether it could."""
        async with self._writing:
            return await self._write()

    async def _write(self) -> bool:
        self._changed.clear()
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return True
        document = _PositionFile(dict(self._positions))
        try:
            await asyncio.to_thread(lambda: store(self._disk, self._path, file_content(self._path, document)))
        except OSError as error:
            logger.warning("positions of deliveries not written", path=self._path, reason=error.strerror)
            self._unwritten = unwritten | self._unwritten
            self._changed.set()
            return False
        for spuid, sequence in unwritten.items():
            if sequence is not None:
                self._written(spuid, sequence)
        return True
