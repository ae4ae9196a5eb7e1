"""JSAP document -> typed updates, queries, addresses and aggregators (SEPA protocol, section 4; Roffia 2018, 3.3).

An application that runs inside the gateway declares its aggregators (Roffia 2016, II.B) in JSAP's member for
applications::

    "extended": {"lamplighter": {"aggregators": {
        "switch-on": {"query": "PRESENCE", "added": "SWITCH_ON"}}}}

Each notification of the query runs the named update once for each added (or removed) binding. The update's forced
bindings get the values of the binding's variables with the same names. An update with a member ``delay`` (ISO 8601) or
``at`` (xsd:dateTime) is executed later; ``missed`` says what happens if it becomes due while the gateway is off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

import msgspec

from lamplighter.engine.change_log import Missed
from lamplighter.engine.errors import ForcedBindingError, JsapError
from lamplighter.engine.protocol.jsap_tree import Tree, decode_tree, included_addresses, normal
from lamplighter.engine.protocol.priorities import PriorityName
from lamplighter.engine.sparql.clauses import listed_variables, with_dataset, with_rows
from lamplighter.engine.sparql.forced_bindings import ForcedBinding, Value, bind
from lamplighter.engine.terms import XSD, Term, iri

Method = Literal["GET", "POST", "URL_ENCODED_POST"]

# Namespaces that need no declaration (protocol 4.1).
_ALWAYS = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "xsd": XSD,
}

_PREFIX = re.compile(r"([^\W\d_]([\w.\-·]*[\w\-·])?)?")  # SPARQL 1.1, production 168
# Default ports and paths (protocol 1.1).
_PORTS = {"http": 8000, "https": 8443, "ws": 9000, "wss": 9443}
_SECURE = {"https": "/secure", "wss": "/secure"}

# How similar a name is to the one that is suggested for it (`difflib.SequenceMatcher.ratio`).
_NEAR, _NEARLY_EQUAL = 0.6, 0.8


class _Settings(msgspec.Struct, frozen=True):
    """Members of the profile that an update or a query may override. None: not given."""


_S = TypeVar("_S", bound=_Settings)


class Operation(_Settings, frozen=True):
    """How queries, or updates, are sent. format: read, but not used; requests always ask for JSON."""

    path: str | None = None
    method: Method | None = None
    format: str | None = None


class Sparql11Protocol(_Settings, frozen=True):
    """``sparql11protocol``: where queries and updates go."""

    protocol: Literal["http", "https"] | None = None
    host: str | None = None
    port: int | None = None
    query: Operation = Operation()
    update: Operation = Operation()


class Channel(_Settings, frozen=True):
    """One of ``availableProtocols``. scheme: None if the key is the scheme."""

    port: int | None = None
    path: str | None = None
    scheme: Literal["ws", "wss"] | None = None


class Sparql11SeProtocol(_Settings, frozen=True):
    """``sparql11seprotocol``: where subscriptions go."""

    protocol: str | None = None
    host: str | None = None
    reconnect: bool | None = None
    available_protocols: dict[str, Channel] = msgspec.field(name="availableProtocols", default={})


class GraphNames(_Settings, frozen=True):
    """``graphs``: IRIs of the dataset of queries (default, named) and of updates (using)."""

    default: tuple[str, ...] = msgspec.field(name="default-graph-uri", default=())
    named: tuple[str, ...] = msgspec.field(name="named-graph-uri", default=())
    using: tuple[str, ...] = msgspec.field(name="using-graph-uri", default=())
    using_named: tuple[str, ...] = msgspec.field(name="using-named-graph-uri", default=())


class OAuthMember(msgspec.Struct, frozen=True):
    """``oauth``: where clients register and get their tokens.

    Credentials are not read from profiles, where the Java client writes them encrypted: secrets belong into files of
    their own.
    """

    enable: bool = False
    register: str | None = None
    token_request: str | None = msgspec.field(name="tokenRequest", default=None)
    provider: Literal["sepa", "keycloak", "ldap"] = "sepa"
    registration: dict[str, Any] = {}
    authentication: dict[str, Any] = {}

    @property
    def register_url(self) -> str | None:
        """The registration address, in the member of either generation (protocol 4.3)."""
        return self.register or self.registration.get("endpoint")

    @property
    def token_url(self) -> str | None:
        return self.token_request or self.authentication.get("endpoint")


class _Entry(_Settings, frozen=True):
    """description: what it is for, in words for people and language models."""

    sparql: str
    forced_bindings: dict[str, ForcedBinding] = msgspec.field(name="forcedBindings", default={})
    host: str | None = None
    sparql11protocol: Sparql11Protocol = Sparql11Protocol()
    sparql11seprotocol: Sparql11SeProtocol = Sparql11SeProtocol()
    graphs: GraphNames = GraphNames()
    description: str = ""


class Query(_Entry, frozen=True):
    """A named query."""


class Update(_Entry, frozen=True):
    """A named update, executed at once unless delay (ISO 8601 duration) or at (xsd:dateTime) is given.

    missed: what happens to a delayed update that becomes due while the gateway is off; None: as its settings say.
    priority: the class of its requests. None: ``normal``.
    """

    delay: str | None = None
    at: str | None = None
    missed: Missed | None = None
    priority: PriorityName | None = None


class AggregatorMember(msgspec.Struct, frozen=True):
    """An aggregator: runs updates for the notifications of a query.

    added, removed: the update to run for each such binding. first_results: whether the first results count as added
    when the application runs for the first time.
    """

    query: str
    added: str | None = None
    removed: str | None = None
    first_results: bool = msgspec.field(name="firstResults", default=False)


class _Lamplighter(msgspec.Struct, frozen=True):
    aggregators: dict[str, AggregatorMember] = {}


class HttpAddress(msgspec.Struct, frozen=True):
    """The URL and the method of requests."""

    url: str
    method: Method


class Jsap(msgspec.Struct, frozen=True):
    """An application profile. extended: members for the application itself."""

    host: str | None = None
    oauth: OAuthMember = OAuthMember()
    sparql11protocol: Sparql11Protocol = Sparql11Protocol()
    sparql11seprotocol: Sparql11SeProtocol = Sparql11SeProtocol()
    graphs: GraphNames = GraphNames()
    namespaces: dict[str, str] = {}
    updates: dict[str, Update] = {}
    queries: dict[str, Query] = {}
    extended: dict[str, Any] = {}
    aggregators: dict[str, AggregatorMember] = {}

    # --- texts ---

    def update_text(self, name: str, row: Mapping[str, Term | None], values: Mapping[str, Any] | None = None) -> str:
        """The SPARQL text of an update with its forced bindings replaced.

        row: variable -> term, such as a binding of a result; variables without a forced binding are ignored. values:
        variable -> `Value`, or a list of values, interpreted as declared; lists have one length and give several
        bindings. None counts as not given. Raises JsapError for an unknown name, and ForcedBindingError, which names
        update and variable, for a missing, undeclared or invalid value.
        """
        return self._text(self.update(name), name, row, values or {})

    def query_text(self, name: str, row: Mapping[str, Term | None], values: Mapping[str, Any] | None = None) -> str:
        """The SPARQL text of a query, as `update_text`."""
        return self._text(self.query(name), name, row, values or {})

    def whole_update_text(
        self, name: str, row: Mapping[str, Term | None], values: Mapping[str, Any] | None = None
    ) -> str:
        """As `update_text`, with the graphs of the profile in the text. A part that names graphs itself keeps them."""
        graphs = self.graphs_of(self.update(name))
        text = self.update_text(name, row, values)
        return with_dataset(text, list(map(iri, graphs.using)), list(map(iri, graphs.using_named)))

    def whole_query_text(
        self, name: str, row: Mapping[str, Term | None], values: Mapping[str, Any] | None = None
    ) -> str:
        """As `query_text`, in the same way."""
        graphs = self.graphs_of(self.query(name))
        text = self.query_text(name, row, values)
        return with_dataset(text, list(map(iri, graphs.default)), list(map(iri, graphs.named)))

    def update(self, name: str) -> Update:
        """The update of that name. Raises JsapError, which lists the known names."""
        return _entry(self.updates, "updates", name)

    def query(self, name: str) -> Query:
        return _entry(self.queries, "queries", name)

    def _text(self, entry: _Entry, name: str, row: Mapping[str, Term | None], values: Mapping[str, Any]) -> str:
        for variable in values:
            if variable not in entry.forced_bindings:
                known = ", ".join(entry.forced_bindings) or "none"
                raise ForcedBindingError(f"{name} has no forced binding {variable!r}; it has {known}")
        forced: dict[str, Term] = {}
        arrays: dict[str, list[Term | None]] = {}
        for variable, declared in entry.forced_bindings.items():
            given = values.get(variable)
            term = row.get(variable) if given is None else None
            if isinstance(given, list | tuple):
                arrays[variable] = [None if one is None else self._term(name, variable, declared, one) for one in given]
            elif term is not None:
                forced[variable] = term
            elif given is not None:
                forced[variable] = self._term(name, variable, declared, given)
            elif declared.value == "":
                raise ForcedBindingError(f"{name} needs a value for ?{variable}")
            elif declared.value is not None:
                forced[variable] = self._term(name, variable, declared, declared.value)
        if len({len(terms) for terms in arrays.values()}) > 1:
            lengths = ", ".join(f"?{variable} has {len(terms)}" for variable, terms in arrays.items())
            raise ForcedBindingError(f"{name}: the arrays differ in length: {lengths}")
        count = len(next(iter(arrays.values()), (None,)))
        for variable in listed_variables(entry.sparql) & forced.keys():
            arrays[variable] = [forced.pop(variable)] * count
        new_nodes = {variable for variable, declared in entry.forced_bindings.items() if declared.type == "bnode"}
        try:
            text = bind(entry.sparql, forced, new_nodes)
            if arrays:
                text = with_rows(text, list(arrays), list(zip(*arrays.values(), strict=True)), new_nodes)
        except ForcedBindingError as error:
            raise ForcedBindingError(f"{name}, forced binding {error}") from error
        return self.declarations + text

    @property
    def declarations(self) -> str:
        """The declarations of all namespaces, which each text begins with."""
        return "".join(f"PREFIX {prefix}:<{uri}> " for prefix, uri in (_ALWAYS | self.namespaces).items())

    def _term(self, name: str, variable: str, declared: ForcedBinding, value: Value) -> Term:
        try:
            return declared.term(value, self.expand)
        except ValueError as error:
            raise ForcedBindingError(f"{name}, forced binding {variable}: {error}") from error

    def expand(self, value: str) -> str:
        """The full IRI of a name with a prefix of the profile; other text unchanged."""
        prefix, colon, local = value.partition(":")
        namespace = (_ALWAYS | self.namespaces).get(prefix)
        return namespace + local if colon and namespace is not None and not local.startswith("//") else value

    # --- addresses ---

    def query_address(self, name: str) -> HttpAddress:
        """The address for a query. Raises JsapError, which names the missing member."""
        return self._http(self.query(name), "query")

    def update_address(self, name: str) -> HttpAddress:
        """The address for an update, as `query_address`."""
        return self._http(self.update(name), "update")

    def _http(self, entry: _Entry, kind: Literal["query", "update"]) -> HttpAddress:
        access = over(self.sparql11protocol, entry.sparql11protocol)
        scheme = access.protocol or "http"
        host = entry.sparql11protocol.host or entry.host or self.sparql11protocol.host or self.host
        operation: Operation = getattr(access, kind)
        path = operation.path or f"{_SECURE.get(scheme, '')}/{kind}"
        method = operation.method or "POST"
        if method == "GET" and kind == "update":
            raise JsapError("sparql11protocol.update.method: GET is for queries only; use POST or URL_ENCODED_POST")
        return HttpAddress(_url(scheme, host, access.port, path), method)

    def subscribe_url(self, name: str) -> str:
        """The address for a subscription to a query, as `query_address`."""
        entry = self.query(name)
        access = over(self.sparql11seprotocol, entry.sparql11seprotocol)
        key = access.protocol or "ws"
        channel = access.available_protocols.get(key)
        if channel is None and access.available_protocols:
            known = ", ".join(access.available_protocols)
            raise JsapError(f"sparql11seprotocol.protocol: {key!r} is not among availableProtocols; there are {known}")
        channel = channel or Channel()
        scheme = channel.scheme or key
        if scheme not in ("ws", "wss"):
            raise JsapError(f"sparql11seprotocol.availableProtocols.{key}: add a member scheme, ws or wss")
        host = entry.sparql11seprotocol.host or entry.host or self.sparql11seprotocol.host or self.host
        return _url(scheme, host, channel.port, channel.path or f"{_SECURE.get(scheme, '')}/subscribe")

    def reconnects(self, name: str) -> bool:
        """Whether a subscriber reconnects after its connection has broken. The default is true."""
        return over(self.sparql11seprotocol, self.query(name).sparql11seprotocol).reconnect is not False

    def graphs_of(self, entry: _Entry) -> GraphNames:
        """The dataset of an update or query."""
        return over(self.graphs, entry.graphs)


def over(settings: _S, other: _S) -> _S:
    """The settings, with the members that other gives in place of their own."""
    changes: dict[str, Any] = {}
    for name in settings.__struct_fields__:
        before, after = getattr(settings, name), getattr(other, name)
        if isinstance(after, _Settings):
            changes[name] = over(before, after)
        elif isinstance(after, dict):
            changes[name] = before | {
                key: over(before[key], value) if key in before else value for key, value in after.items()
            }
        elif after is not None and after != ():
            changes[name] = after
    return msgspec.structs.replace(settings, **changes)


def _url(scheme: str, host: str | None, port: int | None, path: str) -> str:
    if not host:
        raise JsapError("host: the profile names no broker; add the member host, or set it (host=localhost)")
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{name}:{_PORTS[scheme] if port is None else port}{path if path.startswith('/') else f'/{path}'}"


_E = TypeVar("_E", bound=_Entry)


def _entry(entries: Mapping[str, _E], member: str, name: str) -> _E:
    if name not in entries:
        raise JsapError(f"{member} has no {name!r}; it has {', '.join(sorted(entries)) or 'none'}")
    return entries[name]


# --- reading ----------------------------------------------------------------------------------------


def parse(document: bytes) -> Jsap:
    """Reads a JSAP document that includes no others. Raises JsapError that names the member."""
    tree = normal(decode_tree(document))
    if included_addresses(tree):
        raise JsapError(
            f"include: {included_addresses(tree)[0]} would have to be fetched, which can be done where files are read"
        )
    return profile(tree)


def profile(tree: Tree, *, unknown: bool = False) -> Jsap:
    """The profile of a normal tree (`engine.protocol.jsap_tree`). unknown: whether unknown members are allowed.

    Raises JsapError, which names all faults: unknown members where the gateway reads them, values of a wrong type, and
    members that contradict each other.
    """
    faults = [*([] if unknown else unknown_members(tree)), *_misfits(tree)]
    if faults:
        raise JsapError(*faults)
    found = msgspec.structs.replace(
        msgspec.convert(tree, Jsap), aggregators=msgspec.convert(_declared_member(tree), _Lamplighter).aggregators
    )
    faults = [*_namespace_faults(found), *_entry_faults(found), *_aggregator_faults(found), *_time_faults(found)]
    if faults:
        raise JsapError(*faults)
    return found


def _declared_member(tree: Tree) -> Any:
    """The member of the application for this gateway."""
    extended = tree.get("extended", {})
    return extended.get("lamplighter", {}) if isinstance(extended, dict) else {}


def unknown_members(tree: Tree) -> Iterator[str]:
    """Place and problem of each member that nobody reads, where a profile of SEPA has none of its own.

    Other members of the profile, and of ``extended``, belong to other applications. They are reported if their name is
    nearly one that is read and that is missing, since a misspelt ``extended`` would switch all aggregators off.
    """
    yield from _misspelt(tree, ("extended", "include", "namespaces", "queries", "updates"), "")
    for member, kind in (("queries", Query), ("updates", Update)):
        for name, entry in _objects(tree.get(member)):
            yield from _unknown(entry, kind, f"{member}.{name}.")
            for variable, declared in _objects(entry.get("forcedBindings")):
                yield from _unknown(declared, ForcedBinding, f"{member}.{name}.forcedBindings.{variable}.")
    extended = tree.get("extended")
    if isinstance(extended, dict):
        yield from _misspelt(extended, ("lamplighter",), "extended.")
    declared = _declared_member(tree)
    if isinstance(declared, dict):
        place = "extended.lamplighter."
        yield from _unknown(declared, _Lamplighter, place)
        for name, aggregator in _objects(declared.get("aggregators")):
            yield from _unknown(aggregator, AggregatorMember, f"{place}aggregators.{name}.")


def _objects(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The members of an object that are objects."""
    if isinstance(value, dict):
        for name, member in value.items():
            if isinstance(member, dict):
                yield name, member


