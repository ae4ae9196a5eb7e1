"""Permissions of a client, as in settings, commands and the registry: graph IRIs, ``default``, ``*``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from lamplighter.engine.access import EVERY, Access, Graphs
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.protocol import PriorityName
from lamplighter.engine.terms import Term, iri

GRAPHS_MAX = 1000  # graphs that one list may name
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.")


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """read, write, subscribe: graph IRIs, ``default``, or ``*`` for every graph. operate: administration of the gateway
    and of other clients."""

    read: list[str] = []
    write: list[str] = []
    subscribe: list[str] = []
    operate: bool = False
    priority: PriorityName = "normal"

    @property
    def access(self) -> Access:
        """Raises ConfigurationError for a name that is no graph."""
        return Access(graphs(self.read), graphs(self.write), graphs(self.subscribe))


EVERYTHING = ["*"]


def graphs(names: Sequence[str]) -> Graphs:
    """The graphs that a list names. Raises ConfigurationError."""
    if "*" in names:
        return EVERY
    if len(names) > GRAPHS_MAX:
        raise ConfigurationError(f"{len(names)} graphs are named; {GRAPHS_MAX} are the most, and * is all of them")
    found: set[Term | None] = set()
    for name in names:
        if name == "default":
            found.add(None)
            continue
        try:
            if not _ABSOLUTE.match(name):
                raise ValueError(f"{name!r} is not an absolute IRI")
            found.add(iri(name))
        except ValueError as error:
            raise ConfigurationError(f"graph: {error}; name an IRI, default, or *") from error
    return Graphs(frozenset(found))
