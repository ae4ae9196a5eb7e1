import json
from typing import Any

import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ForcedBindingError, JsapError
from lamplighter.engine.protocol.jsap import Jsap, parse
from lamplighter.engine.sparql.forced_bindings import bind
from lamplighter.engine.terms import iri, literal
from tests.support.tables import each_row


def profile(**members: Any) -> Jsap:
    return parse(json.dumps({"namespaces": {"ex": "http://example.org/"}, **members}).encode())


@each_row(
    ("declared", "term"),
    [
        ({"type": "uri", "value": "ex:lamp"}, "<http://example.org/lamp>"),
        ({"type": "uri", "value": "urn:x:1"}, "<urn:x:1>"),
        ({"type": "uri", "value": "http://example.org/a"}, "<http://example.org/a>"),
        ({"type": "literal", "value": 'it\'s "so"\n'}, '"it\'s \\"so\\"\\n"'),
        (
            {"type": "literal", "value": "1", "datatype": "xsd:integer"},
            '"1"^^<http://www.w3.org/2001/XMLSchema#integer>',
        ),
        ({"type": "literal", "value": 1}, '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'),
        ({"type": "literal", "value": True}, '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>'),
        ({"type": "literal", "value": 1.5}, '"1.5"^^<http://www.w3.org/2001/XMLSchema#double>'),
        ({"type": "literal", "value": "ciao", "language": "it"}, '"ciao"@it'),
    ],
)
def test_defaults_are_written_by_their_type(declared: dict[str, Any], term: str) -> None:
    text = profile(
        updates={"U": {"sparql": "INSERT DATA { ?x ex:p 1 }", "forcedBindings": {"x": declared}}}
    ).update_text("U", {})
    assert f"INSERT DATA {{  {term}  ex:p 1 }}" in text


def test_given_values_replace_defaults_and_others_are_ignored() -> None:
    application = profile(
        updates={"U": {"sparql": "INSERT DATA { <a:s> ex:p ?x }", "forcedBindings": {"x": {"value": "default"}}}}
    )
    text = application.update_text("U", {"x": literal("given"), "other": literal("ignored")})
    assert '"given"' in text
    assert "default" not in text
    assert "ignored" not in text


def test_missing_value_is_named() -> None:
    application = profile(
        updates={"U": {"sparql": "INSERT DATA { ?x ex:p 1 }", "forcedBindings": {"x": {"type": "uri", "value": ""}}}}
    )
    with pytest.raises(ForcedBindingError, match=r"U needs a value for \?x"):
        application.update_text("U", {})


def test_what_has_neither_value_nor_default_remains_a_variable() -> None:
    application = profile(
        queries={"Q": {"sparql": "SELECT * { ?x ex:p ?y }", "forcedBindings": {"x": {"type": "uri"}}}}
    )
    assert application.query_text("Q", {}).endswith("SELECT * { ?x ex:p ?y }")
    assert application.query_text("Q", {}, {"x": None}).endswith("SELECT * { ?x ex:p ?y }")
    assert " <http://example.org/a> " in application.query_text("Q", {}, {"x": "ex:a"})


def test_a_value_that_is_not_declared_is_named() -> None:
    application = profile(
        queries={"Q": {"sparql": "SELECT * { ?x ex:p ?y }", "forcedBindings": {"x": {"type": "uri"}}}}
    )
    with pytest.raises(ForcedBindingError, match=r"Q has no forced binding 'z'; it has x"):
        application.query_text("Q", {}, {"z": "ex:a"})


def test_unknown_name_says_which_there_are() -> None:
    with pytest.raises(JsapError, match="A, B"):
        profile(queries={"B": {"sparql": ""}, "A": {"sparql": ""}}).query_text("C", {})


def test_only_whole_variables_outside_of_strings_and_iris_are_bound() -> None:
    text = "SELECT ?xy { ?x $x ?xy . FILTER(?x<?y) # ?x\n FILTER(?y = '?x') <http://e/?x> ?p 1 }"
    expected = "SELECT ?xy {  <a:t>   <a:t>  ?xy . FILTER( <a:t> <?y) # ?x\n FILTER(?y = '?x') <http://e/?x> ?p 1 }"
    assert bind(text, {"x": "<a:t>"}) == expected


def test_blank_node_cannot_be_bound() -> None:
    with pytest.raises(ForcedBindingError, match="_:b"):
        bind("INSERT DATA { ?x <a:p> 1 }", {"x": "_:b"})