def _unknown(value: Mapping[str, Any], kind: type[msgspec.Struct], place: str) -> Iterator[str]:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in value:
        if name not in known:
            near = get_close_matches(name.lower(), known, 1, _NEAR) or get_close_matches(name, known, 1, _NEAR)
            cure = f'did you mean "{near[0]}"?' if near else f"the members are {', '.join(known)}"
            yield f"{place}{name}: unknown member; {cure}"


def _misspelt(value: Mapping[str, Any], known: Sequence[str], place: str) -> Iterator[str]:
    missing = [name for name in known if not value.get(name)]
    for name in value:
        near = [] if name in known else get_close_matches(name.lower(), missing, 1, _NEARLY_EQUAL)
        if near:
            yield f'{place}{name}: unknown member; did you mean "{near[0]}"?'


def _misfits(tree: Tree) -> Iterator[str]:
    """Place and problem of each value of a wrong type. Entries are converted one by one."""
    # One by one, so that each is named.
    rest = dict(tree)
    parts: list[tuple[str, Any, Any]] = []
    for member, kind in (("queries", Query), ("updates", Update)):
        if isinstance(tree.get(member), dict):
            for name, entry in rest.pop(member).items():
                declared = entry.get("forcedBindings") if isinstance(entry, dict) else None
                if isinstance(declared, dict):
                    entry = {**entry, "forcedBindings": {}}
                    place = f"{member}.{name}.forcedBindings"
                    parts += [(f"{place}.{variable}", one, ForcedBinding) for variable, one in declared.items()]
                parts.append((f"{member}.{name}", entry, kind))
    place, declared = "extended.lamplighter", _declared_member(tree)
    if isinstance(declared, dict) and isinstance(declared.get("aggregators"), dict):
        aggregators = declared["aggregators"].items()
        parts += [(f"{place}.aggregators.{name}", member, AggregatorMember) for name, member in aggregators]
    else:
        parts.append((place, declared, _Lamplighter))
    for place, value, kind in [("", rest, Jsap), *parts]:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            yield _misfit(place, str(error))


