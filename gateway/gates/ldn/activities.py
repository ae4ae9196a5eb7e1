"""A notification of a subscription as an activity: JSON-LD with Activity Streams.

The rows are those of the W3C's vocabulary of result sets: a solution for each row, with a binding for each variable. ::

    {"@context": [...], "id": "http://127.0.0.1:8000/ldn/7b...#5f.../3", "type": "Update", "actor": ..., "object": ...,
     "sequence": 3, "added": {"type": "rs:ResultSet", "solution": [{"binding": [{"variable": "v", "value": "2"}]}]},
     "removed": {...}}
"""

from __future__ import annotations

from typing import Any

import msgspec

from lamplighter.engine.client.contexts import ACTIVITY_STREAMS
from lamplighter.gateway.gates.deliveries.worker import WaitingNotification
from lamplighter.ontology.vocabulary import GATEWAY

RS = "http://www.w3.org/2001/sw/DataAccess/tests/result-set#"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
CONTEXT = [
    ACTIVITY_STREAMS,
    {
        "rs": RS,
        "gateway": GATEWAY,
        "sequence": "gateway:sequence",
        "reset": "gateway:reset",
        "added": "gateway:added",
        "removed": "gateway:removed",
        "solution": "rs:solution",
        "binding": "rs:binding",
        "variable": "rs:variable",
        "value": "rs:value",
        "resultVariable": "rs:resultVariable",
    },
]


def activity(message: WaitingNotification, topic: str, actor: str, alias: str | None) -> bytes:
    """The body. ``Announce`` is a first result, after which the receiver has no earlier rows; ``Update`` a change."""
    members = msgspec.json.decode(b"{%b}" % message.members)
    found: dict[str, Any] = {
        "@context": CONTEXT,
        "id": f"{topic}#{message.name}",
        "type": "Update" if message.sequence else "Announce",
        "actor": actor,
        "object": topic,
        "sequence": message.sequence,
    }
    if alias is not None:
        found["name"] = alias
    if message.reset is not None:
        found["reset"] = message.reset
    found["added"] = _rows(members["addedResults"])
    found["removed"] = _rows(members["removedResults"])
    return msgspec.json.encode(found)


def _rows(results: dict[str, Any]) -> dict[str, Any]:
    solutions = [
        {"binding": [{"variable": variable, "value": _value(term)} for variable, term in row.items()]}
        for row in results["results"]["bindings"]
    ]
    return {"type": "rs:ResultSet", "resultVariable": results["head"]["vars"], "solution": solutions}


def _value(term: dict[str, Any]) -> dict[str, Any]:
    if term["type"] == "uri":
        return {"id": term["value"]}
    if term["type"] == "bnode":
        return {"id": f"_:{term['value']}"}
    if term["type"] == "triple":  # which JSON-LD cannot express
        return {"@value": msgspec.json.encode(term["value"]).decode(), "@type": f"{_RDF}JSON"}
    if "xml:lang" in term:
        return {"@value": term["value"], "@language": term["xml:lang"]}
    return {"@value": term["value"]} | ({"@type": term["datatype"]} if "datatype" in term else {})