@each_row("value", ["' } ; DROP ALL #", '" } ; DROP ALL #', "\\", '\\" } ; DROP ALL #', "\n", "a\r\nb", "'''"])
def test_no_value_breaks_out_of_its_place(value: str) -> None:
    engine = Engine()
    engine.update("INSERT DATA { <a:keep> <a:p> 1 }")
    commit = engine.update(bind("INSERT DATA { <a:s> <a:p> ?x }", {"x": literal(value)}))
    assert [(quad.s, quad.o) for quad in commit.added] == [("<a:s>", literal(value))]
    assert engine.quad_count == 2


@each_row("value", ["http://e/> <a:p> 1 } ; DROP ALL #", "a b", "a{b", "a\\b", 'a"b', "a^b", "a`b", "a|b"])
def test_iris_that_could_break_out_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="an IRI cannot hold"):
        iri(value)


@each_row(
    ("aggregators", "place"),
    [
        ({"a": {"query": "NONE", "added": "U"}}, "aggregators.a.query"),
        ({"a": {"query": "Q", "added": "NONE"}}, "aggregators.a.added"),
        ({"a": {"query": "Q", "removed": "NONE"}}, "aggregators.a.removed"),
        ({"a": {"query": "Q"}}, "it does nothing"),
        ({"a": {"query": "Q", "aded": "U"}}, "aded"),
    ],
)
def test_wrong_aggregator_is_named(aggregators: dict[str, Any], place: str) -> None:
    with pytest.raises(JsapError, match=place):
        profile(
            queries={"Q": {"sparql": "SELECT * {}"}},
            updates={"U": {"sparql": "CLEAR ALL"}},
            extended={"lamplighter": {"aggregators": aggregators}},
        )


@each_row(
    ("members", "fault"),
    [
        ({"updates": {"U": {"sparql": "", "dealy": "PT1S"}}}, 'updates.U.dealy: unknown member; did you mean "delay"?'),
        ({"updates": {"U": {"sparql": "", "Delay": "PT1S"}}}, 'updates.U.Delay: unknown member; did you mean "delay"?'),
        (
            {"queries": {"Q": {"sparql": "", "xyz": 1}}},
            "queries.Q.xyz: unknown member; the members are sparql, forcedBindings, host, sparql11protocol, "
            "sparql11seprotocol, graphs, description",
        ),
        (
            {"queries": {"Q": {"sparql": "", "forcedBindings": {"x": {"typ": "uri"}}}}},
            'queries.Q.forcedBindings.x.typ: unknown member; did you mean "type"?',
        ),
        (
            {"queries": {"Q": {"sparql": "", "forcedbindings": {}}}},
            'queries.Q.forcedbindings: unknown member; did you mean "forcedBindings"?',
        ),
        (
            {"extended": {"lamplighter": {"aggregator": {}}}},
            'extended.lamplighter.aggregator: unknown member; did you mean "aggregators"?',
        ),
        ({"extended": {"Lamplighter": {}}}, 'extended.Lamplighter: unknown member; did you mean "lamplighter"?'),
        ({"extendet": {"lamplighter": {}}}, 'extendet: unknown member; did you mean "extended"?'),
    ],
)
def test_unknown_member_is_refused_with_a_suggestion(members: dict[str, Any], fault: str) -> None:
    with pytest.raises(JsapError) as raised:
        profile(**members)
    assert raised.value.args == (fault,)


def test_members_of_sepa_and_of_other_applications_are_left_alone() -> None:
    protocols = {"sparql11protocol": {"host": "h"}, "sparql11seprotocol": {"reconnect": False}, "host": "h"}
    declared = {"type": "literal", "value": "1", "datatype": "xsd:integer"}
    entry = {"sparql": "", "graphs": {"using_graph_uri": "http://e/"}, "forcedBindings": {"x": declared}, **protocols}
    profile(
        oauth={"enable": False, "client_id": "x", "ssl": "TLS"},
        extended={"clients": 2, "mqtt": {"topics": ["#"]}, "lamps": 1},
        graphsX={},
        updates_with={},
        queries={"Q": entry},
        updates={"U": entry},
        **protocols,
    )


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(JsapError) as raised:
        profile(
            queries={"Q": {"sparq": ""}, "R": {"sparql": "", "host": 1}},
            updates={"U": {"sparql": "", "missed": "later"}},
            extended={"lamplighter": {"aggregators": {"a": {"query": 1}}}},
        )
    assert raised.value.args == (
        'queries.Q.sparq: unknown member; did you mean "sparql"?',
        "queries.Q: Object missing required field `sparql`",
        "queries.R.host: Expected `str | null`, got `int`",
        "updates.U.missed: Invalid enum value 'later'",
        "extended.lamplighter.aggregators.a.query: Expected `str`, got `int`",
    )