def _misfit(place: str, message: str) -> str:
    """msgspec's "problem - at `$.member`" as "place.member: problem"."""
    problem, _, path = message.partition(" - at `$")
    if problem.startswith("Invalid enum value") and path.startswith(".type"):
        problem += "; use uri, literal or bnode"
    full = (place + path.rstrip("`")).strip(".")
    return f"{full}: {problem}" if full else problem


def _namespace_faults(found: Jsap) -> Iterator[str]:
    for prefix, uri in found.namespaces.items():
        if not _PREFIX.fullmatch(prefix):
            yield f"namespaces: {prefix!r} cannot be a prefix; use letters, digits, - and _"
        yield from _iri_faults(uri, f"namespaces.{prefix}")


def _entry_faults(found: Jsap) -> Iterator[str]:
    yield from _graph_faults(found.graphs, "graphs")
    entries: Mapping[str, _Entry]
    for member, entries in (("updates", found.updates), ("queries", found.queries)):
        for name, entry in entries.items():
            yield from _graph_faults(entry.graphs, f"{member}.{name}.graphs")
            for variable, declared in entry.forced_bindings.items():
                if declared.datatype is not None and declared.language is not None:
                    place = f"{member}.{name}.forcedBindings.{variable}"
                    yield f"{place}: use either datatype or language, not both"


