"""The gateway as its own authorization server: registers clients, issues and checks tokens
(SEPA protocol, 3.1 to 3.5; RFC 6749, 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from lamplighter.engine.access import Access
from lamplighter.engine.errors import GatewayError, UnauthorizedError
from lamplighter.engine.pacing import TokenBuckets
from lamplighter.engine.protocol import Priority
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.security.audit import audit, log_refusal
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.security.peers import network, origin, too_many
from lamplighter.gateway.security.permissions import EVERYTHING, Permissions
from lamplighter.gateway.security.registry import Client, ClientRegistry, check_name
from lamplighter.gateway.security.tokens import TokenIssuer
from lamplighter.gateway.settings.security import Registration, SecuritySettings

# Wrong one-time codes from one address. After them, the address has one try each `CODE_WAIT_S`. The code stays valid.
CODE_TRIES = 5
CODE_WAIT_S = 120
CODES_PER_S = 50  # codes that may be tried, over all addresses. 2^40 codes take 700 years at that rate.
TEST_IDENTITY = "SEPATest"
TEST_TOKEN_LIFE_S = 5
_TEST_CLIENT = Client(
    name=TEST_IDENTITY,
    permissions=Permissions(read=EVERYTHING, write=EVERYTHING, subscribe=EVERYTHING),
    registration="test",
)


@dataclass(frozen=True)
class IssuedCredentials:
    client_id: str
    client_secret: str


@dataclass(frozen=True)
class GrantedCredentials:
    token: str
    life_s: int


class Authorization:
    """Authorization for both gates. An address that is refused too often has to wait; valid credentials still pass."""

    def __init__(
        self,
        settings: SecuritySettings,
        clock: Clock,
        registry: ClientRegistry,
        tokens: TokenIssuer,
        permitted: Callable[[Access], Access] = lambda named: named,
    ) -> None:
        """permitted: what a client may do that has permissions for the named graphs (`Sources.readable`)."""
        self._permitted = permitted
        self.registry = registry
        self.tokens = tokens
        self._clock = clock
        self._grant = Permissions(
            read=settings.grant_read, write=settings.grant_write, subscribe=settings.grant_subscribe
        )
        self._callers: dict[str, tuple[Client, Caller]] = {}
        self.apply(settings)

    def apply(self, settings: SecuritySettings) -> None:
        """Applies rates, registration and the lifetime of tokens; every bucket is full again."""
        attempts = settings.attempts_per_min
        self._settings = settings
        self._attempts = TokenBuckets(attempts / 60, attempts)
        self._requests = TokenBuckets(settings.requests_per_s, settings.requests_per_s)
        self._guesses = TokenBuckets(1 / CODE_WAIT_S, CODE_TRIES)
        self._all_guesses = TokenBuckets(CODES_PER_S, CODES_PER_S)

    def _now_s(self) -> float:
        return self._clock.boottime_us() / 1e6

    async def register(self, identity: str, code: str | None, address: str) -> IssuedCredentials:
        """code: a one-time code; it may also follow the identity, ``name#CODE``, for clients that can send nothing
        else. Raises UnauthorizedError, MalformedRequestError, QueueFullError."""
        if self._settings.test_identity and identity == TEST_IDENTITY:
            audit("registered", client=identity, address=address, test=True)
            return IssuedCredentials(TEST_IDENTITY, TEST_IDENTITY)
        name = identity
        if code is None and "#" in identity and self.registry.clients.get(identity) is None:
            name, _, code = identity.rpartition("#")
        # No caller is authenticated yet, so every call counts.
        self._attempt(address)
        try:
            check_name(name)
            if code is not None:
                self._guess(address)
            client, secret = await self.registry.register(
                name, code, self._settings.registration, self._grant, origin(None, address)
            )
        except GatewayError as error:
            log_refusal("registration_refused", client=name, address=address, reason=error.code)
            raise
        if code is not None:  # not a guess
            self._guesses.give_back(network(address))
            self._all_guesses.give_back("")
        audit("registered", client=client.name, address=address, mode=self._settings.registration)
        return IssuedCredentials(client.name, secret)

    def token(self, client_id: str, secret: str, address: str) -> GrantedCredentials:
        """Raises UnauthorizedError, QueueFullError."""
        if self._settings.test_identity and client_id == secret == TEST_IDENTITY:
            client, life_s = _TEST_CLIENT, TEST_TOKEN_LIFE_S
        else:
            try:
                client, life_s = self.registry.authenticate(client_id, secret), self._settings.token_life_s
            except UnauthorizedError as error:
                self.refuse(address, "token_refused", error, client=client_id)
        self._limit(client.name)
        token = self.tokens.give(client.name, client.registration, life_s)
        audit("token_given", client=client.name, address=address, life_s=life_s)
        return GrantedCredentials(token, life_s)

    async def revoke(self, token: str, address: str) -> None:
        """Ends a token before it expires. Raises UnauthorizedError when it cannot be stored, QueueFullError."""
        # One that is not valid needs none of it, but counts as an attempt.
        try:
            claims = self.tokens.check(token)
        except UnauthorizedError:
            self._attempt(address)
            return
        self._limit(claims.client)
        await self.tokens.revoke(token)
        audit("token_revoked", client=claims.client, address=address)

    def caller(self, authorization: object, address: str) -> Caller:
        """The caller with this header: None for none, a list for several. Raises UnauthorizedError, QueueFullError."""
        try:
            client = self._client(authorization)
        except UnauthorizedError as error:
            self.refuse(address, "request_refused", error)
        self._limit(client.name)
        return self._caller(client)

    def _caller(self, client: Client) -> Caller:
        known = self._callers.get(client.name)
        if known is None or known[0] is not client:
            if len(self._callers) > self._settings.clients_max:
                self._callers.clear()
            permissions = client.permissions
            access = self._permitted(permissions.access)
            highest = Priority.of(permissions.priority)
            known = client, Caller(client.name, access, permissions.operate, registered=True, highest=highest)
            self._callers[client.name] = known
        return known[1]

    @property
    def registration(self) -> Registration:
        return self._settings.registration

    def access_of(self, name: str) -> Access | None:
        """The current permissions of a client; None for one that is not registered (any more)."""
        if self._settings.test_identity and name == TEST_IDENTITY:
            return _TEST_CLIENT.permissions.access
        client = self.registry.clients.get(name)
        return None if client is None or not client.registration else self._caller(client).access

    def refuse(self, address: str, event: str, error: UnauthorizedError, **fields: object) -> NoReturn:
        """Raises the error, or QueueFullError after too many errors from that address."""
        self._attempt(address)
        log_refusal(event, **fields, address=address, reason=error.code, why=str(error))
        raise error

    def _client(self, authorization: object) -> Client:
        if not isinstance(authorization, str):
            raise UnauthorizedError(
                "invalid_request", "there must be one authorization, Bearer and a token from /oauth/token"
            )
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthorizedError(
                "unsupported_grant_type", "the scheme of the authorization must be Bearer, with a token after it"
            )
        claims = self.tokens.check(token.strip())
        if self._settings.test_identity and claims.registration == _TEST_CLIENT.registration:
            return _TEST_CLIENT
        client = self.registry.clients.get(claims.client)
        if client is None or not client.registration or client.registration != claims.registration:
            raise UnauthorizedError("invalid_grant", "the client of this token is no longer registered")
        return client

    def _limit(self, name: str) -> None:
        wait_s = self._requests.take(name, self._now_s())
        if wait_s:
            raise too_many(wait_s, f"security.requests_per_s = {self._settings.requests_per_s} is reached")

    def _guess(self, address: str) -> None:
        """Counts a code before it is checked, so that parallel requests do not bypass the limit."""
        wait_s = self._guesses.take(network(address), self._now_s())
        if wait_s:
            raise too_many(wait_s, f"{CODE_TRIES} wrong codes came from this address")
        wait_s = self._all_guesses.take("", self._now_s())
        if wait_s:
            self._guesses.give_back(network(address))  # it was not checked
            raise too_many(wait_s, "too many wrong codes come from many addresses")

    def _attempt(self, address: str) -> None:
        wait_s = self._attempts.take(network(address), self._now_s())
        if wait_s:
            raise too_many(wait_s, "too many attempts with invalid credentials came from this address")
