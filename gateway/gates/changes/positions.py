"""The positions of the change feed, as texts that clients send back.

A client that may read every graph gets the record itself: ``gw-3486f11a/1/17/07870d50``, the gateway, epoch, sequence
and mark (`LogPosition`). Sequences count the commits of all clients. So one that may not read every graph gets a
position that is encrypted and differs each time: two of them do not tell whether somebody else changed anything in
between. It names the graphs for which it was made, so that other permissions are noticed.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import struct
import uuid
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol

from lamplighter.engine.access import Graphs
from lamplighter.engine.client.files import own_problem, read_file
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError
from lamplighter.engine.terms import Term
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.history.changes import LOST, PERMISSIONS, LogPosition, ResetError
from lamplighter.gateway.log.snapshots import label
from lamplighter.gateway.security.callers import Caller

# The key of encrypted positions, in the data folder. Without it, clients begin anew.
KEY_FILE: Final = "security/changes.key"
_KEY_BYTES = 64  # AES-256-SIV (RFC 5297)
_NONCE_BYTES = 16
_CONTENT = struct.Struct(">IQ4s8s")  # epoch, sequence, mark, graphs
_PLAIN = re.compile(r"([A-Za-z0-9._-]{1,200})/([0-9]{1,9})/([0-9]{1,15})/([0-9a-f]{8})")
_SEALED = re.compile(r"[A-Za-z0-9_-]{75}")
_NO_MARK = "0" * 8


class FeedPositions(Protocol):
    """The positions of one client. numbered: whether they show sequences."""

    numbered: bool

    def text(self, at: LogPosition) -> str: ...

    def read(self, text: str) -> LogPosition:
        """Raises MalformedRequestError, and ResetError for a position of other permissions or an unknown one."""
        ...

    def patch_id(self, at: LogPosition) -> Term:
        """The id of a patch that ends at a position; the same each time."""
        ...


class PlainPositions:
    """Those of a client that may read every graph. gateway: its id."""

    numbered = True

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway

    def text(self, at: LogPosition) -> str:
        return f"{self._gateway}/{label(at.place)}/{at.mark or _NO_MARK}"

    def read(self, text: str) -> LogPosition:
        found = _PLAIN.fullmatch(text)
        if found is None:
            raise _other_or_malformed(text, _SEALED)
        if found[1] != self._gateway:
            raise ResetError(LOST)
        place = int(found[2]), int(found[3])
        return LogPosition(place, found[4] if place[1] else "")

    def patch_id(self, at: LogPosition) -> Term:
        """As that of the export: `lamplighter.engine.change_log.rdf_patch.patch_id`."""
        name = f"lamplighter:{self._gateway}/{label(at.place)}"
        return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>"


class SealedPositions:
    """Those of a client that may read some graphs only. client: its name; visible: these graphs."""

    numbered = False

    def __init__(self, key: bytes, gateway: str, client: str, visible: Graphs) -> None:
        # Not above: it is 9 MB, which plain mode does not need. Secure mode has it loaded.
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        self._cipher = AESSIV(key)
        self._key = key
        self._owner = f"{gateway}\n{client}".encode()
        self._graphs = _digest(visible)

    def text(self, at: LogPosition) -> str:
        content = _CONTENT.pack(*at.place, bytes.fromhex(at.mark or _NO_MARK), self._graphs)
        # Without it, equal positions would be equal texts, and tell that nothing was committed.
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(content, [self._owner, nonce])
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def read(self, text: str) -> LogPosition:
        from cryptography.exceptions import InvalidTag

        if not _SEALED.fullmatch(text):
            raise _other_or_malformed(text, _PLAIN)
        sealed = base64.urlsafe_b64decode(f"{text}=")
        nonce = sealed[:_NONCE_BYTES]
        try:
            content = self._cipher.decrypt(sealed[_NONCE_BYTES:], [self._owner, nonce])
        except InvalidTag as error:
            raise ResetError(LOST) from error
        epoch, sequence, mark, graphs = _CONTENT.unpack(content)
        # What it has not seen of the other graphs lies behind it.
        if graphs != self._graphs:
            raise ResetError(PERMISSIONS)
        return LogPosition((epoch, sequence), mark.hex() if sequence else "")

    def patch_id(self, at: LogPosition) -> Term:
        # By the key: the id must not tell the sequence either.
        name = hmac.digest(self._key, self._owner + label(at.place).encode(), "sha256")[:16]
        return f"<urn:uuid:{uuid.UUID(bytes=name, version=5)}>"


class PositionsOf:
    """Makes the positions of each client. data: the data folder."""

    def __init__(self, data: Path, disk: Disk, gateway: str) -> None:
        self._data = data
        self._disk = disk
        self._gateway = gateway

    def __call__(self, caller: Caller) -> FeedPositions:
        """Raises ConfigurationError when the key can neither be read nor stored."""
        visible = caller.access.read
        if visible.every:
            return PlainPositions(self._gateway)
        return SealedPositions(self._key, self._gateway, caller.name, visible)

    @cached_property
    def _key(self) -> bytes:
        path = self._data / KEY_FILE
        try:
            key = read_file(path, follow=False)
            if len(key) == _KEY_BYTES and any(key):  # a power cut leaves zeros, which anybody could guess
                return key
            raise ConfigurationError(f"{path} is damaged; remove it, and the followers of changes begin anew")
        except FileNotFoundError:
            key = secrets.token_bytes(_KEY_BYTES)
        except OSError as error:
            raise ConfigurationError(
                f"{path}: {own_problem(error, path, 'the key of positions is stored there')}"
            ) from error
        try:
            self._disk.write_file(path, [key])
        except OSError as error:
            raise ConfigurationError(
                f"{path}: {own_problem(error, path, 'the key of positions is stored there')}"
            ) from error
        return key


def _other_or_malformed(text: str, other: re.Pattern[str]) -> ResetError | MalformedRequestError:
    """The error for a text of another form. other: the form of clients with other permissions."""
    if other.fullmatch(text):
        return ResetError(PERMISSIONS)
    return MalformedRequestError(f"{text[:100]!r} is no position; send one that an answer of /changes had")


def _digest(visible: Graphs) -> bytes:
    names = sorted("" if name is None else name for name in visible.names or ())
    return blake2b(repr((visible.names is None, visible.asserted, names)).encode(), digest_size=8).digest()
