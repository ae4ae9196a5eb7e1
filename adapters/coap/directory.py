"""The resource directory (RFC 9176): registrations of endpoints, their lifetimes, and lookups. Pure: values in, values
out, with a passed clock.

A registration is one endpoint, by its name and sector, with its links. Endpoints on the network write them, so numbers
and lengths are bounded, for one registration and for all.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Literal
from urllib.parse import urlsplit

from lamplighter.adapters.coap import links
from lamplighter.adapters.coap.links import Criterion, Link
from lamplighter.engine.errors import PayloadError

# Of the directory. Registrations lie below it.
PATH = "/rd"
REGISTRATIONS_MAX = 1_000
LINKS_MAX = 200
# Of one registration.
LINKS_BYTES_MAX = 16_384
LINKS_ALL_MAX = 20_000
# Of all registrations. Links take about 15 times the memory of their text.
LINKS_BYTES_ALL_MAX = 2 * 1024 * 1024
# Of an endpoint's name and of a sector.
NAME_BYTES_MAX = 63
BASE_BYTES_MAX = 255
ATTRIBUTES_MAX = 16
ATTRIBUTE_BYTES_MAX = 255
LIFETIME_DEFAULT_S = 90_000
# A shorter lifetime counts as the shortest one.
LIFETIME_MIN_S, LIFETIME_MAX_S = 60, 2**32 - 1
# Of page and count; no lookup has so many links.
COUNT_MAX = 2**15

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DECIMAL = re.compile(r"[0-9]{1,10}")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9!$&+._~-]{1,64}")
_BASE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=-]+)(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~:@/-]*)?"
)
# Names with a meaning of their own in lookups.
_NOT_ATTRIBUTES = frozenset({"href", "anchor", "rel", "rev", "rt", "page", "count"})

Reason = Literal["malformed", "foreign", "unknown", "full"]


class RegistrationError(PayloadError):
    """A registration, or a lookup, is refused.

    reason: "malformed" (4.00), "foreign": another one owns the endpoint (4.03), "unknown" (4.04), "full": there is no
    room now (5.03).
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Registration:
    """One endpoint.

    id: the last segment of its location. endpoint, sector: its identity. base: URI that its links are resolved against;
    given: whether the endpoint gave it, and its address was not taken instead. expires: by the clock of the directory.
    links: as they were sent. attributes: further parameters, such as et. owner: the security context that may change
    the registration; empty: every source that is permitted. zone: the interface of a link-local base. proven: whether
    the source has shown that its address is the base; not stored.
    """

    id: str
    endpoint: str
    sector: str
    base: str
    given: bool
    lifetime_s: int
    expires: float
    links: tuple[Link, ...]
    attributes: tuple[tuple[str, str | None], ...] = ()
    owner: str = ""
    zone: str = ""
    proven: bool = False

    @property
    def location(self) -> str:
        return f"{PATH}/{self.id}"

    def resources(self, conditions: Sequence[Criterion] = ()) -> Iterator[Link]:
        """The links that meet all conditions, with full URIs (RFC 9176 section 6.1)."""
        # Resolving is dear: the other conditions leave few links for it.
        on_uris = [one for one in conditions if one.name in ("href", "anchor")]
        for link in links.filter_links(self.links, [one for one in conditions if one not in on_uris]):
            full = _resolve_link(link, self.base)
            if all(links.matches(full, one) for one in on_uris):
                yield full

    @property
    def link(self) -> Link:
        """The registration in a lookup of endpoints (section 6.4)."""
        sector: tuple[tuple[str, str | None], ...] = (("d", self.sector),) if self.sector else ()
        known = (("ep", self.endpoint), *sector, ("base", self.base), ("rt", "core.rd-ep"))
        return Link(self.location, (*known, *self.attributes))


@dataclass(frozen=True, slots=True)
class Registrant:
    """Where a request comes from. base: the URI of its address, such as ``coap://192.168.7.20:5683``; owner, zone: as
    in `Registration`; verified: whether it has shown that it receives our answers."""

    base: str
    owner: str = ""
    zone: str = ""
    verified: bool = False


