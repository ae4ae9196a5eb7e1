"""JSAP document -> typed updates, queries and aggregators (SEPA protocol, section 4; Roffia 2018, 3.3).

An application that runs inside the gateway declares its aggregators (Roffia 2016, II.B) in the member
that JSAP leaves to applications::

    "extended": {"lamplighter": {"aggregators": {
        "switch-on": {"query": "PRESENCE", "added": "SWITCH_ON"}}}}

Each notification of the query runs the named update once for each added (or removed) binding, with the
update's forced bindings taken from the binding's variables of the same name. An update with a member
``delay`` (ISO 8601) or ``at`` (xsd:dateTime) is executed that much later; ``missed`` says what becomes of it if it is
due while the gateway is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.change_log import Missed
from engine.errors import ForcedBindingError, JsapError
from engine.forced_bindings import bound
from engine.terms import XSD, Term, iri, literal

_ALWAYS = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "xsd": XSD,
}
"""Namespaces that need no declaration (protocol 4.1)."""


class ForcedBinding(msgspec.Struct, frozen=True):
    """A variable that the caller may or must give. value: the default; empty: must be given."""

    type: Literal["uri", "literal", "bnode"] = "literal"
    value: str | int | float | bool = ""
    datatype: str | None = None
    language: str | None = None


class _Entry(msgspec.Struct, frozen=True):
    sparql: str
    forced_bindings: dict[str, ForcedBinding] = msgspec.field(name="forcedBindings", default={})


class Query(_Entry, frozen=True):
    """A named query."""


class Update(_Entry, frozen=True):
    """A named update, at once unless delay (ISO 8601 duration) or at (xsd:dateTime) is given.

    missed: what becomes of a delayed one that is due while the gateway is off; None: as its settings say.
    """

    delay: str | None = None
    at: str | None = None
    missed: Missed | None = None


class Aggregator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query -> updates. added, removed: the update to run for each such binding.

    first_results: whether the first results count as added when the application runs for the first time.
    """

    query: str
    added: str | None = None
    removed: str | None = None
    first_results: bool = msgspec.field(name="firstResults", default=False)


class _Lamplighter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    aggregators: dict[str, Aggregator] = {}


class _Extended(msgspec.Struct, frozen=True):
    lamplighter: _Lamplighter = _Lamplighter()


class Jsap(msgspec.Struct, frozen=True):
    """An application profile. Members that concern only its clients' connection are not read here."""

    namespaces: dict[str, str] = {}
    updates: dict[str, Update] = {}
    queries: dict[str, Query] = {}
    extended: _Extended = _Extended()

    @property
    def aggregators(self) -> Mapping[str, Aggregator]:
        return self.extended.lamplighter.aggregators

    def update_text(self, name: str, values: Mapping[str, Term]) -> str:
        """The SPARQL text of an update; values: variable -> term, others than its forced bindings are ignored.

        Raises JsapError for an unknown name, ForcedBindingError for a value that is missing or cannot be placed.
        """
        return self._text(self._entry(self.updates, "updates", name), name, values)

    def query_text(self, name: str, values: Mapping[str, Term]) -> str:
        """The SPARQL text of a query, likewise."""
        return self._text(self._entry(self.queries, "queries", name), name, values)

    def _entry(self, entries: Mapping[str, Any], member: str, name: str) -> Any:
        if name not in entries:
            raise JsapError(f"{member} has no {name!r}; it has {', '.join(sorted(entries)) or 'none'}")
        return entries[name]

    def _text(self, entry: _Entry, name: str, values: Mapping[str, Term]) -> str:
        forced: dict[str, Term] = {}
        for variable, declared in entry.forced_bindings.items():
            if variable in values:
                forced[variable] = values[variable]
            elif declared.value != "":
                forced[variable] = self._default(name, variable, declared)
            else:
                raise ForcedBindingError(f"{name} needs a value for ?{variable}")
        prologue = "".join(f"PREFIX {prefix}:<{uri}> " for prefix, uri in (_ALWAYS | self.namespaces).items())
        return prologue + bound(entry.sparql, forced)

    def _default(self, name: str, variable: str, declared: ForcedBinding) -> Term:
        value = declared.value
        try:
            if declared.type == "uri":
                return iri(self._expanded(str(value)))
            if declared.type == "bnode":
                raise ValueError("a blank node cannot be named in a request")
            datatype = declared.datatype
            if isinstance(value, bool):
                value, datatype = str(value).lower(), datatype or "xsd:boolean"
            elif isinstance(value, int):
                datatype = datatype or "xsd:integer"
            elif isinstance(value, float):
                datatype = datatype or "xsd:double"
            expanded = None if datatype is None else self._expanded(datatype)
            return literal(str(value), datatype=expanded, language=declared.language)
        except ValueError as error:
            raise ForcedBindingError(f"{name}, forced binding {variable}: {error}") from error

    def _expanded(self, value: str) -> str:
        """A prefixed name in full, anything else as it is."""
        prefix, colon, local = value.partition(":")
        namespace = (_ALWAYS | self.namespaces).get(prefix)
        return namespace + local if colon and namespace is not None and not local.startswith("//") else value


def parse(document: bytes) -> Jsap:
    """Reads a JSAP document. Raises JsapError that names the member."""
    try:
        profile = msgspec.json.decode(document, type=Jsap)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JsapError(str(error)) from error
    for prefix, uri in profile.namespaces.items():
        try:
            iri(uri)
        except ValueError as error:
            raise JsapError(f"namespaces.{prefix}: {error}") from error
    for name, aggregator in profile.aggregators.items():
        place = f"extended.lamplighter.aggregators.{name}"
        if aggregator.query not in profile.queries:
            raise JsapError(f"{place}.query: there is no query {aggregator.query!r}")
        for member, update in (("added", aggregator.added), ("removed", aggregator.removed)):
            if update is not None and update not in profile.updates:
                raise JsapError(f"{place}.{member}: there is no update {update!r}")
        if aggregator.added is None and aggregator.removed is None:
            raise JsapError(f"{place}: it needs a member added or removed, else it does nothing")
    for name, entry in profile.updates.items():
        if entry.delay is not None and entry.at is not None:
            raise JsapError(f"updates.{name}: delay and at exclude each other")
        if entry.missed is not None and entry.delay is None and entry.at is None:
            raise JsapError(f"updates.{name}: missed is for delayed updates; give delay or at too")
    return profile
