"""The registrations of the resource directory (RFC 9176) in the dataset: they outlive a restart, and expire.

::

    DirectorySite ─▶ Registrations ─▶ Directory (values)
                          │  ├──────▶ graph <base>graph/registrations, before the answer
                          │  └──────▶ listener: devices come, stay and go
                          └─────────▶ GET /.well-known/core of a source that registers simply
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

import msgspec

from lamplighter.adapters.client import RETRY_MAX_S, RETRY_MIN_S, AdapterClient
from lamplighter.adapters.coap import links
from lamplighter.adapters.coap.directory import Directory, Registrant, Registration, RegistrationError, registration_id
from lamplighter.adapters.coap.exchanges import Exchanges
from lamplighter.adapters.coap.links import LINK_FORMAT, Link
from lamplighter.adapters.coap.serving import SiteCaller
from lamplighter.adapters.literals import datetime_term
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.resources.exchange import DeviceRequest
from lamplighter.engine.client import DeclaredCause, UpdateRequest
from lamplighter.engine.errors import GatewayError, PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import TokenBuckets, back_off_s
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import (
    COAP_BASE,
    ENDPOINT_NAME,
    EXPIRES,
    LIFETIME,
    LINKS,
    OF_DEVICE,
    PARAMETERS,
    RDF_TYPE,
    REGISTRATION,
    SECTOR,
)

# How often it is looked which registrations have expired.
CHECK_S = 1.0
# Registrations of one source without a security context. One source must not fill the directory.
SOURCE_REGISTRATIONS_MAX = 100
# Simple registrations whose links are being fetched, of all sources and of one.
FETCHES_MAX, SOURCE_FETCHES_MAX = 16, 8
# After so long, links are not fetched any more.
FETCH_S = 60.0
# How long a request waits until its registration is stored.
STORE_S = 20.0
# How often registrations of an address mean that its device has started again, so that it is sent its states. Everybody
# can register any address. RETURNS_MAX addresses are remembered.
RETURNS_PER_S, RETURNS_BURST, RETURNS_MAX = 1 / 60, 5, 1_000
# Updates in one message to the gateway.
PORTION_MAX = 50
# Of an IPv6 address: the network that one machine may have.
_MACHINE_BITS = 64

# registered: the endpoint registered itself; it may have started again. updated: it said that it is there still, or
# registers again and again.
Event = Literal["restored", "registered", "updated", "ended"]

# Registrations that changed, with the requests that wait until they are stored.
_Waiting = dict[str, list["asyncio.Future[bool]"]]

logger = EventLogger(__name__)


class UnavailableError(Exception):
    """The directory takes no requests now: it is not read from the dataset yet, or cannot be stored."""


class RegistrationListener(Protocol):
    """What follows from registrations. `ready` returns when it can take them; `identity` is the device's, "" if the
    registration has no links that can be used; `note` takes why a simple registration failed."""

    async def ready(self) -> None: ...
    def took(self, event: Event, registration: Registration) -> None: ...
    def identity(self, registration: Registration) -> str: ...
    def note(self, place: str, reason: str) -> None: ...


def registrant_of(caller: SiteCaller) -> Registrant:
    address, port = caller.origin
    host = f"[{str(address).partition('%')[0]}]" if address.version == 6 else f"{address}"
    return Registrant(f"coap://{host}:{port}", caller.device if caller.protected else "", caller.zone, caller.verified)


def machine_of(caller: SiteCaller) -> str:
    """The same for all addresses that one machine may have: an IPv4 address, or a /64 network of IPv6."""
    address = caller.origin.address
    if address.version == 4:
        return f"{address}"
    return f"{ipaddress.ip_network((int(address), _MACHINE_BITS), strict=False)}"


class Registrations:
    """The directory of one gateway.

    exchanges: for the links of simple registrations. now: the time, with a time zone; monotonic: seconds.
    """

    def __init__(
        self,
        client: AdapterClient,
        exchanges: Exchanges,
        listener: RegistrationListener,
        *,
        base_iri: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = Directory(monotonic)
        self.ready = False
        self._triples = RegistrationTriples(base_iri)
        self._client, self._exchanges, self._listener = client, exchanges, listener
        self._now, self._monotonic = now, monotonic
        # The source of each registration that no security context owns.
        self._sources: dict[str, str] = {}
        self._unstored: _Waiting = {}
        self._work = asyncio.Event()
        self._returns = TokenBuckets(RETURNS_PER_S, RETURNS_BURST, RETURNS_MAX, forgets=False)
        # With the source of each.
        self._fetches: dict[str, tuple[asyncio.Task[None], str]] = {}
        self._counts = dict.fromkeys(("registrations", "registrations_expired", "registrations_failed"), 0)

    def counts(self) -> dict[str, int]:
        """Since the start: registrations that were made or made again, that expired, and simple ones that failed."""
        return dict(self._counts)

    async def run(self) -> None:
        """Runs until cancelled. Raises UpstreamError, alone or in a group, when the client is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(), name="coap registrations")
                await self._listener.ready()
                await self._restore()
                while True:
                    await asyncio.sleep(CHECK_S)
                    self.expire()
        finally:
            self.ready = False
            fetches = [fetch for fetch, _ in self._fetches.values()]
            for fetch in fetches:
                fetch.cancel()
            await asyncio.gather(*fetches, return_exceptions=True)

    # Requests. They raise RegistrationError, and UnavailableError.

    async def register(self, query: Sequence[str], text: bytes, caller: SiteCaller) -> Registration:
        """Registers an endpoint; stored on return."""
        self._check_ready()
        return await self._register(query, text, caller, simple=False)

    def register_simply(self, query: Sequence[str], caller: SiteCaller) -> None:
        """Registers a source after its links were fetched. They are fetched later; once for each endpoint at a time.

        The source must be verified, because the request for its links is larger than its own.
        """
        self._check_ready()
        # Before the fetch: a request that cannot succeed sends nothing.
        id_ = self.directory.checked_id(query, registrant_of(caller), simple=True)
        self._check_room(id_, caller)
        # An endpoint that repeats its request waits for the same links.
        if id_ in self._fetches:
            return
        source = machine_of(caller)
        of_source = sum(one == source for _, one in self._fetches.values())
        if len(self._fetches) >= FETCHES_MAX or of_source >= SOURCE_FETCHES_MAX:
            raise UnavailableError
        fetch = asyncio.get_running_loop().create_task(self._fetch(tuple(query), caller), name=f"coap links {id_}")
        self._fetches[id_] = fetch, source
        fetch.add_done_callback(lambda _: self._fetches.pop(id_, None))

    async def update(self, id_: str, query: Sequence[str], caller: SiteCaller) -> Registration:
        """Starts the lifetime again; stored on return."""
        self._check_ready()
        changed = self.directory.update(id_, query, registrant_of(caller))
        # A security context has limits of its own, so it is not counted by address.
        if changed.owner:
            self._sources.pop(id_, None)
        self._listener.took("updated", changed)
        await self._wait_until_stored(id_)
        return changed

    async def remove(self, id_: str, caller: SiteCaller) -> None:
        """Removes a registration; stored on return."""
        self._check_ready()
        self._end(self.directory.remove(id_, registrant_of(caller)))
        await self._wait_until_stored(id_)

    def get(self, id_: str) -> Registration:
        self._check_ready()
        return self.directory.get(id_)

    def endpoints(self, query: Sequence[str], caller: SiteCaller) -> list[Link]:
        """The endpoints that a query asks for, as links."""
        self._check_ready()
        return self.directory.lookup_endpoints(query, caller.zone)

    def resources(self, query: Sequence[str], caller: SiteCaller) -> list[Link]:
        """The resources of endpoints that a query asks for."""
        self._check_ready()
        return self.directory.lookup_resources(query, caller.zone)

    def expire(self) -> None:
        """Removes the registrations whose lifetime is over."""
        # Nobody waits for these, so they are stored without a future.
        for one in self.directory.due(self._monotonic()):
            self._counts["registrations_expired"] += 1
            logger.info("coap registration expired", endpoint=one.endpoint, base=one.base)
            self._end(one)
            self._unstored.setdefault(one.id, [])
            self._work.set()

    def _check_ready(self) -> None:
        if not self.ready:
            raise UnavailableError

    def _check_room(self, id_: str, caller: SiteCaller) -> None:
        source = machine_of(caller)
        if caller.protected or self._sources.get(id_) == source:
            return
        if sum(name == source for name in self._sources.values()) >= SOURCE_REGISTRATIONS_MAX:
            raise RegistrationError("full", f"one source has at most {SOURCE_REGISTRATIONS_MAX} registrations")

    async def _register(self, query: Sequence[str], text: bytes, caller: SiteCaller, *, simple: bool) -> Registration:
        registrant = registrant_of(caller)
        self._check_room(self.directory.checked_id(query, registrant, simple=simple), caller)
        new = self.directory.register(query, text, registrant, simple=simple)
        self._sources.pop(new.id, None)
        if not new.owner:
            self._sources[new.id] = machine_of(caller)
        self._counts["registrations"] += 1
        self._listener.took("registered" if self._may_have_returned(new.base) else "updated", new)
        await self._wait_until_stored(new.id)
        return new

    def _may_have_returned(self, base: str) -> bool:
        """Whether the device at an address may have started again."""
        now = self._monotonic()
        with suppress(PayloadError):  # of a base of another scheme
            base = uris.authority(uris.coap(base))
        return not self._returns.take(base, now)

    async def _fetch(self, query: Sequence[str], caller: SiteCaller) -> None:
        """Fetches the links of a source, and registers it (section 5.1)."""
        place = f"{registrant_of(caller).base}/.well-known/core"
        try:
            device = caller.device if caller.protected else ""
            request = DeviceRequest(place, "GET", accept=LINK_FORMAT, device=device, retried=True)
            try:
                async with asyncio.timeout(FETCH_S):  # half of the slots stay free for commands
                    answer = await self._exchanges.request(request)
            except TimeoutError as error:
                raise UpstreamError(f"the links did not come within {FETCH_S:g} s") from error
            if not answer.successful or answer.format not in (None, LINK_FORMAT):
                raise UpstreamError(f"the device answered {answer.code} instead of its links")
            await self._register(query, answer.body, caller, simple=True)
        except UnavailableError:
            self._counts["registrations_failed"] += 1
        except (UpstreamError, PayloadError) as error:
            self._counts["registrations_failed"] += 1
            self._listener.note(place, f"simple registration: {error}")

    def _end(self, registration: Registration) -> None:
        self._sources.pop(registration.id, None)
        self._listener.took("ended", registration)

    # The dataset

    async def _restore(self) -> None:
        """Reads the registrations of an earlier run. Raises UpstreamError when the client is closed."""
        count = 0
        try:
            async with aclosing(self._client.subscribe(self._triples.query)) as notifications:
                first = await anext(notifications)
        except UpstreamError:
            raise
        except GatewayError as error:
            logger.error("coap registrations not read", reason=error)
            return  # the directory takes no requests: it could not store them
        for row in first.added:
            try:
                known, source, expires = self._triples.read(row)
                remaining_s = (expires - self._now()).total_seconds()
                self.directory.restore(known, min(remaining_s, known.lifetime_s))  # the clock may have been wrong
            except (ValueError, PayloadError) as error:
                logger.warning("coap registration unreadable", reason=error)
                continue
            if not known.owner:
                self._sources[known.id] = source
            self._listener.took("restored", known)
            count += 1
        self.ready = True
        logger.info("coap registrations known", registrations=count)

    async def _wait_until_stored(self, id_: str) -> None:
        """Stores a registration as it is then, or that it has gone. Raises UnavailableError if it is not stored in
        time; it may be stored later."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._unstored.setdefault(id_, []).append(done)
        self._work.set()
        # The device repeats a request without an answer; a later one finds it stored.
        await asyncio.wait([done], timeout=STORE_S)
        if not done.done() or not done.result():
            raise UnavailableError

    async def _write(self) -> None:
        failures = 0
        while True:
            await self._work.wait()
            self._work.clear()
            while self._unstored:
                portion = {id_: self._unstored.pop(id_) for id_ in list(self._unstored)[:PORTION_MAX]}
                again = await self._send(portion)
                for id_ in again:
                    # It may have changed again meanwhile: `_text` writes it as it is then, for all who wait.
                    self._unstored[id_] = portion[id_] + self._unstored.get(id_, [])
                failures = failures + 1 if again else 0
                if again:
                    await asyncio.sleep(back_off_s(failures, RETRY_MIN_S, RETRY_MAX_S))

    async def _send(self, portion: _Waiting) -> list[str]:
        """Those without a final answer."""
        cause = DeclaredCause("coap", "registrations")
        requests = [UpdateRequest(sparql=self._text(id_), cause=cause) for id_ in portion]
        again = []
        for (id_, waiting), answer in zip(portion.items(), await self._client.updates(requests), strict=True):
            if isinstance(answer, GatewayError) and answer.retriable:
                again.append(id_)
                continue
            if isinstance(answer, GatewayError):
                logger.error("coap registration not stored", registration=id_, reason=answer)
            for done in waiting:
                if not done.done():
                    done.set_result(not isinstance(answer, GatewayError))
        return again

    def _text(self, id_: str) -> str:
        try:
            known = self.directory.get(id_)
        except RegistrationError:
            return self._triples.removal(id_)
        expires = self._now() + timedelta(seconds=known.expires - self._monotonic())
        return self._triples.update(known, self._sources.get(id_, ""), expires, self._listener.identity(known))


class _StoredParameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a registration has beside the properties of its node. source: as `machine_of`."""

    attributes: tuple[tuple[str, str | None], ...] = ()
    given: bool = False
    owner: str = ""
    source: str = ""
    zone: str = ""


