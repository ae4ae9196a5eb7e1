"""The secrets of signatures. They follow from a key of this gateway, so that the change log, which others may read, has
none of them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.deliveries.folder import store

_KEY_BYTES = 32


class SecretKeys:
    """The key file, made at first use. Only its owner may read it."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._key = b""

    def secret(self, name: str) -> str:
        """That of a delivery, by its id. Raises ConfigurationError when the file cannot be read or made."""
        return hmac.new(self._read(), name.encode(), hashlib.sha256).hexdigest()

    def signature(self, name: str, body: bytes) -> str:
        """HMAC-SHA256 of a body by the secret of a delivery, in hexadecimal."""
        return hmac.new(self.secret(name).encode(), body, hashlib.sha256).hexdigest()

    def _read(self) -> bytes:
        if self._key:
            return self._key
        try:
            key = self._path.read_bytes() if self._path.exists() else self._made()
        except OSError as error:
            raise ConfigurationError(f"{self._path}: {error.strerror}; the key of signatures is there") from error
        if len(key) != _KEY_BYTES:
            raise ConfigurationError(
                f"{self._path} is damaged; remove it, and register the deliveries again: their secrets change"
            )
        self._key = key
        return key

    def _made(self) -> bytes:
        key = secrets.token_bytes(_KEY_BYTES)
        store(self._disk, self._path, key)
        return key
