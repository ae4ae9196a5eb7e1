"""Profiles in the shapes that applications for SEPA publish: each is read and its texts are accepted, or an error names
the place and the cure.

They were written for this test, after the members, spellings and texts of published ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.client import load_profile
from lamplighter.engine.errors import ForcedBindingError, GatewayError, JsapError
from lamplighter.engine.protocol.jsap import Jsap
from tests.support.tables import each_row

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
XSD = "http://www.w3.org/2001/XMLSchema#"
GRAPH = "http://chat.example/g"
CLASSIC: dict[str, Any] = {
    "host": "localhost",
    "oauth": {
        "enable": False,
        "register": "https://localhost:8443/oauth/register",
        "tokenRequest": "https://localhost:8443/oauth/token",
        "client_id": "aGlkZGVu",
        "client_secret": "aGlkZGVu",
        "jwt": "aGlkZGVu",
        "expires": "aGlkZGVu",
        "type": "aGlkZGVu",
    },
    "sparql11protocol": {
        "protocol": "http",
        "port": 8000,
        "query": {"path": "/query", "method": "POST", "format": "JSON"},
        "update": {"path": "/update", "method": "URL_ENCODED_POST", "format": "HTML"},
    },
    "sparql11seprotocol": {
        "protocol": "ws",
        "reconnect": True,
        "availableProtocols": {
            "ws": {"port": 9000, "path": "/subscribe"},
            "wss": {"port": 9443, "path": "/s/subscribe"},
        },
    },
}
OF_2023 = {
    "host": "sepa.example",
    "oauth": {
        "enable": True,
        "ssl": "TLSv1.2",
        "trustall": True,
        "loadTrustMaterial": {"jks": "sepa.jks", "secret": "sepa"},
        "provider": "keycloak",
        "registration": {
            "endpoint": "https://sepa.example/registrations",
            "username": "x",
            "initialAccessToken": "eyJ",
        },
        "authentication": {"endpoint": "https://sepa.example/token", "client_id": "aGlk", "client_secret": "aGlk"},
    },
    "sparql11protocol": {
        "protocol": "https",
        "query": {"path": "/query", "method": "GET"},
        "update": {"path": "/update", "method": "POST"},
    },
    "sparql11seprotocol": {
        "protocol": "public",
        "availableProtocols": {"public": {"path": "/subscribe", "port": 443, "scheme": "wss"}},
    },
}
PEOPLE = {"schema": "http://schema.org/", "rdf": RDF, "who": "http://chat.example/who#"}
CHAT = {
    **CLASSIC,
    "graphs": {
        name: [GRAPH] for name in ("default-graph-uri", "named-graph-uri", "using-graph-uri", "using-named-graph-uri")
    },
    "namespaces": PEOPLE,
    "extended": {"type": "basic", "base": 0, "clients": 10, "messages": 1},
    "updates": {
        "REGISTER": {
            "sparql": "WITH <http://chat.example/g> DELETE {?x rdf:type ?y} INSERT {?x rdf:type schema:Person; "
            "schema:name ?name} WHERE {OPTIONAL {?x rdf:type ?y}}",
            "forcedBindings": {"x": {"type": "uri", "value": "who:ann"}, "name": {"type": "literal", "value": "Ann"}},
        },
        "SEND": {
            "sparql": "INSERT {GRAPH <http://chat.example/g> {?m rdf:type schema:Message; schema:text ?text; "
            "schema:sender ?sender; schema:dateSent ?time}} WHERE {?sender rdf:type schema:Person "
            'BIND(STR(now()) AS ?time) BIND(IRI(CONCAT("http://schema.org/Message-",STRUUID())) AS ?m)}',
            "forcedBindings": {"sender": {"type": "uri", "value": ""}, "text": {"type": "literal", "value": 'A "b"'}},
        },
        "LOG": {
            "sparql": "INSERT DATA {GRAPH ?graph {_:m schema:text ?text}}",
            "forcedBindings": {"graph": {"type": "uri", "value": "http://chat.example/log"}, "text": {"value": ""}},
            "graphs": {"using_graph_uri": "http://chat.example/log"},
        },
    },
    "queries": {
        "SENT": {
            "sparql": "SELECT ?m ?text WHERE {?m rdf:type schema:Message; schema:text ?text; schema:sender ?sender} "
            "ORDER BY ?text",
            "forcedBindings": {"sender": {"type": "uri", "value": ""}},
            "host": "other.example",
            "sparql11seprotocol": {"availableProtocols": {"ws": {"port": 9001}}},
        },
        "ALL": {"sparql": "SELECT * {?s ?p ?o}", "sparql11protocol": {"port": 8001, "query": {"method": "GET"}}},
    },
}
NODE = {"type": "uri"}
DASHBOARD = {
    "namespaces": {"rdf": RDF, "rdfs": "http://www.w3.org/2000/01/rdf-schema#"},
    "updates": {
        "INSERT_DATA": {
            "sparql": "INSERT DATA {GRAPH ?graph {?subject ?predicate ?object}}",
            "forcedBindings": {"graph": NODE, "subject": NODE, "predicate": NODE, "object": {"type": "literal"}},
            "graphs": {"using-graph-uri": [], "using-named-graph-uri": []},
        },
        "INSERT_BNODE": {
            "sparql": "INSERT DATA {?subject ?predicate ?object}",
            "forcedBindings": {"subject": {"type": "bnode"}, "predicate": NODE, "object": {"type": "bnode"}},
        },
        "UPDATE_LITERAL": {
            "sparql": "WITH ?graph DELETE {?s ?p ?old} INSERT {?s ?p ?object} WHERE {?s ?p ?old}",
            "forcedBindings": {"graph": NODE, "s": NODE, "p": NODE, "object": {"type": "literal"}},
        },
        "UPDATE_LITERAL_BNODE": {
            "sparql": "WITH ?graph DELETE {?s ?p ?old} INSERT {?s ?p ?object} WHERE {?s rdf:type ?class . "
            "FILTER(sameTerm(?subject, ?s))}",
            "forcedBindings": {
                "graph": NODE,
                "subject": {"type": "bnode"},
                "object": {"type": "literal"},
                "p": NODE,
                "class": NODE,
            },
        },
        "DROP_GRAPH": {"sparql": "DROP SILENT GRAPH ?graph", "forcedBindings": {"graph": NODE}},
    },
    "queries": {
        "GRAPHS": {
            "sparql": "SELECT ?graph (COUNT(?s) AS ?count) {GRAPH ?graph {?s ?p ?o}} GROUP BY ?graph "
            "HAVING (COUNT(?s) < ?max)",
            "forcedBindings": {"max": {"type": "literal", "value": "1000", "datatype": "xsd:integer"}},
        },
        "FEW_GRAPHS": {
            "sparql": "SELECT ?graph (COUNT(?s) AS ?n) {GRAPH ?graph {?s ?p ?o}} GROUP BY ?graph HAVING (?n < 5)"
        },
        "CLASSES": {
            "sparql": "SELECT DISTINCT ?class ?label FROM ?graph WHERE {?s rdf:type ?class . "
            "OPTIONAL {?class rdfs:label ?label} FILTER NOT EXISTS {?class rdfs:subClassOf ?top}}",
            "forcedBindings": {"graph": {"type": "uri", "value": "https://sepa.example/default/graph"}},
        },
    },
}
MONITOR = {
    "sosa": "http://www.w3.org/ns/sosa/",
    "qudt": "http://qudt.org/schema/qudt#",
    "unit": "http://qudt.org/vocab/unit#",
    "arces-monitor": "http://wot.example/monitor#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "xsd": XSD,
}
OBSERVATIONS = {
    "#include": ["file:///host.jsap", "file:////adapters.jsap"],
    "namespaces": MONITOR,
    "extended": {"semantic-mappings": {"5CCF/t": {"observation": "arces-monitor:T", "unit": "unit:DegreeCelsius"}}},
    "updates": {
        "UPDATE_VALUE": {
            "sparql": "WITH <http://wot.example/observation>\n\tDELETE {?q qudt:numericValue ?old}\r\n\t# the new one\n"
            "\tINSERT {?q qudt:numericValue ?value}\n"
            "\tWHERE {?o sosa:hasResult ?q . OPTIONAL {?q qudt:numericValue ?old}}",
            "forcedBindings": {
                "o": {"type": "uri", "value": "arces-monitor:T"},
                "value": {"type": "literal", "datatype": f"{XSD}decimal", "value": "0.0"},
            },
        },
        "LABEL": {
            "sparql": "INSERT DATA { ?o rdfs:label ?label ; rdfs:comment '''a \"quoted\"\nline''' }",
            "forcedBindings": {"o": NODE, "label": {"type": "literal", "language": "it", "value": "Temperatura"}},
        },
        "COMMENT": {
            "sparql": "INSERT DATA { ?o rdfs:comment ?comment }",
            "forcedBindings": {"o": NODE, "comment": {"xml:lang": "en", "value": "Temperature"}},
        },
        "MEASURED": {
            "sparql": "INSERT DATA { ?o qudt:numericValue ?a, ?b, ?c }",
            "forcedBindings": {"o": NODE, "a": {"value": 22.5}, "b": {"value": 3}, "c": {"value": True}},
        },
        "UNIT": {
            "sparql": "INSERT DATA { ?o qudt:unit ?unit }",
            "forcedBindings": {"o": NODE, "unit": {"type": "uri", "value": "om:degree"}},
        },
        "MAPPER": {
            "sparql": "DELETE {?m ?p ?v} INSERT {?m a sosa:Mapper} WHERE {OPTIONAL {?m ?p ?v}} ; "
            "INSERT {?m sosa:at ?now} WHERE {BIND(now() AS ?now)}",
            "forcedBindings": {"m": {"type": "uri", "value": "urn:uuid:1234"}},
        },
    },
    "queries": {
        "LATEST": {
            "sparql": "SELECT ?o ?value WHERE {?o sosa:hasResult/qudt:numericValue ?value} ORDER BY ?value LIMIT ?n",
            "forcedBindings": {"n": {"datatype": "xsd:integer", "value": "10"}},
        },
        "MEAN": {"sparql": "SELECT ?u (AVG(?v) AS ?mean) {?o qudt:unit ?u ; qudt:numericValue ?v} GROUP BY ?u"},
    },
}
ADAPTERS = {
    "extended": {"adapters": {"mqtt": [{"url": "broker.example", "port": 1883, "topics": ["#"], "ssl": False}]}},
}
EARLY_2018 = {
    "parameters": {
        "host": "localhost",
        "ports": {"http": 8000, "https": 8443, "ws": 9000, "wss": 9443},
        "paths": {
            "query": "/query",
            "update": "/update",
            "subscribe": "/subscribe",
            "register": "/oauth/register",
            "tokenRequest": "/oauth/token",
            "securePath": "/secure",
        },
    },
    "namespaces": {"td": "http://www.w3.org/ns/td#", "wot": "http://wot.example/sepa#", "rdf": RDF},
    "updates": {
        "DISCOVER": {
            "sparql": " DELETE { ?thing wot:isDiscoverable ?old } INSERT { ?thing wot:isDiscoverable ?value } "
            "WHERE {?thing wot:isDiscoverable ?old}",
            "forcedBindings": {"thing": {"type": "uri", "value": ""}, "value": {"type": "literal", "value": ""}},
        }
    },
    "queries": {
        "THINGS": {"sparql": "SELECT ?thing WHERE { ?thing rdf:type td:Thing . ?thing wot:isDiscoverable 'true' }"}
    },
}
SEPATEST = {
    **CLASSIC,
    "namespaces": {"sepa": "http://wot.example/sepa#"},
    "updates": {
        "WRONG": {"sparql": "WITH <http://sepatest> DELETE {?x ?y} WHERE {?y ?z}"},
        "VAIMEE": {
            "sparql": "WITH <http://sepatest> DELETE {sepa:SV sepa:PV ?o}  WHERE {sepa:SV sepa:PV ?o} ; "
            'INSERT DATA {GRAPH<http://sepatest> {sepa:SV sepa:PV "ვაიმეე"}}'
        },
        "RANDOM": {
            "sparql": "WITH <http://sepatest> DELETE {sepa:S sepa:P ?o} WHERE {sepa:S sepa:P ?o} ; "
            "WITH <http://sepatest> INSERT {sepa:S sepa:P ?r} "
            'WHERE {BIND(IRI(CONCAT("http://wot.example/sepa#R-",STRUUID())) AS ?r)}'
        },
    },
    "queries": {
        "WRONG": {"sparql": 'SELECT * WHERE {GRAPH <http://sepatest> {?x "ვაიმეე"}}'},
        "ALL": {"sparql": "SELECT * WHERE {GRAPH <http://sepatest> {?x ?y ?z}}"},
        "COUNT": {"sparql": "SELECT (COUNT(?x) AS ?n) WHERE {GRAPH <http://sepatest> {?x ?y ?z}}"},
    },
}
FILES: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "dashboard": DASHBOARD,
    "observations": OBSERVATIONS,
    "adapters": ADAPTERS,
    "host": CLASSIC,
    "host-2023": OF_2023,
    "td": EARLY_2018,
    "sepatest": SEPATEST,
    "with-host-2023": {"include": ["host-2023.jsap", "./dashboard.jsap"], "queries": {"ASK": {"sparql": "ASK {}"}}},
}
REFUSED = {
    "dashboard: UPDATE_LITERAL_BNODE": r"forced binding \?subject: _:n is a blank node, .* find the node",
    "with-host-2023: UPDATE_LITERAL_BNODE": r"forced binding \?subject: _:n is a blank node",
    "dashboard: FEW_GRAPHS": r"\?n has no value in HAVING, .* repeat the expression in its place: COUNT\(\?s\)",
    "with-host-2023: FEW_GRAPHS": "has no value in HAVING",
    "observations: UNIT": "UNIT, forced binding unit: the prefix om: of 'om:degree' is not declared; add it to",
    "sepatest: WRONG": "line 1, column",
}
"""profile: entry -> the error of its text."""


def written(folder: Path, name: str, document: object) -> Path:
    path = folder / f"{name}.jsap"
    text = json.dumps(document, ensure_ascii=False, indent="\t")
    path.write_bytes((b"\xef\xbb\xbf" if name == "chat" else b"") + text.encode())
    return path


def values(profile: Jsap, name: str) -> dict[str, Any]:
    """A value for each forced binding that has no default."""
    entry = profile.updates.get(name) or profile.queries[name]
    samples = {"uri": "http://e/a", "bnode": "_:n", "literal": "l'oro \\ \"\n"}
    return {
        variable: samples[declared.type]
        for variable, declared in entry.forced_bindings.items()
        if declared.value is None or declared.value == ""
    }


def test_each_profile_is_read_and_its_texts_are_accepted_or_refused_with_place_and_cure(tmp_path: Path) -> None:
    refused: dict[str, str] = {}
    engine = Engine()
    for name, document in FILES.items():
        written(tmp_path, name, document)
    for name in FILES:
        profile = load_profile(tmp_path / f"{name}.jsap", [] if name != "dashboard" else ["host=localhost"])
        for entry in profile.updates:
            try:
                engine.prepare(profile.whole_update_text(entry, {}, values(profile, entry)))
            except GatewayError as error:
                refused[f"{name}: {entry}"] = str(error)
        for entry in profile.queries:
            try:
                engine.unsubscribe(engine.subscribe(profile.whole_query_text(entry, {}, values(profile, entry))).spuid)
            except GatewayError as error:
                refused[f"{name}: {entry}"] = str(error)
    assert refused.keys() == REFUSED.keys()
    for place, reason in REFUSED.items():
        with pytest.raises(ForcedBindingError, match=reason):
            raise ForcedBindingError(refused[place])


@each_row(
    "name, addresses",
    [
        ("chat", ("http://other.example:8000/query", "ws://other.example:9001/subscribe")),
        ("observations", ("http://localhost:8000/query", "ws://localhost:9000/subscribe")),
        ("with-host-2023", ("https://sepa.example:8443/query", "wss://sepa.example:443/subscribe")),
        ("td", ("http://localhost:8000/query", "ws://localhost:9000/subscribe")),
    ],
)
def test_each_profile_has_its_addresses(tmp_path: Path, name: str, addresses: tuple[str, str]) -> None:
    for file, document in FILES.items():
        written(tmp_path, file, document)
    profile = load_profile(tmp_path / f"{name}.jsap")
    entry = next(iter(profile.queries))
    assert (profile.query_address(entry).url, profile.subscribe_url(entry)) == addresses


@each_row(
    "document, reason",
    [
        (
            {"parameters": {"path": "/sparql", "port": 8000, "subscribe": {"port": 9000}}},
            "the form of 2017, which is no",
        ),
        ({"include": ["file:///missing.jsap"]}, "missing.jsap, which .*x.jsap includes, cannot be read: No such file"),
        (
            {"updates": {"U": {"forcedBindings": {}}}},
            "x.jsap line 3: updates.U: Object missing required field `sparql`",
        ),
        ({"updates": {"U": {"sparql": ["a", "b"]}}}, "x.jsap line 4: updates.U.sparql: Expected `str`, got `array`"),
        (
            {"queries": {"Q": {"sparql": "ASK {}", "forcedBindings": {"x": {"type": "iri"}}}}},
            "x.jsap line 7: queries.Q.forcedBindings.x.type: Invalid enum value 'iri'; use uri, literal or bnode",
        ),
        (
            {"queries": {"Q": {"sparql": "ASK {}", "forcedBindings": {"x": {"language": "it", "xml:lang": "en"}}}}},
            "queries.Q.forcedBindings.x: language and xml:lang are two spellings of one member, and differ; keep one",
        ),
        ({"namespaces": {"my ns": "http://e/"}}, "namespaces: 'my ns' cannot be a prefix; use letters, digits"),
        ({"graphs": {"default-graph": ["http://e/"]}}, "graphs: no member 'default-graph' is known; there are"),
        ({"queires": {}}, 'queires: unknown member; did you mean "queries"?'),
        ([CLASSIC], "a JSAP document is a JSON object with the members host"),
    ],
)
def test_a_profile_that_cannot_be_read_is_refused_with_place_and_cure(
    tmp_path: Path, document: object, reason: str
) -> None:
    with pytest.raises(JsapError, match=reason.replace("?", "\\?")):
        load_profile(written(tmp_path, "x", document))
