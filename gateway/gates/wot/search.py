"""Search in Thing Descriptions with SPARQL (WoT Discovery, 7.3.2.3): they become RDF in a process that answers.

The context is of this module: it gives the members of our descriptions the terms that TD 1.1 gives them (section 6).
Nothing is loaded from the network. The name of an affordance is its td:name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Final

import msgspec
import pyoxigraph as ox

from lamplighter.engine.sparql.requests import QueryOutline
from lamplighter.gateway.gates.wot.description import PREFIXES, Description
from lamplighter.gateway.settings import QuerySettings
from lamplighter.gateway.workers.ad_hoc import write_answer

_NAMED: Final = {"@type": "@id", "@container": "@index", "@index": "td:name"}
_SCHEMA: Final = {
    "@vocab": "https://www.w3.org/2019/wot/json-schema#",
    "title": "dct:title",
    "description": "dct:description",
    "type": {"@id": "rdf:type", "@type": "@vocab"},
    "boolean": "jsonschema:BooleanSchema",
    "number": "jsonschema:NumberSchema",
    "string": "jsonschema:StringSchema",
    "unit": {"@id": "http://schema.org/unitCode", "@type": "@vocab"},
    "observable": {"@id": "td:isObservable"},
}
_FORM: Final = {
    "href": {"@id": "hctl:hasTarget", "@type": "@id"},
    "contentType": "hctl:forContentType",
    "subprotocol": "hctl:forSubProtocol",
    "op": {"@id": "hctl:hasOperationType", "@type": "@vocab"},
    "readproperty": "td:readProperty",
    "writeproperty": "td:writeProperty",
    "observeproperty": "td:observeProperty",
    "unobserveproperty": "td:unobserveProperty",
    "readallproperties": "td:readAllProperties",
    "invokeaction": "td:invokeAction",
}
_SECURITY: Final = {
    "@vocab": "https://www.w3.org/2019/wot/security#",
    "scheme": {"@id": "rdf:type", "@type": "@vocab"},
    "nosec": "wotsec:NoSecurityScheme",
    "bearer": "wotsec:BearerSecurityScheme",
    "authorization": {"@id": "wotsec:authorization", "@type": "@id"},
}
CONTEXT: Final[dict[str, Any]] = {
    "@version": 1.1,
    "@vocab": "https://www.w3.org/2019/wot/td#",
    "td": "https://www.w3.org/2019/wot/td#",
    "hctl": "https://www.w3.org/2019/wot/hypermedia#",
    "jsonschema": "https://www.w3.org/2019/wot/json-schema#",
    "wotsec": "https://www.w3.org/2019/wot/security#",
    "dct": "http://purl.org/dc/terms/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    **PREFIXES,
    "id": "@id",
    "base": {"@id": "td:baseURI", "@type": "@id"},
    "properties": {"@id": "td:hasPropertyAffordance", **_NAMED, "@context": _SCHEMA},
    "actions": {"@id": "td:hasActionAffordance", **_NAMED},
    "input": {"@id": "td:hasInputSchema", "@type": "@id", "@context": _SCHEMA},
    "safe": "td:isSafe",
    "idempotent": "td:isIdempotent",
    "forms": {"@id": "td:hasForm", "@type": "@id", "@context": _FORM},
    "security": None,
    "securityDefinitions": {"@id": "td:hasSecurityConfiguration", **_NAMED, "@context": _SECURITY},
}


class Search:
    """A query over descriptions, as a work of `Runner.beside`. media_type: of the answer."""

    def __init__(
        self, descriptions: Sequence[Description], query: QueryOutline, media_type: str, settings: QuerySettings
    ) -> None:
        self._descriptions = descriptions
        self._query = query
        self._media_type = media_type
        self._settings = settings

    def __call__(self, out: BinaryIO) -> None:
        store = ox.Store()
        for one in self._descriptions:
            store.extend(description_quads(one))
        write_answer(store, self._query, self._media_type, None, None, out, self._settings)


def description_quads(description: Description) -> list[ox.Quad]:
    """The triples of a description of ours, a td:Thing."""
    found = {
        **description,
        "@context": {**CONTEXT, "@base": description["base"]},
        "@type": ["td:Thing", description["@type"]],
    }
    return list(ox.parse(msgspec.json.encode(found), ox.RdfFormat.JSON_LD))