class RegistrationTriples:
    """Registrations as triples: updates, and the query that reads them. Pure. base_iri: ends with a slash."""

    def __init__(self, base_iri: str) -> None:
        self._base_iri = base_iri
        self._graph = iri(f"{base_iri}graph/registrations")

    @property
    def query(self) -> str:
        """All registrations; a row is read by `read`."""
        return f"""\
SELECT ?endpoint ?sector ?base ?links ?lifetime ?expires ?parameters WHERE {{
  GRAPH {self._graph} {{
    ?registration <{RDF_TYPE}> <{REGISTRATION}> ; <{ENDPOINT_NAME}> ?endpoint ; <{COAP_BASE}> ?base ;
      <{LINKS}> ?links ; <{LIFETIME}> ?lifetime ; <{EXPIRES}> ?expires ; <{PARAMETERS}> ?parameters .
    OPTIONAL {{ ?registration <{SECTOR}> ?sector }}
  }}
}}"""

    def read(self, row: Sequence[Term | None]) -> tuple[Registration, str, datetime]:
        """A registration, its source and when it expires. Its `expires` has no meaning. Raises ValueError,
        PayloadError."""
        endpoint, sector, base, text, lifetime, expires, parameters = (
            "" if term is None else lexical(term) for term in row
        )
        further = msgspec.json.decode(parameters, type=_StoredParameters)
        end = datetime.fromisoformat(expires)
        if end.tzinfo is None:
            raise ValueError("the end of the lifetime has no time zone")
        known = Registration(
            id=registration_id(endpoint, sector),
            endpoint=endpoint,
            sector=sector,
            base=base,
            given=further.given,
            lifetime_s=int(lifetime),
            expires=0.0,
            links=tuple(links.parse_links(text.encode())),
            attributes=further.attributes,
            owner=further.owner,
            zone=further.zone,
        )
        links.resolve("/", base)
        links.links_text([known.link, *known.resources()])  # both raise for what no lookup could answer with
        return known, further.source, end

    def update(self, registration: Registration, source: str, expires: datetime, identity: str) -> str:
        """Replaces a registration. identity: of its device, "" if it has none."""
        one = registration
        further = _StoredParameters(one.attributes, one.given, one.owner, source, one.zone)
        triples = [
            (RDF_TYPE, iri(REGISTRATION)),
            (ENDPOINT_NAME, literal(one.endpoint)),
            (COAP_BASE, literal(one.base)),
            (LINKS, literal(links.links_text(one.links))),
            (LIFETIME, literal(str(one.lifetime_s), datatype=XSD + "integer")),
            (EXPIRES, datetime_term(expires, "seconds")),
            (PARAMETERS, literal(msgspec.json.encode(further).decode())),
        ]
        if one.sector:
            triples.append((SECTOR, literal(one.sector)))
        if identity:
            triples.append((OF_DEVICE, iri(f"{self._base_iri}device/{identity}")))
        node = self._node(one.id)
        lines = "".join(f"  {node} <{name}> {value} .\n" for name, value in triples)
        return (
            f"WITH {self._graph}\nDELETE {{ {node} ?property ?value }}\nINSERT {{\n{lines}}}\n"
            f"WHERE {{ OPTIONAL {{ {node} ?property ?value }} }}"
        )

    def removal(self, id_: str) -> str:
        return f"DELETE WHERE {{ GRAPH {self._graph} {{ {self._node(id_)} ?property ?value }} }}"

    def _node(self, id_: str) -> Term:
        return iri(f"{self._base_iri}registration/{id_}")
