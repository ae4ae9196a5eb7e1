"""The HTTP gate as clients see it (SPARQL 1.1 Protocol; SEPA protocol, section 1)."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import product
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.held_disk import HeldDisk
from tests.support.places import ROOT
from tests.support.running_gateway import FORM, health, http, query, rows, running_gateway, until, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
ANYWHERE = "SELECT ?s { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"
PEOPLE = (
    "INSERT DATA { <http://default> <http://p> 'in default'"
    " GRAPH <http://g1> { <http://one> <http://p> 'in g1' } GRAPH <http://g2> { <http://two> <http://p> 'in g2' } }"
)
SELECT_TYPE = {"Content-Type": "application/sparql-query"}
UPDATE_TYPE = {"Content-Type": "application/sparql-update"}
FORM_TYPE = {"Content-Type": FORM}


async def subjects(addresses: Addresses, sparql: str, **parameters: str | list[str]) -> list[str]:
    return sorted(row["s"] for row in await rows(addresses, sparql, **parameters))


# --- requests ---------------------------------------------------------------------------------------


async def test_a_query_is_taken_in_three_ways_with_the_same_answer(gateway: Addresses) -> None:
    await update(gateway, "INSERT DATA { <http://a> <http://p> 'x' }")
    ways = [
        await http(gateway.query, query=ALL),
        await http(gateway.query, "POST", ALL, SELECT_TYPE),
        await http(gateway.query, "POST", urlencode({"query": ALL}), FORM_TYPE),
    ]
    for answer in ways:
        assert answer.status == 200
        assert answer.media_type == "application/sparql-results+json"
        assert answer.json == {
            "head": {"vars": ["s", "o"]},
            "results": {
                "bindings": [{"s": {"type": "uri", "value": "http://a"}, "o": {"type": "literal", "value": "x"}}]
            },
        }


async def test_an_update_is_answered_with_its_delta_if_the_client_prefers_that(gateway: Addresses) -> None:
    """RFC 7240, 4.2."""
    prefer = UPDATE_TYPE | {"Prefer": "respond-async, return=representation; wait=1"}
    answer = await http(gateway.update, "POST", "INSERT DATA { <http://a> <http://p> 'x' }", prefer)
    assert (answer.status, answer.headers["preference-applied"]) == (200, "return=representation")
    assert answer.json["delta"]["addedResults"] == {
        "head": {"vars": ["subject", "predicate", "object", "graph"]},
        "results": {
            "bindings": [
                {
                    "subject": {"type": "uri", "value": "http://a"},
                    "predicate": {"type": "uri", "value": "http://p"},
                    "object": {"type": "literal", "value": "x"},
                }
            ]
        },
    }
    assert answer.json["delta"]["removedResults"]["results"] == {"bindings": []}
    for other in ({}, {"Prefer": "return=minimal"}):
        plain = await http(gateway.update, "POST", "INSERT DATA { <http://b> <http://p> 1 }", UPDATE_TYPE | other)
        assert "delta" not in plain.json
        assert "preference-applied" not in plain.headers


async def test_an_update_is_taken_in_two_ways(gateway: Addresses) -> None:
    one = await http(gateway.update, "POST", "INSERT DATA { <http://a> <http://p> 1 }", UPDATE_TYPE)
    fields = urlencode({"update": "INSERT DATA { <http://b> <http://p> 2 }"})
    two = await http(gateway.update, "POST", fields, FORM_TYPE)
    for number, answer in enumerate((one, two), 1):
        assert answer.status == 200
        assert answer.media_type == "application/json"
        response = {"body": "", "isJson": False, "isJsonBody": False}
        assert answer.json == {"response": response, "sequence": number}
    assert await subjects(gateway, ALL) == ["http://a", "http://b"]


async def test_parameters_and_case_of_the_content_type_do_not_matter(gateway: Addresses) -> None:
    for number, suffix in enumerate(("; charset=utf-8", ";charset=UTF-8", " ; version=1.1"), 1):
        text = f"INSERT DATA {{ <http://{number}> <http://p> 1 }}"
        content_type = {"Content-Type": "Application/SPARQL-Update" + suffix}
        assert (await http(gateway.update, "POST", text, content_type)).status == 200
        form = {"Content-Type": FORM + suffix}
        answer = await http(gateway.query, "POST", urlencode({"query": ALL}), form)
        assert len(answer.json["results"]["bindings"]) == number


async def test_utf_8_survives_every_way_in_and_out(tmp_path: Path) -> None:
    words = ["ვაიმეე", "Straße 🚦", 'quote " \\ backslash', "line\nbreak"]
    async with running_gateway(tmp_path) as at:
        for number, word in enumerate(words):
            text = f"INSERT DATA {{ <http://s{number}> <http://p> {json.dumps(word, ensure_ascii=False)} }}"
            raw = await http(at.update, "POST", text, UPDATE_TYPE)
            form = await http(at.update, "POST", urlencode({"update": text.replace("/s", "/f")}), FORM_TYPE)
            assert (raw.status, form.status) == (200, 200)
        found = sorted(row["o"] for row in await rows(at, ALL))
        assert found == sorted(words * 2)
        by_url = await http(at.query, query='SELECT ?s { ?s <http://p> "ვაიმეე" }')
        assert len(by_url.json["results"]["bindings"]) == 2
        csv = await query(at, ALL, "text/csv")
        assert "Straße 🚦" in csv.body.decode()


async def test_graph_parameters_of_a_query_choose_its_dataset(tmp_path: Path) -> None:
    in_graph = "SELECT ?s { GRAPH ?g { ?s ?p ?o } }"
    async with running_gateway(tmp_path) as at:
        await update(at, PEOPLE)
        assert await subjects(at, ALL) == ["http://default"]
        assert await subjects(at, ALL, default_graph_uri="http://g1") == ["http://one"]
        both = ["http://g1", "http://g2"]
        assert await subjects(at, ALL, default_graph_uri=both) == ["http://one", "http://two"]
        assert await subjects(at, in_graph) == ["http://one", "http://two"]
        assert await subjects(at, in_graph, named_graph_uri="http://g2") == ["http://two"]
        assert await subjects(at, in_graph, default_graph_uri="http://g1") == []
        fields = [("default-graph-uri", "http://g1"), ("query", ALL), ("default-graph-uri", "http://g2")]
        form = await http(at.query, "POST", urlencode(fields), FORM_TYPE)
        got = await http(f"{at.query}?default-graph-uri=http%3A%2F%2Fg1&query={quote(ALL)}")
        assert len(form.json["results"]["bindings"]) == 2
        assert [row["s"]["value"] for row in got.json["results"]["bindings"]] == ["http://one"]


async def test_graph_parameters_of_an_update_choose_what_its_where_reads(tmp_path: Path) -> None:
    copy = "INSERT { ?s <http://copied> ?o } WHERE { ?s <http://p> ?o }"
    copy_named = "INSERT { ?s <http://copied> ?o } WHERE { GRAPH ?g { ?s <http://p> ?o } }"
    copied = "SELECT ?s { ?s <http://copied> ?o }"
    async with running_gateway(tmp_path) as at:
        await update(at, PEOPLE)
        assert (await update(at, copy, using_graph_uri="http://g1")).status == 200
        assert await subjects(at, copied) == ["http://one"]
        fields = [("update", copy_named), ("using-named-graph-uri", "http://g2")]
        assert (await http(at.update, "POST", urlencode(fields), FORM_TYPE)).status == 200
        assert await subjects(at, copied) == ["http://one", "http://two"]


GRAPHS_IN_TEXT = [
    "INSERT { ?s <http://new> ?o } USING <http://g1> WHERE { ?s ?p ?o }",
    "INSERT { ?s <http://new> ?o } USING NAMED <http://g1> WHERE { GRAPH ?g { ?s ?p ?o } }",
    "WITH <http://g1> DELETE { ?s ?p ?o } WHERE { ?s ?p ?o }",
    "INSERT DATA { <http://new> <http://p> 1 } ; WITH <http://g1> DELETE { ?s ?p ?o } WHERE { ?s ?p ?o }",
]


async def test_graphs_named_in_the_text_and_by_the_protocol_exclude_each_other(gateway: Addresses) -> None:
    await update(gateway, PEOPLE)
    for text, parameter in product(GRAPHS_IN_TEXT, ("using_graph_uri", "using_named_graph_uri")):
        answer = await update(gateway, text, **{parameter: "http://g2"})
        assert (answer.status, answer.json["status_code"]) == (400, 400), text
    assert await subjects(gateway, ANYWHERE) == ["http://default", "http://one", "http://two"]
    assert (await health(gateway))["sequence"] == 1


async def test_a_content_type_that_occurs_twice_is_refused(gateway: Addresses) -> None:
    url = urlsplit(gateway.update)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    twice = "Content-Type: application/sparql-update\r\n" * 2
    head = f"POST /update HTTP/1.1\r\nHost: localhost\r\n{twice}Content-Length: {len(INSERT)}\r\n\r\n"
    writer.write((head + INSERT).encode())
    assert b" 400 " in await reader.readline()
    writer.close()
    assert (await health(gateway))["sequence"] == 0


async def test_one_path_may_take_queries_and_updates(tmp_path: Path) -> None:
    paths = {"port": 0, "query_path": "/sparql", "update_path": "/sparql"}
    async with running_gateway(tmp_path, http=paths) as at:
        assert at.query == at.update == at.query.rpartition("/")[0] + "/sparql"
        assert (await http(at.update, "POST", INSERT, UPDATE_TYPE)).json["sequence"] == 1
        form = urlencode({"update": "DELETE WHERE { ?s ?p ?o }"})
        assert (await http(at.update, "POST", form, FORM_TYPE)).json["sequence"] == 2
        for answer in (
            await http(at.query, query=ALL),
            await http(at.query, "POST", ALL, SELECT_TYPE),
            await http(at.query, "POST", urlencode({"query": ALL}), FORM_TYPE),
        ):
            assert answer.json["results"]["bindings"] == []
        for body in (urlencode({"query": ALL, "update": INSERT}), "", "sparql=x"):
            assert (await http(at.query, "POST", body, FORM_TYPE)).status == 400
        assert (await http(at.query.replace("/sparql", "/update"), "POST", INSERT, UPDATE_TYPE)).status == 404


async def test_relative_iris_are_those_of_the_request(gateway: Addresses) -> None:
    base = gateway.update.rpartition("/")[0]
    assert (await update(gateway, "INSERT DATA { <a> <http://p> <#b> }")).status == 200
    assert await rows(gateway, ALL) == [{"s": f"{base}/a", "o": f"{gateway.update}#b"}]
    assert await rows(gateway, "SELECT ?o { <a> <http://p> ?o }") == [{"o": f"{gateway.update}#b"}]
    wrong = await update(gateway, "INSERT DATA { <a> <http://p>\n !oops }")
    assert (wrong.status, wrong.json["error"]) == (400, "SPARQL11ProtocolException")
    assert wrong.json["error_description"].startswith("line 1, column ")
    injected = {**UPDATE_TYPE, "Host": "x> CLEAR ALL #"}
    assert (await http(gateway.update, "POST", "INSERT DATA { <a> <http://p> 1 }", injected)).status == 421
    assert len(await rows(gateway, ALL)) == 1


# --- answers ----------------------------------------------------------------------------------------

JSON = "application/sparql-results+json"


MEDIA_TYPES = [
    ("", JSON),
    ("*/*", JSON),
    ("*", JSON),
    ("application/json", "application/json"),
    ("application/json, text/plain, */*", JSON),  # sepa-js
    ("application/sparql-results+json", JSON),  # sepy
    ("text/html,application/xhtml+xml,*/*;q=0.8", JSON),
    ("application/json, text/csv;q=0.5", "application/json"),
    ("*/*, text/csv;q=0.1", JSON),
    ("text/csv;q=0, */*;q=0.1", JSON),
    ("text/*", "text/csv"),
    ("*/*;q=0.1, text/*;q=0.2, text/csv;q=0", "text/tab-separated-values"),
    ("nonsense;q=high", JSON),
    ("application/sparql-results+xml", "application/sparql-results+xml"),
    ("application/xml;q=0.9, text/html", "application/xml"),
    ("Text/CSV; charset=utf-8", "text/csv"),
    ("text/tab-separated-values", "text/tab-separated-values"),
    ("text/csv;q=0.5, text/tab-separated-values", "text/tab-separated-values"),
    ("text/csv, application/json;q=0.9", "text/csv"),
]


async def test_select_is_answered_in_the_best_format_that_is_accepted(tmp_path: Path) -> None:
    bodies = {
        JSON: b'{"head":{"vars":["o"]},"results":{"bindings":[{"o":{"type":"literal","value":"x"}}]}}',
        "text/csv": b"o\r\nx\r\n",
        "text/tab-separated-values": b'?o\n"x"\n',
    }
    async with running_gateway(tmp_path) as at:
        await update(at, "INSERT DATA { <http://a> <http://p> 'x' }")
        for accept, media_type in MEDIA_TYPES:
            answer = await query(at, "SELECT ?o { ?s ?p ?o }", accept)
            assert (answer.status, answer.media_type) == (200, media_type), accept
            body = bodies.get(JSON if media_type == "application/json" else media_type)
            if body is not None:
                assert answer.body == body, accept
            else:
                assert b"<literal>x</literal>" in answer.body
        for accept in ("text/html", "text/turtle", "*/*;q=0"):
            answer = await query(at, "SELECT ?o { ?s ?p ?o }", accept)
            assert (answer.status, answer.json["error"]) == (406, "not_acceptable"), accept
            assert "application/sparql-results+json" in answer.json["error_description"]


GRAPH_MEDIA_TYPES = [
    ("", "text/turtle", b"<http://a> <http://q> "),
    ("*/*", "text/turtle", b"<http://a> <http://q> "),
    ("application/n-triples", "application/n-triples", b'<http://a> <http://q> "x" .'),
    ("application/ld+json", "application/ld+json", b'"@id":"http://a"'),
    ("application/json, text/plain, */*", "application/ld+json", b'"@id":"http://a"'),
    ("application/json", "application/json", b'"@id":"http://a"'),
    ("application/rdf+xml", "application/rdf+xml", b"http://a"),
    ("text/csv, text/turtle;q=0.1", "text/turtle", b"<http://a> <http://q> "),
]


async def test_columns_of_select_star_have_the_order_of_the_text_in_each_format(gateway: Addresses) -> None:
    """Of a query that is answered in the loop, of one that a fork answers, and of one about the past."""
    await update(gateway, "INSERT DATA { <http://a> <http://p> 1 GRAPH <http://g> { <http://a> <http://q> 2 } }")
    small, large = "SELECT * { ?s ?p ?o }", "SELECT * { ?s ?p ?o OPTIONAL { GRAPH ?g { ?s ?b ?a } } }"
    for text, columns in ((small, "s p o"), (large, "s p o g b a")):
        names = columns.split()
        for parameters in ({}, {"at": "1/1"}):
            found = await query(gateway, text, **parameters)
            assert found.json["head"]["vars"] == names
            csv = await http(gateway.query, headers={"Accept": "text/csv"}, query=text, **parameters)
            assert csv.body.decode().split("\r\n")[0] == ",".join(names)
            tsv = await http(gateway.query, headers={"Accept": "text/tab-separated-values"}, query=text, **parameters)
            assert tsv.body.decode().split("\n")[0] == "\t".join(f"?{name}" for name in names)


async def test_having_with_a_variable_of_as_is_refused_with_its_cure(gateway: Addresses) -> None:
    for text in ("SELECT (COUNT(*) AS ?n) { ?s ?p ?o } HAVING(?n > 1)", "SELECT (1 AS ?n) { GRAPH ?g {} } HAVING(?n)"):
        answer = await http(gateway.query, query=text)
        assert (answer.status, answer.json["error"]) == (400, "unsupported")
        assert "?n has no value in HAVING" in answer.json["error_description"]
        assert "repeat the expression" in answer.json["error_description"]


async def test_construct_is_answered_as_a_graph(gateway: Addresses) -> None:
    await update(gateway, "INSERT DATA { <http://a> <http://p> 'x' }")
    for accept, media_type, part in GRAPH_MEDIA_TYPES:
        answer = await query(gateway, "CONSTRUCT { ?s <http://q> ?o } WHERE { ?s ?p ?o }", accept)
        assert (answer.status, answer.media_type) == (200, media_type), accept
        assert part in answer.body, accept


async def test_ask_is_answered_with_a_truth_value(gateway: Addresses) -> None:
    await update(gateway, "INSERT DATA { <http://a> <http://p> 'x' }")
    assert (await query(gateway, "ASK { <http://a> ?p ?o }")).json == {"head": {}, "boolean": True}
    assert (await query(gateway, "ASK { <http://b> ?p ?o }")).json == {"head": {}, "boolean": False}
    assert (await query(gateway, "ASK { <http://b> ?p ?o }", "text/csv")).body == b"false"
    xml = await query(gateway, "ASK { <http://a> ?p ?o }", "application/sparql-results+xml")
    assert b"<boolean>true</boolean>" in xml.body


LITERALS = re.compile(r"^\| `(\".*?)`.* \| `(\".*?)` \|$", re.M)


async def test_literals_are_kept_as_the_documentation_says(tmp_path: Path) -> None:
    xsd = "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
    page = (ROOT / "docs" / "protocol.md").read_text()
    pairs = LITERALS.findall(page.partition("## Literals")[2].partition("\n## ")[0])
    assert len(pairs) == 12
    async with running_gateway(tmp_path) as at:
        for sent, kept in pairs:
            await update(at, f"{xsd} DELETE WHERE {{ ?s ?p ?o }} ; INSERT DATA {{ <http://a> <http://p> {sent} }}")
            tsv = (await query(at, "SELECT ?o { ?s ?p ?o }", "text/tab-separated-values")).body.decode()
            same = f"{xsd} SELECT ?o {{ ?s ?p ?o FILTER(sameTerm(?o, {kept})) }}"
            assert len(await rows(at, same)) == 1, (sent, kept, tsv)
            [found] = (await query(at, "SELECT ?o { ?s ?p ?o }")).json["results"]["bindings"]
            assert found["o"]["value"] == kept[1:].partition('"')[0], sent
            assert found["o"].get("datatype", "").partition("#")[2] == kept.partition("xsd:")[2]


# --- errors -----------------------------------------------------------------------------------------

INSERT = "INSERT DATA { <http://x> <http://p> 1 }"


WRONG: list[tuple[str, str, str | bytes | None, dict[str, str], int]] = [
    ("update", "GET", None, {}, 400),
    ("update", "PUT", INSERT, UPDATE_TYPE, 400),
    ("query", "DELETE", None, {}, 400),
    ("query", "GET", None, {}, 400),
    ("query", "HEAD", None, {}, 400),
    ("query", "GET", None, {"Accept": "application/json, */*"}, 400),
    ("query?query=" + quote(ALL), "POST", ALL, SELECT_TYPE, 400),
    ("query?x=" + "&x=" * 1001, "POST", ALL, SELECT_TYPE, 400),
    ("query", "POST", ALL, {"Content-Type": "application/sparql-query; charset=latin1"}, 400),
    ("update", "POST", INSERT.encode("utf-16"), {"Content-Type": "application/sparql-update; charset=utf-16"}, 400),
    ("query", "POST", ALL, {}, 400),
    ("query", "POST", ALL, UPDATE_TYPE, 400),
    ("update", "POST", INSERT, {}, 400),
    ("update", "POST", INSERT, SELECT_TYPE, 400),
    ("update", "POST", INSERT, {"Content-Type": "text/plain"}, 400),
    ("update", "POST", "", FORM_TYPE, 400),
    ("update", "POST", "query=" + quote(INSERT), FORM_TYPE, 400),
    ("update", "POST", f"update={quote(INSERT)}&update={quote(INSERT)}", FORM_TYPE, 400),
    ("query", "POST", f"query={quote(ALL)}&query={quote(ALL)}", FORM_TYPE, 400),
    ("update", "POST", INSERT.replace("1", "'é'").encode("latin-1"), UPDATE_TYPE, 400),
    ("update", "POST", "update=" + quote(INSERT.replace("1", "'é'"), encoding="latin-1"), FORM_TYPE, 400),
    ("update", "POST", "LOAD <http://127.0.0.1:1/data>", UPDATE_TYPE, 400),
    ("update", "POST", "CREATE GRAPH <http://g> ; CREATE GRAPH <http://g>", UPDATE_TYPE, 500),
    ("query", "POST", "SELECT * { SERVICE <http://127.0.0.1:1/sparql> { ?s ?p ?o } }", SELECT_TYPE, 400),
    ("query", "POST", INSERT, SELECT_TYPE, 400),
    ("update", "POST", ALL, UPDATE_TYPE, 400),
    ("query?default-graph-uri=relative", "POST", ALL, SELECT_TYPE, 400),
    ("query?default-graph-uri=http%3A%2F%2Fa%20b", "POST", ALL, SELECT_TYPE, 400),
    ("update?using-graph-uri=relative", "POST", "INSERT { ?s ?p 1 } WHERE { ?s ?p ?o }", UPDATE_TYPE, 400),
    ("update?request_id=a&request_id=b", "POST", INSERT, UPDATE_TYPE, 400),
]


async def test_a_wrong_request_gets_the_three_members_and_changes_nothing(gateway: Addresses) -> None:
    base = gateway.query.removesuffix("query")
    for path, method, body, headers, status in WRONG:
        answer = await http(base + path, method, body, headers)
        assert answer.status == status, (path, method, body, headers)
        assert answer.media_type == "application/json"
        if method == "HEAD":
            continue
        assert set(answer.json) == {"error", "status_code", "error_description"}
        assert answer.json["status_code"] == status
        assert all(isinstance(answer.json[name], str) for name in ("error", "error_description"))
        state = await health(gateway)
        assert (state["sequence"], state["quads"]) == (0, 0), (path, method, body, headers)


async def test_a_syntax_error_names_line_and_column_and_nothing_is_changed(gateway: Addresses) -> None:
    answer = await update(gateway, f"{INSERT} ;\nINSERT DATA {{ <http://y> !oops }}")
    assert (answer.status, answer.json["error"]) == (400, "SPARQL11ProtocolException")
    assert answer.json["error_description"].startswith("line 2, column 26:")
    wrong = await query(gateway, "SELECT * WHERE {\n\n ?s ?p }")
    assert (wrong.status, wrong.json["error"]) == (400, "SPARQL11ProtocolException")
    assert wrong.json["error_description"].startswith("line 3, column ")
    assert await rows(gateway, ALL) == []


async def test_an_update_whose_second_operation_fails_has_no_effect(gateway: Addresses) -> None:
    await update(gateway, "CREATE GRAPH <http://g>")
    answer = await update(gateway, f"{INSERT} ; CREATE GRAPH <http://g>")
    assert (answer.status, answer.json["error"]) == (500, "sparql11endpoint")
    assert await rows(gateway, ALL) == []


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.gateway.gates.http.calls.UNCOUNTED_BYTES", 0)
    monkeypatch.setattr("lamplighter.gateway.gates.http.calls.REQUEST_BYTES_MAX", 1000)
    async with running_gateway(tmp_path) as at:
        assert (await update(at, INSERT.ljust(1000))).status == 200
        answer = await update(at, INSERT.ljust(1001))
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")


# --- cross-origin requests --------------------------------------------------------------------------

PAGE = "https://page.example"
LISTED: dict[str, object] = {"origins": [PAGE]}


async def test_a_preflight_of_a_listed_page_is_granted_what_it_asks_for(tmp_path: Path) -> None:
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, authorization",
    }
    async with running_gateway(tmp_path, security=LISTED) as at:
        for url in (at.query, at.update):
            answer = await http(url, "OPTIONS", headers=asked)
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-allow-methods"] == "POST"
            assert answer.headers["access-control-allow-headers"] == "content-type, authorization"
            assert "access-control-allow-credentials" not in answer.headers
            assert "access-control-allow-private-network" not in answer.headers
        plain = await http(at.query, "OPTIONS", headers={**asked, "Access-Control-Request-Headers": ""})
        assert "access-control-allow-headers" not in plain.headers
        private = await http(at.query, "OPTIONS", headers={**asked, "Access-Control-Request-Private-Network": "true"})
        assert private.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("origin", ["https://other.example", "null", "http://page.example", f"{PAGE}:444", f"{PAGE}/"])
async def test_a_preflight_of_another_page_is_granted_nothing(tmp_path: Path, origin: str) -> None:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    async with running_gateway(tmp_path, security=LISTED) as at:
        answer = await http(at.update, "OPTIONS", headers=asked)
        assert (answer.status, answer.json["error"]) == (403, "cors_error")
        assert "security.origins" in answer.json["error_description"]
        assert not any(name.startswith("access-control-") for name in answer.headers)


async def test_a_preflight_that_lacks_something_is_refused(tmp_path: Path) -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    async with running_gateway(tmp_path, security=LISTED) as at:
        for name, value in asked.items():
            answer = await http(at.update, "OPTIONS", headers={name: value})
            assert (answer.status, answer.json["status_code"], answer.json["error"]) == (401, 401, "cors_error")


async def test_answers_and_errors_name_a_listed_origin_and_vary_by_it(tmp_path: Path) -> None:
    origin = {"Origin": PAGE}
    async with running_gateway(tmp_path, security=LISTED) as at:
        good = await http(at.query, "POST", ALL, SELECT_TYPE | origin)
        bad = await http(at.query, "POST", "SELECT", SELECT_TYPE | origin)
        none = await http(at.query, "POST", ALL, SELECT_TYPE)
        assert (good.status, bad.status, none.status) == (200, 400, 200)
        assert good.headers["access-control-allow-origin"] == PAGE
        assert bad.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-origin" not in none.headers
        for answer in (good, bad, none):
            assert "Origin" in answer.headers["vary"].split(", ")


async def test_an_update_of_another_page_has_no_effect_and_its_body_is_not_read(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, security=LISTED) as at:
        for headers in ({"Origin": "https://other.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
            # The answer comes before the body does.
            place = urlsplit(at.update)
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            lines = [f"POST {place.path} HTTP/1.1", "Host: localhost", "Content-Length: 1000000"]
            lines += [f"{name}: {value}" for name, value in (UPDATE_TYPE | headers).items()]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert head.startswith(b"HTTP/1.1 403 ")
            writer.close()
        assert (await http(at.update, "POST", INSERT, UPDATE_TYPE | {"Origin": PAGE})).status == 200
        assert len(await rows(at, ALL)) == 1


# --- the queue --------------------------------------------------------------------------------------


async def test_a_full_queue_is_429_and_nothing_is_answered_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk(monkeypatch)
    limits = {"durability": "fsync", "queue_max": 1}
    async with running_gateway(tmp_path, gateway=limits) as at:
        disk.hold()
        try:
            first = asyncio.create_task(update(at, "INSERT DATA { <http://1> <http://p> 1 }"))
            assert await asyncio.to_thread(disk.asked.wait, 60)
            second = asyncio.create_task(update(at, "INSERT DATA { <http://2> <http://p> 2 }"))

            async def second_waits() -> bool:
                return bool((await health(at))["queue"] == 1)

            await until(second_waits)
            for refused in (await update(at, INSERT), await query(at, ALL)):
                assert (refused.status, refused.json["status_code"]) == (429, 429)
                assert refused.json["error"] == "too_many_requests"
            assert not first.done()
            assert not second.done()
        finally:
            disk.release()
        assert ((await first).status, (await second).status) == (200, 200)
        assert await subjects(at, ALL) == ["http://1", "http://2"]
        assert (await health(at))["counters"]["queue_full"] == 2


# --- delayed updates, retries -----------------------------------------------------------------------


async def test_a_delayed_update_is_listed_and_takes_effect_once_it_is_due(gateway: Addresses) -> None:
    later = await update(gateway, INSERT, delay="PT1H")
    soon = await update(gateway, "INSERT DATA { <http://soon> <http://p> 1 }", delay="PT0.2S")
    assert (later.status, soon.status) == (202, 202)
    assert (later.json["sequence"], soon.json["sequence"]) == (1, 2)
    table = (await http(gateway.delayed)).json["delayed"]
    assert [(row["id"], row["state"], row["update"]) for row in table[-1:]] == [
        (later.json["delayed"], "pending", INSERT)
    ]

    async def happened() -> bool:
        return await subjects(gateway, ALL) == ["http://soon"]

    await until(happened)
    assert [row["id"] for row in (await http(gateway.delayed)).json["delayed"]] == [later.json["delayed"]]
    assert (await health(gateway))["counters"]["delayed_fired"] == 1


async def test_at_names_a_moment_and_one_in_the_past_is_due_at_once(gateway: Addresses) -> None:
    future = await update(gateway, INSERT, at="2999-01-01T00:00:00+01:00")
    past = await update(gateway, "INSERT DATA { <http://past> <http://p> 1 }", at="2001-01-01T00:00:00Z")
    assert (future.status, past.status) == (202, 202)

    async def happened() -> bool:
        return await subjects(gateway, ALL) == ["http://past"]

    await until(happened)
    [row] = (await http(gateway.delayed)).json["delayed"]
    assert row["due"] == "2998-12-31T23:00:00.000000Z"
    await update(gateway, INSERT, delay="PT1H", missed="skip")
    answer = (await http(gateway.delayed)).json
    assert (answer["total"], [row["missed"] for row in answer["delayed"]]) == (2, ["skip", "run"])


async def test_a_delayed_update_is_cancelled_once_and_unknown_after_that(gateway: Addresses) -> None:
    name = (await update(gateway, INSERT, delay="PT1H")).json["delayed"]
    cancelled = await http(f"{gateway.delayed}/{name}", "DELETE")
    assert (cancelled.status, cancelled.json) == (200, {"cancelled": name})
    assert (await http(gateway.delayed)).json == {"total": 0, "delayed": []}
    for other in (name, "nobody"):
        again = await http(f"{gateway.delayed}/{other}", "DELETE")
        assert (again.status, again.json["status_code"]) == (404, 404)
        assert again.json["error"] == "delayed_not_found"


WRONG_TIMES = [
    {"delay": "soon"},
    {"delay": ""},
    {"delay": "-PT1S"},
    {"delay": "P1Y"},
    {"delay": "P99999999999D"},
    {"at": "tomorrow"},
    {"at": "2030-01-01T00:00:00"},
    {"at": "9999-12-31T23:59:59-14:00"},
    {"at": "0001-01-01T00:00:00+14:00"},
    {"at": "2030-01-01T00:00:00Z", "delay": "PT1S"},
    {"delay": "PT1S", "using_graph_uri": "http://g"},
    {"delay": "PT1S", "missed": "later"},
    {"missed": "skip"},
]


async def test_a_wrong_time_is_refused_and_the_gateway_goes_on(gateway: Addresses) -> None:
    for parameters in WRONG_TIMES:
        answer = await update(gateway, INSERT, **parameters)
        assert (answer.status, answer.json["error"]) == (400, "SPARQL11ProtocolException"), parameters
    assert (await http(gateway.delayed)).json == {"total": 0, "delayed": []}
    assert (await update(gateway, INSERT)).json["sequence"] == 1


async def test_the_syntax_of_a_delayed_update_is_checked_when_it_is_asked_for(gateway: Addresses) -> None:
    answer = await update(gateway, "INSERT DATA { oops }", delay="PT1H")
    assert (answer.status, answer.json["error"]) == (400, "SPARQL11ProtocolException")
    assert (await http(gateway.delayed)).json == {"total": 0, "delayed": []}


async def test_a_retry_under_the_same_request_id_has_one_effect(tmp_path: Path) -> None:
    fresh = "INSERT { ?new <http://p> 1 } WHERE { BIND(UUID() AS ?new) }"
    async with running_gateway(tmp_path) as at:
        answers = [await update(at, fresh, request_id="r1") for _ in range(3)]
        assert [answer.json for answer in answers] == [answers[0].json] * 3
        other = await update(at, fresh, request_id="r2")
        assert other.json["sequence"] == 2
        assert len(await rows(at, ALL)) == 2
        delayed = [await update(at, fresh, request_id="r3", delay="PT1H") for _ in range(2)]
        assert delayed[0].json == delayed[1].json
        assert len((await http(at.delayed)).json["delayed"]) == 1
    async with running_gateway(tmp_path) as at:  # and so it stays after a restart
        assert (await update(at, fresh, request_id="r1")).json == answers[0].json
        assert len(await rows(at, ALL)) == 2


# --- the rest ---------------------------------------------------------------------------------------


async def test_health_tells_state_and_figures(gateway: Addresses) -> None:
    await update(gateway, INSERT)
    await update(gateway, "oops")
    await query(gateway, ALL)
    answer = await http(gateway.health)
    assert answer.status == 200
    state = answer.json
    assert (state["status"], state["problems"]) == ("ok", [])
    assert (state["epoch"], state["sequence"], state["quads"]) == (1, 1, 1)
    assert (state["subscriptions"], state["delayed"], state["queue"]) == (0, 0, 0)
    assert state["gateway"].startswith("gw-")
    counters = state["counters"]
    assert (counters["updates"], counters["refused"], counters["queries"]) == (2, 1, 1)


async def test_the_first_page_tells_where_everything_is(gateway: Addresses) -> None:
    page = await http(gateway.query.removesuffix("query"))
    assert page.status == 200
    for path in ("/query", "/update", "/delayed", "/health", "/subscribe"):
        assert path in page.body.decode()


async def test_updates_of_a_client_that_waits_are_seen_by_its_next_query(gateway: Addresses) -> None:
    for number in range(20):
        await update(gateway, f"INSERT DATA {{ <http://{number}> <http://p> 1 }}")
        assert len(await rows(gateway, ALL)) == number + 1


async def test_paths_and_methods_that_nobody_serves_are_errors_like_others(gateway: Addresses) -> None:
    base = gateway.query.removesuffix("/query")
    for method, path, status in (("GET", "/nowhere", 404), ("DELETE", "/health", 405)):
        answer = await http(base + path, method)
        assert answer.status == answer.json["status_code"] == status
        assert path in answer.json["error_description"]
