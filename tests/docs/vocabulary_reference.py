"""The table of docs/vocabulary.md: terms of ontology/gateway.ttl and ontology/devices.ttl that queries use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyoxigraph

from tests.support.places import ROOT

FILES = ("devices", "gateway")
OWN = {
    *("targetNode", "onViolation", "clock", "now", "counters", "health", "since", "subscribed", "listensOn", "byRule"),
    *("problem", "revision", "announcement", "thingId", "source", "command", "ofDevice", "ucumUnit", "parameters"),
    *("Registration", "endpointName", "sector", "coapBase", "links", "lifetime", "expires"),
    *("ReportedProblem", "reason", "count", "givenName", "givenArea", "broker", "Mapping", "rule", "Broker"),
    *("Adapter", "connected", "address", "coapAddress", "unreachable", "sentTime", "cause", "answer", "target"),
    *("followed", "begins", "ends", "onWeekday", "changesAt", "periodProblem", "active", "localDate", "localWeekday"),
    *("daylight", "minimum", "maximum"),
}
"""What the gateway notes for itself, and what other pages explain: functions, shapes, rules, registrations, problems,
actuations, periods."""
_COMMENT = pyoxigraph.NamedNode("http://www.w3.org/2000/01/rdf-schema#comment")


def vocabulary_reference() -> str:
    """A row for each term: its name and the first clause of its comment."""
    rows = (
        f"|`{term}`|{_clause(comment)}|" for name in FILES for term, comment in terms(ROOT / f"ontology/{name}.ttl")
    )
    return "\n".join(("|term|meaning|", "|---|---|", *rows))


def terms(path: Path) -> Iterator[tuple[str, str]]:
    """The terms of a file that are no `OWN` ones, in its order, with their comments."""
    text = path.read_text()
    store = pyoxigraph.Store()
    store.load(text.encode(), format=pyoxigraph.RdfFormat.TURTLE)
    prefixes = dict(re.findall(r"@prefix (\w+): <([^>]+)>", text))
    for prefix, name in re.findall(r"^(\w+):(\w+) a ", text, re.M):
        if name not in OWN:
            [quad] = store.quads_for_pattern(pyoxigraph.NamedNode(prefixes[prefix] + name), _COMMENT, None)
            yield f"{prefix}:{name}", str(quad.object.value)


def _clause(comment: str) -> str:
    return re.split(r"(?<=[\w)])[.;:](?: |$)", comment)[0].replace("|", r"\|").replace("<", r"\<")