def _time_faults(found: Jsap) -> Iterator[str]:
    for name, update in found.updates.items():
        if update.delay is not None and update.at is not None:
            yield f"updates.{name}: use either delay or at, not both"
        if update.missed is not None and update.delay is None and update.at is None:
            yield f"updates.{name}: missed applies to delayed updates only; add delay or at"


def _aggregator_faults(found: Jsap) -> Iterator[str]:
    for name, aggregator in found.aggregators.items():
        place = f"extended.lamplighter.aggregators.{name}"
        if aggregator.query not in found.queries:
            yield f"{place}.query: there is no query {aggregator.query!r}{_suggestion(aggregator.query, found.queries)}"
        for member, update in (("added", aggregator.added), ("removed", aggregator.removed)):
            if update is not None and update not in found.updates:
                yield f"{place}.{member}: there is no update {update!r}{_suggestion(update, found.updates)}"
        if aggregator.added is None and aggregator.removed is None:
            yield f"{place}: it needs a member added or removed; without either it does nothing"


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, known, 1, _NEAR)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known)) or 'none'}"


def _graph_faults(graphs: GraphNames, place: str) -> Iterator[str]:
    for name, value in msgspec.to_builtins(graphs).items():
        for graph in value:
            yield from _iri_faults(graph, f"{place}.{name}")


def _iri_faults(value: str, place: str) -> Iterator[str]:
    try:
        iri(value)
    except ValueError as error:
        yield f"{place}: {error}"
