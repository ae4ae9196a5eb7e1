"""The query that a request wants to be followed: a text, or a query of an application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lamplighter.engine.errors import MalformedRequestError, UnknownResourceError
from lamplighter.engine.protocol import dataset
from lamplighter.engine.terms import Term
from lamplighter.gateway.state.applications import Application


class AskedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The members of a request that name a query.

    query: its text; or application and name: one of a JSAP file, with forced bindings: variable -> value as text.
    """

    query: str | None = None
    default_graph_uri: str | list[str] | None = msgspec.field(name="default-graph-uri", default=None)
    named_graph_uri: str | list[str] | None = msgspec.field(name="named-graph-uri", default=None)
    application: str | None = None
    name: str | None = None
    forced_bindings: dict[str, Any] = {}


Graphs = tuple[Term, ...] | None


def asked_query(asked: AskedQuery, applications: Mapping[str, Application]) -> tuple[str, Graphs, Graphs]:
    """Its text, and the default and named graphs. Raises MalformedRequestError, UnknownResourceError, and GatewayError
    for forced bindings that do not fit."""
    if asked.query is not None:
        if asked.application is not None or asked.name is not None or asked.forced_bindings:
            raise MalformedRequestError("give query, or application and name, with its forced_bindings; not both")
        return asked.query, *dataset(asked.default_graph_uri, asked.named_graph_uri)
    if asked.application is None or asked.name is None:
        raise MalformedRequestError("give query, a SPARQL text, or application and name, a query of its JSAP file")
    if asked.default_graph_uri is not None or asked.named_graph_uri is not None:
        raise MalformedRequestError("the application names the graphs of its query; leave them out")
    found = applications.get(asked.application)
    if found is None or asked.name not in found.profile.queries:
        raise UnknownResourceError(f"no application has the query {f'{asked.application}/{asked.name}'[:200]!r}")
    return found.query_text(asked.name, {}, asked.forced_bindings), None, None
