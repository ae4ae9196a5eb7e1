"""A JSAP profile, and its members for the gateway of a test."""

from typing import Any
from urllib.parse import urlsplit

from lamplighter.gateway.addresses import Addresses

DOCUMENT: dict[str, Any] = {
    "namespaces": {"ex": "http://example.org/"},
    "updates": {
        "SET": {
            "sparql": "DELETE { ?thing ex:p ?o } INSERT { ?thing ex:p ?value } WHERE { OPTIONAL { ?thing ex:p ?o } }",
            "forcedBindings": {
                "thing": {"type": "uri", "value": ""},
                "value": {"type": "literal", "datatype": "xsd:integer", "value": "0"},
            },
        },
        "COPY": {"sparql": "INSERT DATA { ?thing ex:copied ?value }", "forcedBindings": {"thing": {}, "value": {}}},
        "LATER": {"sparql": "CLEAR ALL", "delay": "PT1H"},
        "WRONG": {"sparql": "oops"},
    },
    "queries": {
        "VALUES": {
            "sparql": "SELECT ?thing ?value { ?thing ex:p ?value }",
            "forcedBindings": {"thing": {"type": "uri"}},
        },
        "COPIES": {"sparql": "SELECT ?thing ?value { ?thing ex:copied ?value }"},
        "ANY": {"sparql": "ASK { ?thing ex:p ?value }", "forcedBindings": {"thing": {"type": "uri", "value": ""}}},
        "GRAPH": {"sparql": "CONSTRUCT { ?thing ex:q ?value } WHERE { ?thing ex:p ?value }"},
        "WRONG": {"sparql": "oops"},
    },
}
"""Updates and queries over one property; one of each has wrong syntax."""


def settings(at: Addresses) -> list[str]:
    return [
        "host=127.0.0.1",
        f"sparql11protocol.port={urlsplit(at.query).port}",
        f"sparql11seprotocol.availableProtocols.ws.port={urlsplit(at.subscribe).port}",
    ]
