"""Bearer tokens: JSON Web Tokens signed with ES256 (RFC 7519, RFC 7518 3.4; SEPA protocol, 3.3 and 3.5)."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from lamplighter.engine.client.files import own_problem
from lamplighter.engine.client.state_files import StateFile
from lamplighter.engine.errors import ConfigurationError, UnauthorizedError
from lamplighter.gateway.clock import Clock, since_1970_us
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.security.revocations import ClockReading, RevokedToken, RevokedTokens

ALGORITHM = "ES256"
KEYS = "keys.json"
TOKEN_CHARACTERS_MAX = 4096
VERIFIED_MAX = 1024  # tokens whose valid signature is remembered; checking one takes 0.1 ms


@dataclass(frozen=True)
class Claims:
    """The content of a token. registration: the registration of the client that it was issued for."""

    client: str
    registration: str


class _Payload(msgspec.Struct, frozen=True):
    """The claims of a token: the registered ones, and the exact times."""

    sub: str
    reg: str
    iat: int
    exp: int
    jti: str
    at: ClockReading
    life_us: int


class _Previous(msgspec.Struct, frozen=True):
    """A key that no longer signs. public: in PEM; until: when the last of its tokens expires, counted from `at`."""

    public: str
    at: ClockReading
    life_us: int


class _KeptKeys(msgspec.Struct, frozen=True):
    """The file. private: in PEM."""

    private: str
    previous: _Previous | None = None


class _NamedKey:
    """A public key and its name, the thumbprint of RFC 7638."""

    def __init__(self, public: ec.EllipticCurvePublicKey) -> None:
        self.public = public
        jwk: dict[str, Any] = ECAlgorithm.to_jwk(public, as_dict=True)
        required = {name: jwk[name] for name in ("crv", "kty", "x", "y")}
        text = msgspec.json.encode(required, order="sorted")
        self.id = jwt.utils.base64url_encode(hashlib.sha256(text).digest()).decode()
        self.jwk = {**required, "kid": self.id, "use": "sig", "alg": ALGORITHM}


class TokenIssuer:
    """Issues and checks tokens, with the keys in a folder. Raises ConfigurationError for unusable keys."""

    def __init__(self, folder: Path, clock: Clock, disk: Disk, life_s: int) -> None:
        self._path = folder / KEYS
        self._file = StateFile(
            self._path, _KeptKeys, "restore a copy of it, or remove it: clients then fetch new tokens"
        )
        self._clock = clock
        self._disk = disk
        self.life_s = life_s
        # A token must not contain the machine's own id of this boot.
        self._boot = hashlib.sha256(b"lamplighter " + clock.boot.encode()).hexdigest()[:16]
        self._verified: OrderedDict[str, tuple[_Payload, str]] = OrderedDict()  # token -> payload, key's name
        self._rotating = asyncio.Lock()
        self._revoked = RevokedTokens(folder, disk)
        kept = self._file.read()
        try:
            if kept is None:
                kept = _KeptKeys(_private_pem(ec.generate_private_key(ec.SECP256R1())))
                disk.write_file(self._path, [self._file.encode(kept)])
                self._file.commit()
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: {own_problem(error, folder, 'the keys are stored there')}"
            ) from error
        self._use(kept)

    @property
    def jwk(self) -> dict[str, str]:
        """The public half of the key that signs tokens now (RFC 7517)."""
        return self._key.jwk

    def give(self, client: str, registration: str, life_s: int | None = None) -> str:
        """A new token. life_s: another lifetime than the default."""
        life_s = life_s or self.life_s
        now = self._now()
        issued = now.wall_us // 1_000_000
        payload = _Payload(client, registration, issued, issued + life_s, secrets.token_hex(8), now, life_s * 1_000_000)
        return jwt.encode(msgspec.to_builtins(payload), self._private, ALGORITHM, {"kid": self._key.id})

    def check(self, token: str) -> Claims:
        """The content of a token. Raises UnauthorizedError unless this gateway issued it and it is not expired."""
        verified = self._verified.get(token)
        if verified is None:
            verified = self._verified[token] = self._verify(token)
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        payload, key = verified
        if payload.jti in self._revoked:
            raise UnauthorizedError("invalid_grant", "the token was revoked; fetch another token")
        if self._key_named(key) is None:
            raise UnauthorizedError(
                "invalid_grant", "the signing key of the token has been replaced; fetch another token"
            )
        if self._over(payload.at, payload.life_us):
            raise UnauthorizedError("invalid_grant", "the token has expired; fetch another token")
        return Claims(payload.sub, payload.reg)

    async def revoke(self, token: str) -> None:
        """Ends a token before it expires; durable on return. Raises as `check` and as `RevokedTokens.add`."""
        self.check(token)
        payload, _ = self._verified[token]
        await self._revoked.add(RevokedToken(payload.jti, payload.sub, payload.at, payload.life_us), self._now())

    async def rotate(self, *, revoke: bool = False) -> None:
        """Replaces the signing key. The previous one stays valid until its tokens expire, or not at all. Raises
        UnauthorizedError when the new key cannot be stored; then nothing has changed."""
        async with self._rotating:
            public = self._key.public.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            previous = None if revoke else _Previous(public.decode(), self._now(), self.life_s * 1_000_000)
            kept = _KeptKeys(_private_pem(ec.generate_private_key(ec.SECP256R1())), previous)
            try:
                await asyncio.to_thread(self._disk.write_file, self._path, [self._file.encode(kept)])
            except OSError as error:
                reason = f"the new key cannot be stored: {error.strerror}"
                raise UnauthorizedError("security_error", reason, 500) from error
            self._file.commit()
            self._use(kept)

    def _verify(self, token: str) -> tuple[_Payload, str]:
        """The content of a token and the name of its key, if this gateway signed it. Expiry is not checked."""
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise UnauthorizedError("invalid_request", "this is not a token of this gateway: it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as error:
            raise UnauthorizedError("invalid_request", "this is not a JSON Web Token") from error
        key = self._key_named(header.get("kid"))
        if header.get("alg") != ALGORITHM or key is None:
            raise UnauthorizedError("invalid_grant", "another gateway issued this token; fetch one here")
        try:
            # Times are checked below, by the clocks that can be trusted.
            claims = jwt.decode(
                token, key.public, [ALGORITHM], options={"verify_exp": False, "verify_iat": False, "verify_nbf": False}
            )
            return msgspec.convert(claims, _Payload), key.id
        except (jwt.InvalidTokenError, msgspec.ValidationError) as error:
            raise UnauthorizedError("invalid_grant", "another gateway issued this token; fetch one here") from error

    def _key_named(self, name: object) -> _NamedKey | None:
        if name == self._key.id:
            return self._key
        if self._previous is not None:
            kept, key = self._previous
            if name == key.id and not self._over(kept.at, kept.life_us):
                return key
        return None

    def _over(self, since: ClockReading, life_us: int) -> bool:
        return since.is_over(life_us, self._now())

    def _now(self) -> ClockReading:
        clock = self._clock
        return ClockReading(self._boot, clock.boottime_us(), since_1970_us(clock.wall()), clock.trusted())

    def _use(self, kept: _KeptKeys) -> None:
        try:
            private = serialization.load_pem_private_key(kept.private.encode(), None)
            previous = kept.previous
            before = None if previous is None else serialization.load_pem_public_key(previous.public.encode())
        except (ValueError, TypeError) as error:
            raise self._file.damage_error(error) from error
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(
            before, ec.EllipticCurvePublicKey | None
        ):
            raise self._file.damage_error("it has a key of another kind")
        self._private = private
        self._key = _NamedKey(private.public_key())
        self._previous = None if previous is None or before is None else (previous, _NamedKey(before))
        self._verified.clear()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
