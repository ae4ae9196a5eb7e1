"""Lifetimes of tokens, and the tokens that a log-out has revoked, until they expire."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec

from lamplighter.engine.client.state_files import StateFile
from lamplighter.engine.errors import QueueFullError, UnauthorizedError
from lamplighter.gateway.disk import Disk


class ClockReading(msgspec.Struct, frozen=True):
    """A time on all clocks. boot: the start of the machine that `up_us` counts from; wall_us: since 1970; trusted:
    whether the wall clock was synchronised."""

    boot: str
    up_us: int
    wall_us: int
    trusted: bool

    # Within a boot, CLOCK_BOOTTIME counts: steps of the wall clock do not change a lifetime, and a board without a
    # clock can issue tokens. Across boots only the wall clock is left: where it was not trusted at issue or is not
    # trusted now, the token is expired and the client fetches another.
    def is_over(self, life_us: int, now: ClockReading) -> bool:
        """Whether a lifetime that began at this moment is over, as far as is known now."""
        if self.boot == now.boot:
            return not 0 <= now.up_us - self.up_us < life_us
        return not (self.trusted and now.trusted and 0 <= now.wall_us - self.wall_us < life_us)

    def is_over_for_ever(self, life_us: int, now: ClockReading) -> bool:
        """Whether the lifetime is over whatever a clock that becomes trusted or is stepped back says later."""
        if self.boot == now.boot:
            return now.up_us - self.up_us >= life_us
        return not self.trusted or (now.trusted and now.wall_us - self.wall_us >= life_us)


REVOKED = "revoked.json"  # stored, because the keys outlive a restart, too
REVOKED_MAX = 5_000  # revoked tokens that have not expired
PER_CLIENT_MAX = 100  # those of one client, so that none can use up the room of the others


class RevokedToken(msgspec.Struct, frozen=True):
    """id: the claim `jti`; at, life_us: when it was issued, and its lifetime."""

    id: str
    client: str
    at: ClockReading
    life_us: int


class RevokedTokens:
    """The revoked tokens of a gateway, with their file in a folder. Raises ConfigurationError when it is damaged."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / REVOKED
        self._disk = disk
        self._writing = asyncio.Lock()
        cure = "restore a copy, or remove it and run `lamplighter keys rotate --revoke`: clients then fetch new tokens"
        self._file = StateFile(self._path, list[RevokedToken], cure)
        self._tokens = {one.id: one for one in self._file.read() or []}

    def __contains__(self, token_id: str) -> bool:
        return token_id in self._tokens

    async def add(self, token: RevokedToken, now: ClockReading) -> None:
        """Revokes a token; durable on return. Raises QueueFullError when there is no room, UnauthorizedError when it
        cannot be stored: then the token is revoked until the next start."""
        self._tokens = {
            name: one for name, one in self._tokens.items() if not one.at.is_over_for_ever(one.life_us, now)
        }
        of_client = Counter(one.client for one in self._tokens.values())[token.client]
        if token.id not in self._tokens and (of_client >= PER_CLIENT_MAX or len(self._tokens) >= REVOKED_MAX):
            raise QueueFullError(
                f"{of_client} tokens of this client and {len(self._tokens)} of all are revoked and have not expired; "
                "there is no room for another. `lamplighter keys rotate --revoke` ends all tokens at once"
            )
        self._tokens[token.id] = token
        async with self._writing:
            content = self._file.encode(list(self._tokens.values()))
            try:
                await asyncio.to_thread(self._disk.write_file, self._path, [content])
            except OSError as error:
                reason = f"the log-out cannot be stored: {error.strerror}; it is lost if the gateway restarts"
                raise UnauthorizedError("security_error", reason, 500) from error
            self._file.commit()
