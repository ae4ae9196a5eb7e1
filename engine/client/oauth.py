"""Registration and tokens: OAuth 2.0 client credentials, as SEPA brokers implement it (SEPA protocol, section 3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import httpx
import msgspec

from lamplighter.engine.client.addresses import check_private, trusting
from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.client.http import TIMEOUT_S, refusal_error
from lamplighter.engine.errors import ConfigurationError, UpstreamError, check_function, check_type, check_types

_JSON = "application/json"
# Seconds before its expiry at which a token is renewed; a tenth of its lifetime, if that is shorter.
_EARLY_S = 30.0


@dataclass(frozen=True)
class Credentials:
    """The credentials of a registered client. The representation hides the secret."""

    client_id: str
    client_secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises ArgumentTypeError."""
        check_types(str, client_id=self.client_id, client_secret=self.client_secret)

    def save(self, path: Path | str) -> None:
        """Writes them atomically to a file that only its owner can read. Raises ConfigurationError."""
        check_type("path", path, str, Path)
        target = Path(path)
        temporary = target.with_name(target.name + ".tmp")
        document = msgspec.json.encode({"client_id": self.client_id, "client_secret": self.client_secret})
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(document + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{target}: {error.strerror}; name a file that can be written") from error
        except ValueError as error:
            raise ConfigurationError(f"{str(path)!r} cannot be the name of a file: {error}") from error

    @classmethod
    def load(cls, path: Path | str) -> Credentials:
        """The credentials in a file written by `save`. Raises ConfigurationError, also if other users can read it."""
        check_type("path", path, str, Path)
        try:
            if Path(path).stat().st_mode & 0o077:
                raise ConfigurationError(f"{path}: others can read this secret; run chmod 600 {path}")
            document = json_document(read_file(path))
            return cls(str(document["client_id"]), str(document["client_secret"]))
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}; register to get such a file") from error
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path}: not a JSON object with client_id and client_secret") from error
        except ValueError as error:
            raise ConfigurationError(f"{str(path)!r} cannot be the name of a file: {error}") from error


async def register(url: str, identity: str, *, code: str | None = None, ca: Path | str | None = None) -> Credentials:
    """Registers at a broker and returns the credentials. They cannot be requested again.

    url: such as ``https://gateway.local:8443/oauth/register``. code: the one-time code from the gateway's operator, if
    it requires one. ca: file with the certificates to trust instead of the machine's. Raises RefusedError,
    UpstreamError, ConfigurationError.
    """
    check_types(str, url=url, identity=identity)
    check_type("code", code, str, NoneType)
    check_type("ca", ca, str, Path, NoneType)
    asked: dict[str, Any] = {"client_identity": identity, "grant_types": ["client_credentials"]}
    if code is not None:
        asked["code"] = code
    told = await _post(url, msgspec.json.encode({"register": asked}), {"Content-Type": _JSON}, httpx.Auth(), ca)
    found = told.get("credentials", told)
    try:
        return Credentials(str(found["client_id"]), str(found["client_secret"]))
    except (KeyError, TypeError) as error:
        raise UpstreamError(f"{url} answered without credentials") from error


class OAuth:
    """Bearer tokens for one client, fetched on demand and renewed before they expire.

    token_url: such as ``https://gateway.local:8443/oauth/token``. provider: ``keycloak`` for servers that require the
    standard form request. clock: a monotonic clock, in seconds. Raises ConfigurationError for an address to which the
    secret would be sent unencrypted.
    """

    def __init__(
        self,
        token_url: str,
        credentials: Credentials,
        *,
        ca: Path | str | None = None,
        provider: Literal["sepa", "keycloak", "ldap"] = "sepa",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_types(str, token_url=token_url, provider=provider)
        check_type("credentials", credentials, Credentials)
        check_type("ca", ca, str, Path, NoneType)
        check_function("clock", clock)
        check_private(token_url)
        self._url = token_url
        self._credentials = credentials
        self._ca = ca
        self._provider = provider
        self._clock = clock
        self._token = ""
        self._renew_at = 0.0
        self._fetching = asyncio.Lock()

    async def token(self) -> str:
        """A valid token. Raises RefusedError if the server refuses one, UpstreamError."""
        async with self._fetching:
            if not self._token or self._clock() >= self._renew_at:
                begun = self._clock()
                self._token, life_s = await self._fetch()
                self._renew_at = begun + max(life_s - _EARLY_S, life_s * 0.9)
            return self._token

    def expired(self, token: str) -> None:
        """Discards a token that a gateway has rejected as expired."""
        if token == self._token:
            self._token = ""

    async def _fetch(self) -> tuple[str, float]:
        body, content_type = b"", _JSON
        if self._provider == "keycloak":
            body, content_type = b"grant_type=client_credentials", "application/x-www-form-urlencoded"
        authorization = httpx.BasicAuth(self._credentials.client_id, self._credentials.client_secret)
        told = await _post(self._url, body, {"Content-Type": content_type}, authorization, self._ca)
        if isinstance(told.get("token"), dict):  # the older of two forms (SEPA protocol 3.2)
            told = told["token"]
        try:
            return str(told["access_token"]), float(told.get("expires_in", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise UpstreamError(f"{self._url} answered without a token") from error


async def _post(
    url: str, body: bytes, headers: Mapping[str, str], auth: httpx.Auth, ca: Path | str | None
) -> dict[str, Any]:
    check_private(url)
    try:
        async with httpx.AsyncClient(verify=trusting(ca), timeout=TIMEOUT_S, trust_env=False) as client:
            answer = await client.post(url, content=body, headers={"Accept": _JSON, **headers}, auth=auth)
    except httpx.HTTPError as error:
        raise UpstreamError(f"no answer from {url}: {error or type(error).__name__}") from error
    if answer.status_code >= 300:
        raise refusal_error(answer.status_code, answer.content)
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        told = msgspec.json.decode(answer.content)
        if isinstance(told, dict):
            return told
    raise UpstreamError(f"{url} did not answer with a JSON object")
