"""Clients that the operator listed or that registered, and their permissions (SEPA protocol, 3.1).

One small file. It is replaced as a whole before a change takes effect: a power cut leaves the old or the new file.
Secrets have 256 random bits; only their SHA-256 is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lamplighter.engine.client.state_files import StateFile
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, UnauthorizedError
from lamplighter.engine.sharing import Usage, refusal
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.settings.security import Registration

CLIENTS = "clients.json"
NAME_CHARACTERS_MAX = 200
_CODE_SIGNS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # without look-alikes
_CODE_CHARACTERS = 8  # 40 bits


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client. registration: its id, "" until the client has registered. A token is issued for a registration, so
    tokens of an earlier client of the same name are invalid. coded: it may register with a one-time code only, whatever
    the settings say."""

    name: str
    permissions: Permissions
    secret_sha256: str = ""
    registration: str = ""
    coded: bool = False
    since: str = ""


class _File(msgspec.Struct, frozen=True):
    clients: list[Client]


@dataclass
class _Code:
    """sha256: of the code; until_us: CLOCK_BOOTTIME."""

    # A restart forgets codes. Wrong tries do not invalidate a code, or anybody could keep a device from registering.
    # `gateway.security.authorization` blocks their sender instead.

    sha256: str
    until_us: int


Changed = Callable[[str], object]  # receives the name of a client that was removed or whose permissions changed