def test_misspelt_reference_is_suggested() -> None:
    with pytest.raises(JsapError, match=r"there is no query 'PRESENSE'; did you mean 'PRESENCE'\?"):
        profile(
            queries={"PRESENCE": {"sparql": ""}},
            updates={"U": {"sparql": ""}},
            extended={"lamplighter": {"aggregators": {"a": {"query": "PRESENSE", "added": "U"}}}},
        )


def test_delay_and_at_exclude_each_other() -> None:
    with pytest.raises(JsapError, match=r"updates\.U"):
        profile(updates={"U": {"sparql": "CLEAR ALL", "delay": "PT1S", "at": "2030-01-01T00:00:00Z"}})


def test_what_becomes_of_a_missed_update_is_said_for_delayed_ones_only() -> None:
    assert (
        profile(updates={"U": {"sparql": "CLEAR ALL", "delay": "PT1S", "missed": "skip"}}).updates["U"].missed == "skip"
    )
    with pytest.raises(JsapError, match=r"updates\.U: missed applies to delayed updates"):
        profile(updates={"U": {"sparql": "CLEAR ALL", "missed": "skip"}})
    with pytest.raises(JsapError, match=r"missed"):
        profile(updates={"U": {"sparql": "CLEAR ALL", "delay": "PT1S", "missed": "later"}})


def test_a_byte_order_mark_is_no_part_of_the_document() -> None:
    assert parse(b'\xef\xbb\xbf{"host": "a"}').host == "a"


@each_row("document", [b"", b"[]", b'{"updates": 1}', b'{"updates": {"U": {}}}', b"\xff"])
def test_what_is_no_jsap_is_said(document: bytes) -> None:
    with pytest.raises(JsapError):
        parse(document)


# --- addresses --------------------------------------------------------------------------------------

CLASSIC = {
    "host": "broker",
    "sparql11protocol": {
        "protocol": "http",
        "port": 8000,
        "query": {"path": "/query", "method": "POST", "format": "JSON"},
        "update": {"path": "/update", "method": "URL_ENCODED_POST", "format": "JSON"},
    },
    "sparql11seprotocol": {
        "protocol": "ws",
        "availableProtocols": {
            "ws": {"port": 9000, "path": "/subscribe"},
            "wss": {"port": 9443, "path": "/secure/subscribe"},
        },
    },
    "updates": {"U": {"sparql": "CLEAR ALL"}},
    "queries": {"Q": {"sparql": "SELECT * {}"}},
}


def addresses(found: Jsap) -> tuple[str, str, str]:
    return found.query_address("Q").url, found.update_address("U").url, found.subscribe_url("Q")


def test_addresses_are_those_of_the_profile() -> None:
    found = profile(**CLASSIC)
    assert addresses(found) == ("http://broker:8000/query", "http://broker:8000/update", "ws://broker:9000/subscribe")
    assert (found.query_address("Q").method, found.update_address("U").method) == ("POST", "URL_ENCODED_POST")
    assert found.reconnects("Q")


