"""Thing Descriptions (W3C Web of Things, Thing Description 1.1): of things, and of the gateway as their directory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote

from lamplighter.engine.terms import lexical
from lamplighter.gateway.gates.wot.things import Thing, ThingProperty
from lamplighter.ontology.vocabulary import GATEWAY, RDFS, SOSA

TD: Final = "application/td+json"
TD_LIST: Final = "application/ld+json"
EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"
CONTEXT: Final = "https://www.w3.org/2022/wot/td/v1.1"
DISCOVERY: Final = "https://www.w3.org/2022/wot/discovery"
PREFIXES = {"gateway": GATEWAY, "rdfs": RDFS, "sosa": SOSA}
WELL_KNOWN: Final = "/.well-known/wot"
THINGS: Final = "/things"
SEARCH: Final = "/search/sparql"

Description = dict[str, Any]  # a Thing Description, or a part of one


@dataclass(frozen=True)
class Reach:
    """How clients reach the gateway. base: the URL of the request, with a slash; secure: they need a token."""

    base: str
    secure: bool

    def members(self) -> Description:
        """The security definitions, and the one that is used. A token is that of `docs/secure.md`."""
        scheme: Description = {"scheme": "nosec"}
        if self.secure:
            scheme = {
                "scheme": "bearer",
                "in": "header",
                "name": "Authorization",
                "format": "jwt",
                "authorization": f"{self.base}oauth/token",
            }
        name = f"{scheme['scheme']}_sc"
        return {"base": self.base, "securityDefinitions": {name: scheme}, "security": name}


def thing_path(identifier: str, *below: str) -> str:
    """The path of a thing, or of a part of it, relative to the base. Each part is one segment."""
    return "/".join([THINGS.removeprefix("/"), *(quote(part, safe="") for part in (identifier, *below))])


def thing_description(thing: Thing, access: Reach) -> Description:
    identifier = thing.id
    found: Description = {
        "@context": [CONTEXT, PREFIXES],
        "@type": "sosa:Platform",
        "id": identifier,
        "title": thing.title,
        **access.members(),
    }
    if thing.texts:
        found["description"] = " ".join(thing.texts)
    if thing.area is not None:
        found["gateway:inArea"] = {"@id": lexical(thing.area[0]), "rdfs:label": thing.area[1]}
    found["properties"] = {name: _property(identifier, one) for name, one in thing.properties.items()}
    actions = {name: _action(identifier, one) for name, one in thing.properties.items() if one.actuator is not None}
    if actions:
        found["actions"] = actions
    found["forms"] = [{"op": "readallproperties", "href": thing_path(identifier, "properties"), "contentType": JSON}]
    return found


def _semantics(one: ThingProperty) -> Description:
    """The semantic type of an affordance: what is observed or controlled."""
    if one.kind is None:
        return {}
    kind = lexical(one.kind)
    return {"@type": f"gateway:{kind.removeprefix(GATEWAY)}" if kind.startswith(GATEWAY) else kind}


def _property(identifier: str, one: ThingProperty) -> Description:
    href = thing_path(identifier, "properties", one.name)
    writable = one.actuator is not None
    op = ["readproperty", "writeproperty"] if writable else ["readproperty"]
    return {
        **_semantics(one),
        "title": one.title,
        **one.schema,
        "readOnly": not writable,
        "writeOnly": False,
        "observable": True,
        "forms": [
            {"op": op, "href": href, "contentType": JSON},
            {
                "op": ["observeproperty", "unobserveproperty"],
                "href": f"{href}/observe",
                "contentType": JSON,
                "subprotocol": "sse",
            },
        ],
    }


def _action(identifier: str, one: ThingProperty) -> Description:
    href = thing_path(identifier, "actions", one.name)
    return {
        **_semantics(one),
        "title": f"Set {one.title}",
        "input": one.written,
        "safe": False,
        "idempotent": True,
        "forms": [{"op": "invokeaction", "href": href, "contentType": JSON}],
    }


def directory_description(identifier: str, title: str, access: Reach) -> Description:
    """The Thing Description of the gateway: a directory (WoT Discovery, 7.3)."""
    things = THINGS.removeprefix("/")
    thing_id = {"id": {"@type": "ThingID", "title": "ID of the thing", "type": "string", "format": "iri-reference"}}
    missing = _refusal("There is no thing with this id", 404)
    return {
        "@context": [CONTEXT, DISCOVERY, PREFIXES],
        "@type": "ThingDirectory",
        "id": identifier,
        "title": title,
        "version": {"instance": version("lamplighter"), "model": "1.0.0"},
        **access.members(),
        "properties": {
            "things": {
                "description": "Thing Descriptions, by id",
                "type": "array",
                "items": {"type": "object"},
                "readOnly": True,
                "uriVariables": {
                    "offset": {"title": "Number of things to skip", "type": "integer", "minimum": 0, "default": 0},
                    "limit": {"title": "Number of things", "type": "integer", "minimum": 1},
                    "format": {"type": "string", "enum": ["array", "collection"], "default": "array"},
                },
                "forms": [
                    {
                        "op": "readproperty",
                        "href": f"{things}{{?offset,limit,format}}",
                        "htv:methodName": "GET",
                        "contentType": TD_LIST,
                        "response": {"contentType": TD_LIST, "htv:headers": [{"htv:fieldName": "Link"}]},
                        "additionalResponses": [_refusal("Invalid query arguments", 400)],
                    }
                ],
            }
        },
        "actions": {
            "retrieveThing": {
                "description": "A Thing Description",
                "uriVariables": thing_id,
                "output": {"type": "object"},
                "safe": True,
                "idempotent": True,
                "forms": [_form(f"{things}/{{id}}", "GET", TD, missing)],
            },
            "createThing": _change("Creates a thing", "PUT", f"{things}/{{id}}", thing_id, {"type": "object"}),
            "createAnonymousThing": _change("Creates a thing", "POST", things, {}, {"type": "object"}),
            "updateThing": _change("Replaces a description", "PUT", f"{things}/{{id}}", thing_id, {"type": "object"}),
            "deleteThing": _change("Removes a thing", "DELETE", f"{things}/{{id}}", thing_id, None),
            "searchSPARQL": {
                "description": "Searches the Thing Descriptions as RDF",
                "uriVariables": {"query": {"title": "A SPARQL query", "type": "string"}},
                "output": {"type": "object"},
                "safe": True,
                "idempotent": True,
                "forms": [_form(f"{SEARCH.removeprefix('/')}{{?query}}", "GET", JSON, _refusal("Invalid query", 400))],
            },
        },
    }


def _change(text: str, method: str, href: str, variables: Description, schema: Description | None) -> Description:
    """An action that changes the directory. schema: of its input."""
    form = _form(href, method, TD, _refusal("Not a description, or not of a thing", 400))
    return {
        "description": text,
        **({"uriVariables": variables} if variables else {}),
        **({} if schema is None else {"input": schema}),
        "safe": False,
        "idempotent": method != "POST",
        "forms": [form],
    }


def _form(href: str, method: str, content_type: str, refusal: Description) -> Description:
    return {
        "op": "invokeaction",
        "href": href,
        "htv:methodName": method,
        "contentType": content_type,
        "response": {"contentType": content_type},
        "additionalResponses": [refusal],
    }


def _refusal(text: str, status: int) -> Description:
    return {"description": text, "contentType": "application/problem+json", "htv:statusCodeValue": status}