class ClientRegistry:
    """The clients in a folder. Changes wait for the disk, one after the other."""

    def __init__(self, folder: Path, clock: Clock, disk: Disk, clients_max: int, code_life_s: int) -> None:
        """Raises ConfigurationError when the file cannot be read."""
        self._path = folder / CLIENTS
        cure = "restore a copy of it, or remove it: every client then has to register again"
        self._file = StateFile(self._path, _File, cure)
        self._clock = clock
        self._disk = disk
        self.clients_max = clients_max
        self._code_life_s = code_life_s
        self.clients = {client.name: client for client in self._read_file()}
        self._codes: dict[str, _Code] = {}
        # New clients that registered themselves since the start, and from where; the file does not have that.
        self._origins: dict[str, str] = {}
        self._open = Usage()
        self._writing = asyncio.Lock()
        self.changed: list[Changed] = []

    def all(self) -> list[Client]:
        """By name."""
        return sorted(self.clients.values(), key=lambda client: client.name)

    def authenticate(self, name: str, secret: str) -> Client:
        """The client with this secret. Raises UnauthorizedError, the same whether the name or the secret is wrong."""
        client = self.clients.get(name)
        known = client.secret_sha256 if client is not None else ""
        # Also for an unknown name, so that the time taken reveals nothing.
        if hmac.compare_digest(_sha256(secret), known or "0" * 64) and client is not None and known:
            return client
        raise UnauthorizedError(
            "unauthorized_client", "client_id and client_secret do not match a registered client", 400
        )

    async def register(
        self, name: str, code: str | None, mode: Registration, granted: Permissions, origin: str = ""
    ) -> tuple[Client, str]:
        """A client that registers itself, and its secret. granted: its permissions unless the operator set others.
        origin: whose share of the clients a new one takes, "" for none. Raises UnauthorizedError: it may not register,
        or the registration could not be stored."""
        async with self._writing:
            listed = self.clients.get(name)
            if listed is not None and listed.registration:
                raise _not_authorized()
            if listed is None and mode != "open":
                raise _not_authorized()
            if mode == "code" or (listed is not None and listed.coded):
                self._use_code(name, code)
            if listed is not None:
                return await self._create(name, listed.permissions)
            free = self.clients_max - len(self.clients)
            if why := refusal(origin, self._open.of(origin), 1, free, f"security.clients_max = {self.clients_max}"):
                raise UnauthorizedError("storing_credentials", why)
            created = await self._create(name, granted)
            self._origins[name] = origin
            self._open.add(origin)
            return created

    async def add(self, name: str, permissions: Permissions) -> None:
        """Lists a client, which may then register. Raises MalformedRequestError, UnauthorizedError."""
        async with self._writing:
            self._must_be_new(name)
            await self._store(Client(name=name, permissions=permissions, since=self._now()))

    async def add_registered(self, name: str, permissions: Permissions) -> str:
        """Adds a client without registration; returns its secret. Raises MalformedRequestError, UnauthorizedError."""
        async with self._writing:
            self._must_be_new(name)
            return (await self._create(name, permissions))[1]

    async def code(self, name: str, permissions: Permissions | None, granted: Permissions) -> str:
        """A one-time code for a client that has not registered; it replaces the previous one. permissions: None leaves
        them as they are; granted: the permissions of a new one. Raises MalformedRequestError, UnauthorizedError."""
        async with self._writing:
            listed = self.clients.get(name)
            if listed is None or permissions is not None or not listed.coded:
                if listed is not None and listed.registration:
                    raise MalformedRequestError(f"{name} has registered; remove it first")
                kept = permissions or (granted if listed is None else listed.permissions)
                await self._store(Client(name=name, permissions=kept, coded=True, since=self._now()))
            code = "".join(secrets.choice(_CODE_SIGNS) for _ in range(_CODE_CHARACTERS))
            until_us = self._clock.boottime_us() + self._code_life_s * 1_000_000
            self._codes[name] = _Code(_sha256(code), until_us)
            return f"{code[:4]}-{code[4:]}"

    async def permit(self, name: str, permissions: Permissions) -> None:
        """Raises MalformedRequestError, UnauthorizedError."""
        async with self._writing:
            await self._store(msgspec.structs.replace(self._existing(name), permissions=permissions))
        self._tell(name)

    async def remove(self, name: str) -> None:
        """Removes a client; its tokens become invalid. Raises MalformedRequestError, UnauthorizedError."""
        async with self._writing:
            self._existing(name)
            await self._write({kept: client for kept, client in self.clients.items() if kept != name})
            self._codes.pop(name, None)
            if name in self._origins:
                self._open.add(self._origins.pop(name), -1)
        self._tell(name)

    def _use_code(self, name: str, code: str | None) -> None:
        kept = self._codes.get(name)
        if kept is None or code is None:
            raise _not_authorized()
        if not hmac.compare_digest(_sha256(_plain(code)), kept.sha256) or self._clock.boottime_us() >= kept.until_us:
            raise _not_authorized()
        del self._codes[name]

    async def _create(self, name: str, permissions: Permissions) -> tuple[Client, str]:
        secret = secrets.token_urlsafe(32)
        client = Client(
            name=name,
            permissions=permissions,
            secret_sha256=_sha256(secret),
            registration=secrets.token_hex(8),
            since=self._now(),
        )
        await self._store(client)
        return client, secret

    def _must_be_new(self, name: str) -> None:
        if name in self.clients:
            raise MalformedRequestError(f"there is a client {name} already; remove it first, or change its permissions")

    def _existing(self, name: str) -> Client:
        client = self.clients.get(name)
        if client is None:
            raise MalformedRequestError(f"there is no client {name}; lamplighter clients list shows them")
        return client

    async def _store(self, client: Client) -> None:
        check_name(client.name)
        if client.name not in self.clients and len(self.clients) >= self.clients_max:
            raise UnauthorizedError("storing_credentials", f"security.clients_max = {self.clients_max} is reached")
        await self._write({**self.clients, client.name: client})

    async def _write(self, clients: dict[str, Client]) -> None:
        content = msgspec.json.format(self._file.encode(_File(list(clients.values()))), indent=1)
        try:
            await asyncio.to_thread(self._disk.write_file, self._path, [content])
        except OSError as error:
            reason = f"the credentials cannot be stored: {error.strerror}"
            raise UnauthorizedError("storing_credentials", reason) from error
        self._file.commit()
        self.clients = clients

    def _tell(self, name: str) -> None:
        for changed in self.changed:
            changed(name)

    def _now(self) -> str:
        return iso(self._clock.wall())

    def _read_file(self) -> list[Client]:
        read = self._file.read()
        clients = [] if read is None else read.clients
        try:
            for client in clients:
                _ = client.permissions.access
        except ConfigurationError as error:
            raise self._file.damage_error(error) from error
        return clients


def check_name(name: str) -> None:
    """Raises MalformedRequestError for an invalid name of a client."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or name != name.strip():
        raise MalformedRequestError(
            f"a client's name has 1 to {NAME_CHARACTERS_MAX} printable characters and no space around it"
        )


def _not_authorized() -> UnauthorizedError:
    return UnauthorizedError(
        "not_authorized_identity", "this identity may not register, or has done so already; ask the gateway's operator"
    )


def _plain(code: str) -> str:
    """A code as people type it."""
    return code.replace("-", "").replace(" ", "").upper()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
