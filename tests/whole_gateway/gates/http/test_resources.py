"""IRIs below the base IRI are dereferenced over HTTP: formats, permissions, hostile paths, browsers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import TIMEOUT_S, rows, running_gateway, update
from tests.support.secure_gateway import SecureGateway

BASE = "http://lamplighter.local/"
DATA = f"""PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> INSERT DATA {{
  <{BASE}sensor/kitchen/motion> a sosa:Sensor ; rdfs:label "Kitchen <b>motion</b>" ; <http://p/at> [ <http://p/x> 1 ] .
  <{BASE}platform/kitchen> sosa:hosts <{BASE}sensor/kitchen/motion> .
  <{BASE}sensor/küche;a%2Fb> a sosa:Sensor .
  <{BASE}health> a sosa:Platform .
  GRAPH <{BASE}graph/one> {{ <{BASE}sensor/kitchen/motion> <http://p/secret> "in one" }} }}"""
MOTION = "/sensor/kitchen/motion"


def client(at: Addresses) -> httpx.AsyncClient:
    place = urlsplit(at.query)
    return httpx.AsyncClient(base_url=f"http://{place.netloc}", timeout=TIMEOUT_S, trust_env=False, verify=False)


async def test_an_iri_is_dereferenced_in_each_format(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, client(at) as http:
        assert (await update(at, DATA)).status == 200
        for accept, media_type in (
            ("", "text/turtle"),
            ("*/*", "text/turtle"),
            ("application/n-triples", "application/n-triples"),
            ("application/ld+json", "application/ld+json"),
            ("application/json", "application/json"),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
            ("text/html;q=0.5, text/turtle;q=0.9", "text/turtle"),
        ):
            answer = await http.get(MOTION, headers={"Accept": accept})
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, media_type)
            assert "Accept" in answer.headers["vary"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            if media_type == "text/html":
                assert "script-src" not in answer.headers["content-security-policy"]
                assert answer.headers["content-security-policy"].startswith("default-src 'none'")
                assert "<h1>Kitchen &lt;b&gt;motion&lt;/b&gt;</h1>" in answer.text
                assert 'href="/platform/kitchen"' in answer.text
            else:
                form = ox.RdfFormat.from_media_type(media_type) or ox.RdfFormat.JSON_LD
                assert len(list(ox.parse(answer.content, form))) == 6
        head = await http.head(MOTION)
        assert (head.status_code, head.content) == (200, b"")
        answer = await http.get(MOTION, headers={"Accept": "text/csv"})
        assert (answer.status_code, answer.json()["error"]) == (406, "not_acceptable")


async def test_what_the_dataset_does_not_have_is_not_found(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, client(at) as http:
        assert (await update(at, DATA)).status == 200
        for accept in ("text/html", "text/turtle", "text/csv"):
            answer = await http.get("/sensor/none", headers={"Accept": accept})
            assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
            assert "the dataset has no triples" in answer.json()["error_description"]
        for method in ("POST", "PUT", "DELETE"):
            answer = await http.request(method, MOTION)
            assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


async def test_paths_of_the_gateway_win(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, client(at) as http:
        assert (await update(at, DATA)).status == 200
        assert (await http.get("/health")).json()["status"] == "ok"
        assert (await http.get("/query", params={"query": "ASK {}"})).json()["boolean"] is True
        index = await http.get("/")
        assert index.text.startswith("Lamplighter") and f"what the dataset says about {BASE}..." in index.text


async def test_iris_with_unusual_characters_are_dereferenced_and_hostile_paths_are_not_found(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        assert (await update(at, DATA)).status == 200
        place = urlsplit(at.query)

        async def get(target: bytes) -> tuple[int, bytes]:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await reader.read()
            finally:
                writer.close()
            return int(answer.split(b" ", 2)[1]), answer

        for target in (b"/sensor/k%C3%BCche;a%2Fb", b"/sensor/k%c3%bcche;a%2Fb", b"http://localhost" + MOTION.encode()):
            assert (await get(target))[0] == 200, target
        assert (await get(b"http://x.example" + MOTION.encode()))[0] == 421, "its authority is no name of this gateway"
        for target in (
            *(b"/%00", b"/sensor/../sensor/kitchen/motion", b"/../../etc/passwd", b"//etc/passwd", b"/%2e%2e/%2e%2e"),
            *(b"/%ff%fe", b"/%C0%AF", b"/%", b"/%zz", b"/" + b"a" * 30_000, b"/x?" + b"y" * 1000, b"/%E2%80%AE"),
            b"/sensor/kitchen/motion%3E%20%3Fp%20%3Fo%20%7D%3B%20DROP%20ALL%20%23",
            b"/x%3E%20?o}UNION{?s?p?o}%23",
            b"/x>?p?o.}DROP/**/ALL;",
            b"/x%0A%0D%0Ay",
            b"/%22%3Cscript%3Ealert(1)%3C/script%3E",
        ):
            status, answer = await get(target)
            assert status in (400, 404), (target, answer)
            assert b"application/json" in answer
        for target in (b"/\xff\xfe", b"/" + b"a" * 100_000):
            assert (await get(target))[0] in (400, 404, 431)
        assert len(await rows(at, "SELECT * { ?s ?p ?o }")) == 7
        assert (await get(MOTION.encode()))[0] == 200


async def test_a_base_iri_with_a_path_serves_below_that_path(tmp_path: Path) -> None:
    base = "https://house.example/gw/"
    async with running_gateway(tmp_path, gateway={"base_iri": base}) as at, client(at) as http:
        text = f"INSERT DATA {{ <{base}lamp/1> <http://p> 1 . <{base}> <http://p> 2 }}"
        assert (await update(at, text)).status == 200
        assert (await http.get("/gw/lamp/1")).status_code == 200
        assert (await http.get("/gw/")).status_code == 200
        assert (await http.get("/lamp/1")).status_code == 404


async def test_a_base_iri_that_is_no_url_is_not_served(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, gateway={"base_iri": "urn:gw:"}) as at, client(at) as http:
        assert (await update(at, "INSERT DATA { <urn:gw:lamp> <http://p> 1 }")).status == 200
        answer = await http.get("/lamp")
        assert answer.json()["error_description"] == "there is nothing at /lamp; GET / lists the paths"


async def test_other_sites_and_other_names_are_refused_as_everywhere(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, client(at) as http:
        assert (await update(at, DATA)).status == 200
        for headers, expected in (
            ({"Host": "lamplighter.local"}, (421, "wrong_host")),
            ({"Origin": "http://evil.example"}, (403, "cors_error")),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, (403, "cors_error")),
        ):
            answer = await http.get(MOTION, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == expected
    async with running_gateway(tmp_path, security={"hosts": ["lamplighter.local"]}) as at, client(at) as http:
        assert (await http.get(MOTION, headers={"Host": "lamplighter.local"})).status_code == 200


async def test_descriptions_count_as_queries_and_are_as_many_at_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"concurrent_max": 1}) as at, client(at) as http:
        assert (await update(at, DATA)).status == 200
        answers = await asyncio.gather(*(http.get(MOTION) for _ in range(30)))
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert any(answer.status_code == 200 for answer in answers)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> SecureGateway:
    return SecureGateway(tmp_path_factory.mktemp("secure"), attempts_per_min=100_000)


def test_a_registered_client_sees_only_graphs_that_it_may_read(secure: SecureGateway) -> None:
    with secure as gateway:
        tokens = {
            name: {"Authorization": gateway.bearer(name, gateway.client(name, read=read, write=["*"], subscribe=[]))}
            for name, read in (("all", ["*"]), ("one", [f"{BASE}graph/one"]), ("default", ["default"]), ("none", []))
        }
        text = {"Content-Type": "application/sparql-update"}
        assert gateway.https("POST", "/update", DATA.encode(), tokens["all"] | text).status == 200
        answer = gateway.https("GET", MOTION)
        assert answer.status == 401 and "www-authenticate" in answer.headers
        assert gateway.https("GET", "/sensor/none").status == 401, "without a token nobody learns what there is"
        for name, count in (("all", 6), ("one", 1), ("default", 5)):
            answer = gateway.https("GET", MOTION, b"", tokens[name])
            assert answer.status == 200
            assert len(list(ox.parse(answer.body, ox.RdfFormat.TURTLE))) == count
        assert gateway.https("GET", MOTION, b"", tokens["none"]).status == 404
        assert gateway.https("GET", "/platform/kitchen", b"", tokens["one"]).status == 404
        assert b"in one" not in gateway.https("GET", MOTION, b"", {**tokens["default"], "Accept": "text/html"}).body
