"""The documents as the HTTP gate serves them."""

from __future__ import annotations

import gzip
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.page.documents import Documents, SiteFile
from tests.support.components import require_documents
from tests.support.running_gateway import http, running_gateway
from tests.support.secure_gateway import SecureGateway


def at(gateway: Addresses, path: str) -> str:
    return f"http://{urlsplit(gateway.query).netloc}{path}"


async def test_each_file_has_its_type_and_the_policy(gateway: Addresses) -> None:
    documents = require_documents()
    for name, one in documents.files.items():
        plain = await http(at(gateway, f"/page/docs/{name}"))
        assert (plain.status, plain.media_type, len(plain.body)) == (200, one.media_type, one.size), name
        assert plain.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        assert plain.headers["x-content-type-options"] == "nosniff"
        assert plain.headers["cache-control"] == "no-cache"
    first = await http(at(gateway, "/page/docs/"))
    assert first.body == documents.content("index.html", packed=False)
    answer = await http(at(gateway, "/page/docs"))
    assert (answer.status, answer.headers["location"]) == (308, "docs/")


async def test_files_are_packed_and_known_files_are_not_sent_again(gateway: Addresses) -> None:
    documents = require_documents()
    url = at(gateway, "/page/docs/index.html")
    packed = await http(url, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == documents.content("index.html", packed=False)
    tag = packed.headers["etag"]
    known = await http(url, headers={"Accept-Encoding": "gzip", "If-None-Match": tag})
    assert (known.status, known.body) == (304, b"")
    assert (await http(url, headers={"If-None-Match": tag})).status == 200
    head = await http(url, "HEAD")
    assert (head.status, head.body, int(head.headers["content-length"])) == (
        200,
        b"",
        documents.files["index.html"].size,
    )
    assert (await http(url, "POST", b"")).status == 405


async def test_a_style_with_a_checksum_is_immutable(gateway: Addresses) -> None:
    require_documents()
    answer = await http(at(gateway, "/page/docs/_static/styles/furo.css?v=1"))
    assert "immutable" in answer.headers["cache-control"]
    assert (await http(at(gateway, "/page/docs/index.html?v=1"))).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        *("nothing", "files.json", "index.html.gz", "../session.json", "_static/", "_static/../../assets.py"),
        *("..%2f..%2fassets.py", "%2e%2e/rows.py", "/etc/passwd", "%00", "x" * 2_000),
    ],
)
async def test_there_is_nothing_else(gateway: Addresses, path: str) -> None:
    require_documents()
    answer = await http(at(gateway, f"/page/docs/{path}"))
    assert (answer.status, answer.json["error"]) == (404, "not_found")
    assert len(answer.body) < 1_000


async def test_links_of_other_sites_lead_to_pages(gateway: Addresses) -> None:
    require_documents()
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("", "settings.html"):
        assert (await http(at(gateway, f"/page/docs/{path}"), headers=foreign)).status == 200


def test_documents_need_no_token(tmp_path: Path) -> None:
    documents = require_documents()
    with SecureGateway(tmp_path, registration="open") as gateway:
        for prefix in ("", "/secure"):
            answer = gateway.https("GET", f"{prefix}/page/docs/index.html")
            assert (answer.status, answer.body) == (200, documents.content("index.html", packed=False))


async def test_a_gateway_without_documents_says_how_to_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gates.http.gate", "service.process"):
        monkeypatch.setattr(f"lamplighter.gateway.{module}.built_documents", lambda: None)
    async with running_gateway(tmp_path) as running:
        answer = await http(at(running, "/page/docs/"))
        assert answer.status == 404 and "make docs" in answer.json["error_description"]
        assert b"make docs" in (await http(at(running, "/"))).body
        assert (await http(at(running, "/page/session.json"))).json["documents"] is False


async def test_a_file_that_was_removed_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(tmp_path, {"index.html": SiteFile("text/html", "0", 1, packed=True)})
    monkeypatch.setattr("lamplighter.gateway.gates.http.gate.built_documents", lambda: documents)
    async with running_gateway(tmp_path / "gateway") as running:
        answer = await http(at(running, "/page/docs/"))
        assert (answer.status, answer.json["error"]) == (404, "not_found")