@dataclass(slots=True)
class _Parameters:
    """The query of a registration or update."""

    endpoint: str = ""
    sector: str = ""
    base: str = ""
    lifetime_s: int | None = None
    attributes: list[tuple[str, str | None]] = field(default_factory=list)


class Directory:
    """The registrations of one gateway. monotonic: the clock that lifetimes are measured with, in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._registrations: dict[str, Registration] = {}
        self._bytes: dict[str, int] = {}
        self._links = self._links_bytes = 0

    def __len__(self) -> int:
        return len(self._registrations)

    @property
    def links(self) -> int:
        """Of all registrations."""
        return self._links

    def register(
        self, query: Iterable[str], text: bytes, registrant: Registrant, *, simple: bool = False
    ) -> Registration:
        """Registers an endpoint, or replaces its registration (section 5).

        query: the Uri-Query options. text: its links in the link format. simple: the links were fetched from the
        registrant (section 5.1), so that the query has no base. Raises RegistrationError.
        """
        found = _parameters(query)
        id_ = self._new_id(found, registrant, simple=simple)
        lifetime_s = found.lifetime_s or LIFETIME_DEFAULT_S
        new = Registration(
            id=id_,
            endpoint=found.endpoint,
            sector=found.sector,
            # RFC 9176 section 5: without a base, the address that the request came from.
            base=found.base or registrant.base,
            given=bool(found.base),
            lifetime_s=lifetime_s,
            expires=self._monotonic() + lifetime_s,
            links=_links(text),
            attributes=tuple(found.attributes),
            owner=registrant.owner,
            zone=registrant.zone,
            # A base that the endpoint wrote may be the address of another machine.
            proven=registrant.verified and not found.base,
        )
        self._store(new)
        return new

    def checked_id(self, query: Iterable[str], registrant: Registrant, *, simple: bool = False) -> str:
        """The id that a registration would have, before its links are known. Raises RegistrationError."""
        return self._new_id(_parameters(query), registrant, simple=simple)

    def restore(self, registration: Registration, remaining_s: float) -> None:
        """Adds a registration of an earlier run, which expires after the time given. Raises RegistrationError."""
        # At least so long, so that an endpoint can update it after a long stop of the gateway.
        self._store(replace(registration, expires=self._monotonic() + max(remaining_s, LIFETIME_MIN_S)))

    def update(self, id_: str, query: Iterable[str], registrant: Registrant) -> Registration:
        """Starts the lifetime again, with changed parameters (section 5.3.1). Raises RegistrationError."""
        known = self.get(id_)
        self._check_owner(known, registrant)
        found = _parameters(query)
        if found.endpoint not in ("", known.endpoint) or found.sector not in ("", known.sector):
            raise RegistrationError("malformed", "the name and the sector of an endpoint cannot be changed")
        names = {name for name, _ in found.attributes}
        attributes = [one for one in known.attributes if one[0] not in names] + found.attributes
        if len(attributes) > ATTRIBUTES_MAX:
            raise RegistrationError("malformed", f"an endpoint has at most {ATTRIBUTES_MAX} attributes")
        lifetime_s = found.lifetime_s or known.lifetime_s
        changed = replace(
            known,
            # An endpoint whose address has changed renews it by its update, unless it had given a base.
            base=found.base or (known.base if known.given else registrant.base),
            given=known.given or bool(found.base),
            lifetime_s=lifetime_s,
            expires=self._monotonic() + lifetime_s,
            attributes=tuple(attributes),
            owner=registrant.owner or known.owner,
            zone=registrant.zone,
            proven=registrant.verified and not (known.given or found.base),
        )
        self._registrations[id_] = changed
        return changed

    def remove(self, id_: str, registrant: Registrant) -> Registration:
        """Removes a registration (section 5.3.2). Returns it as it was. Raises RegistrationError."""
        known = self.get(id_)
        self._check_owner(known, registrant)
        return self._drop(id_)

    def get(self, id_: str) -> Registration:
        """The registration, unless it has expired. Raises RegistrationError."""
        known = self._registrations.get(id_)
        if known is None or known.expires <= self._monotonic():
            raise RegistrationError("unknown", "there is no such registration; register again")
        return known

    def due(self, now: float) -> list[Registration]:
        """Removes the registrations whose lifetime is over, and returns them."""
        return [self._drop(one.id) for one in list(self._registrations.values()) if one.expires <= now]

    def next_due(self) -> float | None:
        """When the next lifetime is over; None without registrations."""
        return min((one.expires for one in self._registrations.values()), default=None)

    def lookup_endpoints(self, query: Iterable[str], zone: str = "") -> list[Link]:
        """The endpoints that meet all conditions of a query, each by itself or by one of its links (section 6.2).

        query: conditions, page and count. zone: the interface of the request; link-local endpoints of others are left
        out. Raises RegistrationError.
        """
        page, conditions = _page(query)
        shown = (
            one.link
            for one in self._visible(zone)
            if all(any(one.resources([condition])) for condition in _unmet(one, conditions))
        )
        return list(islice(shown, page.start, page.stop))

    def lookup_resources(self, query: Iterable[str], zone: str = "") -> list[Link]:
        """The links that meet all conditions of a query, each by itself or by its endpoint (section 6.2).

        query, zone: as for endpoints. Raises RegistrationError.
        """
        page, conditions = _page(query)
        shown = (link for one in self._visible(zone) for link in one.resources(_unmet(one, conditions)))
        return list(islice(shown, page.start, page.stop))

    def _visible(self, zone: str) -> Iterable[Registration]:
        now = self._monotonic()
        for one in self._registrations.values():
            if one.expires > now and (not _is_link_local(one.base) or (zone and one.zone == zone)):
                yield one

    def _new_id(self, found: _Parameters, registrant: Registrant, *, simple: bool) -> str:
        if not found.endpoint:
            raise RegistrationError("malformed", "the endpoint name is missing; write ep=NAME")
        if simple and found.base:
            raise RegistrationError("malformed", "a simple registration has no base; its address is taken")
        id_ = registration_id(found.endpoint, found.sector)
        self._check_owner(self._registrations.get(id_), registrant)
        return id_

    def _check_owner(self, known: Registration | None, registrant: Registrant) -> None:
        if known is None or known.expires <= self._monotonic():
            return
        # An unprotected registration may be taken over by a protected one, not the other way round.
        if known.owner not in ("", registrant.owner):
            raise RegistrationError("foreign", "the endpoint is registered by another security context")

    def _store(self, new: Registration) -> None:
        """Adds or replaces a registration, if there is room. A replaced one keeps its place in lookups."""
        known, size = self._registrations.get(new.id), len(links.links_text(new.links).encode())
        count = self._links + len(new.links) - (0 if known is None else len(known.links))
        size_all = self._links_bytes + size - self._bytes.get(new.id, 0)
        room = known is not None or len(self._registrations) < REGISTRATIONS_MAX
        if not room or count > LINKS_ALL_MAX or size_all > LINKS_BYTES_ALL_MAX:
            raise RegistrationError("full", "the directory is full")
        self._links, self._links_bytes = count, size_all
        self._registrations[new.id] = new
        self._bytes[new.id] = size

    def _drop(self, id_: str) -> Registration:
        known = self._registrations.pop(id_)
        self._links -= len(known.links)
        self._links_bytes -= self._bytes.pop(id_)
        return known


def registration_id(endpoint: str, sector: str = "") -> str:
    """The same for the same endpoint, also after a restart."""
    # RFC 9176 section 5: the same endpoint has the same location again.
    return hashlib.sha256(f"{endpoint}\0{sector}".encode()).hexdigest()[:16]


def _parameters(query: Iterable[str]) -> _Parameters:
    texts: dict[str, str] = {}
    found = _Parameters()
    for option in query:
        name, equals, value = option.partition("=")
        if name in ("ep", "d", "lt", "base"):
            if name in texts:
                raise RegistrationError("malformed", f"the parameter {name} is given twice")
            texts[name] = value
            continue
        if name in _NOT_ATTRIBUTES or _ATTRIBUTE.fullmatch(name) is None:
            raise RegistrationError("malformed", "a parameter has a name that no attribute of an endpoint may have")
        if len(option.encode()) > ATTRIBUTE_BYTES_MAX or _CONTROL.search(value):
            raise RegistrationError("malformed", f"the parameter {name} is too long, or has a control character")
        found.attributes.append((name, value if equals else None))
    if len(found.attributes) > ATTRIBUTES_MAX:
        raise RegistrationError("malformed", f"an endpoint has at most {ATTRIBUTES_MAX} attributes")
    found.endpoint, found.sector = _name("ep", texts), _name("d", texts)
    found.base, found.lifetime_s = _base(texts), _lifetime(texts)
    return found


def _name(parameter: str, texts: Mapping[str, str]) -> str:
    text = texts.get(parameter, "")
    if len(text.encode()) > NAME_BYTES_MAX or _CONTROL.search(text) or (parameter in texts and not text):
        raise RegistrationError(
            "malformed", f"the parameter {parameter} has 1 to {NAME_BYTES_MAX} bytes and no control characters"
        )
    return text


def _base(texts: Mapping[str, str]) -> str:
    if "base" not in texts:
        return ""
    base = texts["base"]
    try:
        good = len(base) <= BASE_BYTES_MAX and _BASE.fullmatch(base) and urlsplit(base).port != 0
    except ValueError:  # a port above 65535, or a malformed address
        good = False
    if not good:
        raise RegistrationError(
            "malformed", "the base is not a URI such as coap://192.168.7.20:5683, without zone, query and fragment"
        )
    return base


def _lifetime(texts: Mapping[str, str]) -> int | None:
    if "lt" not in texts:
        return None
    text = texts["lt"]
    if _DECIMAL.fullmatch(text) is None or not 1 <= int(text) <= LIFETIME_MAX_S:
        raise RegistrationError("malformed", f"the lifetime lt is a number of seconds, 1 to {LIFETIME_MAX_S}")
    # Shorter ones would be as many commits as endpoints.
    return max(int(text), LIFETIME_MIN_S)


def _links(text: bytes) -> tuple[Link, ...]:
    """The links of a registration, which must be in the Limited Link Format (appendix C)."""
    try:
        found = links.parse_links(text, bytes_max=LINKS_BYTES_MAX, links_max=LINKS_MAX)
        for link in found:
            # Any base will do: it shows that the link can be resolved.
            _resolve_link(link, "coap://endpoint")
    except (PayloadError, ValueError) as error:
        raise RegistrationError("malformed", str(error)) from error
    return tuple(found)


def _resolve_link(link: Link, base: str) -> Link:
    """Raises ValueError."""
    target, attributes = links.resolve(link.target, base), link.attributes
    if link.has("anchor"):
        attributes = tuple(
            (name, links.resolve(value, base) if name == "anchor" and value is not None else value)
            for name, value in attributes
        )
    return Link(target, attributes)


def _unmet(one: Registration, conditions: Sequence[Criterion]) -> list[Criterion]:
    """The conditions that the endpoint itself does not meet."""
    endpoint = one.link
    return [condition for condition in conditions if not links.matches(endpoint, condition)]


def _page(query: Iterable[str]) -> tuple[range, Sequence[Criterion]]:
    """The numbers of the links to return, and the conditions."""
    conditions: list[Criterion] = []
    numbers: dict[str, int] = {}
    try:
        for one in links.criteria(query):
            if one.name in ("page", "count"):
                if one.value is None or one.prefix or _DECIMAL.fullmatch(one.value) is None or one.name in numbers:
                    raise RegistrationError("malformed", f"{one.name} is given once, and is a number")
                numbers[one.name] = min(int(one.value), COUNT_MAX)
            else:
                conditions.append(one)
    except RegistrationError:
        raise
    except PayloadError as error:
        raise RegistrationError("malformed", str(error)) from error
    if "page" in numbers and "count" not in numbers:
        raise RegistrationError("malformed", "page is used with count only")
    count = numbers.get("count", COUNT_MAX)
    start = numbers.get("page", 0) * count
    return range(start, start + count), conditions


@lru_cache(REGISTRATIONS_MAX)
def _is_link_local(base: str) -> bool:
    try:
        return ipaddress.ip_address(urlsplit(base).hostname or "").is_link_local
    except ValueError:
        return False  # a name
