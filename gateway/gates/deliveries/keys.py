"""The secrets of deliveries. They follow from a key of this gateway, or are encrypted with it, so that the change log,
which others may read, has none of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from lamplighter.engine.client.files import read_file
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.deliveries.folder import store

_KEY_BYTES = 32
_NONCE_BYTES = 12


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

    def sealed(self, name: str, text: str) -> str:
        """A text that only this gateway can read, for this delivery. Raises ConfigurationError."""
        # Not above: it is 9 MB, which most gateways do not need.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = AESGCM(self._sealing()).encrypt(nonce, text.encode(), name.encode())
        return base64.b64encode(nonce + content).decode()

    def opened(self, name: str, sealed: str) -> str:
        """What `sealed` was given. Raises ConfigurationError, also where the key is another one now."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        content = base64.b64decode(sealed)
        try:
            found = AESGCM(self._sealing()).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], name.encode())
        except InvalidTag as error:
            raise ConfigurationError(
                "the headers for the receiver were encrypted with another key than that in the data folder; write them "
                "again"
            ) from error
        return found.decode()

    def _sealing(self) -> bytes:
        return hmac.digest(self._read(), b"encryption", "sha256")

    def _read(self) -> bytes:
        if self._key:
            return self._key
        try:
            key = read_file(self._path, follow=False) if self._path.exists() else self._made()
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