@each_row(
    ("members", "expected"),
    [
        ({}, ("http://h:8000/query", "http://h:8000/update", "ws://h:9000/subscribe")),
        (
            {"sparql11protocol": {"protocol": "https"}, "sparql11seprotocol": {"protocol": "wss"}},
            ("https://h:8443/secure/query", "https://h:8443/secure/update", "wss://h:9443/secure/subscribe"),
        ),
        (
            {"sparql11protocol": {"query": {"path": "sparql"}, "update": {"path": "/sparql"}, "port": 80, "host": "s"}},
            ("http://s:80/sparql", "http://s:80/sparql", "ws://h:9000/subscribe"),
        ),
        (
            {
                "sparql11seprotocol": {
                    "protocol": "mine",
                    "availableProtocols": {"mine": {"scheme": "wss", "port": 1, "path": "/p"}},
                }
            },
            ("http://h:8000/query", "http://h:8000/update", "wss://h:1/p"),
        ),
        ({"host": "::1"}, ("http://[::1]:8000/query", "http://[::1]:8000/update", "ws://[::1]:9000/subscribe")),
    ],
)
def test_what_a_profile_leaves_out_has_the_classic_values(
    members: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    found = profile(
        **{"host": "h", "updates": {"U": {"sparql": "CLEAR ALL"}}, "queries": {"Q": {"sparql": ""}}, **members}
    )
    assert addresses(found) == expected


def test_an_entry_says_otherwise_member_by_member() -> None:
    document = json.loads(json.dumps(CLASSIC))
    document["graphs"] = {"default_graph_uri": "http://g/1", "using-graph-uri": ["http://g/2"]}
    document["queries"]["Q"] |= {
        "host": "other",
        "sparql11protocol": {"port": 3030, "query": {"path": "/ds"}},
        "sparql11seprotocol": {"reconnect": False, "availableProtocols": {"ws": {"port": 3031}}},
        "graphs": {"named-graph-uri": ["http://g/3"]},
    }
    document["updates"]["U"] |= {"sparql11protocol": {"host": "third", "update": {"method": "POST"}}}
    found = profile(**document)
    assert addresses(found) == ("http://other:3030/ds", "http://third:8000/update", "ws://other:3031/subscribe")
    assert (found.query_address("Q").method, found.update_address("U").method) == ("POST", "POST")
    assert not found.reconnects("Q")
    graphs = found.graphs_of(found.query("Q"))
    assert (graphs.default, graphs.named, graphs.using) == (("http://g/1",), ("http://g/3",), ("http://g/2",))


@each_row(
    ("members", "message"),
    [
        ({"host": None}, "host: the profile names no broker"),
        ({"sparql11seprotocol": {"protocol": "wss", "availableProtocols": {"ws": {}}}}, "'wss' is not among available"),
        ({"sparql11seprotocol": {"protocol": "x", "availableProtocols": {"x": {}}}}, "x: add a member scheme"),
    ],
)
def test_an_address_that_cannot_be_made_names_the_member(members: dict[str, Any], message: str) -> None:
    found = profile(**{**CLASSIC, **members})
    with pytest.raises(JsapError, match=message):
        found.subscribe_url("Q")


def test_updates_are_not_sent_by_get() -> None:
    found = profile(**{**CLASSIC, "sparql11protocol": {"update": {"method": "GET"}}})
    with pytest.raises(JsapError, match=r"sparql11protocol\.update\.method: GET"):
        found.update_address("U")


@each_row(
    ("members", "place"),
    [
        ({"sparql11protocol": {"port": "8000"}}, r"sparql11protocol\.port"),
        ({"sparql11protocol": {"query": {"method": "PUT"}}}, r"sparql11protocol\.query\.method"),
        ({"graphs": {"default-graph-uri": ["http://a b"]}}, r"graphs\.default-graph-uri: an IRI cannot hold ' '"),
        ({"namespaces": {"a:<x> ": "http://e/"}}, "cannot be a prefix"),
        ({"namespaces": {"a": "http://e/> SELECT"}}, r"namespaces\.a: an IRI cannot hold '>'"),
        (
            {"queries": {"Q": {"sparql": "", "forcedBindings": {"x": {"type": "iri"}}}}},
            r"forcedBindings\.x\.type: Invalid enum value 'iri'; use uri, literal or bnode",
        ),
        (
            {"queries": {"Q": {"sparql": "", "forcedBindings": {"x": {"datatype": "xsd:string", "language": "it"}}}}},
            "not both",
        ),
        ({"extended": {"lamplighter": 1}}, "lamplighter|object"),
        ({"include": ["other.jsap"]}, "include: other.jsap"),
    ],
)
def test_a_wrong_member_is_named(members: dict[str, Any], place: str) -> None:
    with pytest.raises(JsapError, match=place):
        profile(**members)


@each_row(
    ("oauth", "urls"),
    [
        ({"enable": True, "register": "https://h/r", "tokenRequest": "https://h/t"}, ("https://h/r", "https://h/t")),
        (
            {"registration": {"endpoint": "https://h/r"}, "authentication": {"endpoint": "https://h/t"}},
            ("https://h/r", "https://h/t"),
        ),
        ({"enable": False}, (None, None)),
    ],
)
def test_both_generations_of_oauth_are_read(oauth: dict[str, Any], urls: tuple[str | None, str | None]) -> None:
    found = profile(oauth=oauth).oauth
    assert (found.register_url, found.token_url) == urls


def test_what_is_extended_is_the_application_s_own() -> None:
    assert profile(extended={"clients": 2, "any": {"x": [1]}}).extended == {"clients": 2, "any": {"x": [1]}}
