"""JSAP files with what they include, from real files and a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.client import load_profile
from lamplighter.engine.client import profile as profile_module
from lamplighter.engine.client.profile import Loader
from lamplighter.engine.errors import JsapError
from tests.support.tables import each_row


def put(folder: Path, **documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        (folder / f"{name}.jsap").write_text(json.dumps(document))


def entry(text: str) -> dict[str, Any]:
    return {"Q": {"sparql": text}}


def test_includes_are_merged_in_order_and_relative_to_the_document(tmp_path: Path) -> None:
    (tmp_path / "parts with space").mkdir()
    put(tmp_path, a={"host": "a", "include": ["parts%20with%20space/b.jsap", "c.jsap"], "queries": entry("a")})
    put(tmp_path / "parts with space", b={"host": "b", "#include": "d.jsap", "queries": entry("b")}, d={"host": "d"})
    put(tmp_path, c={"queries": entry("c"), "extended": {"x": 1}})
    found = load_profile(tmp_path / "a.jsap", ["extended.y=2"])
    assert (found.host, found.query("Q").sparql, found.extended) == ("d", "c", {"x": 1, "y": 2})


def test_an_included_file_at_the_root_may_be_beside_the_document(tmp_path: Path) -> None:
    """As SEPA's examples write it."""
    put(tmp_path, a={"include": ["file:///b%20c.jsap"]}, **{"b c": {"host": "b"}})
    assert load_profile(tmp_path / "a.jsap").host == "b"
    put(tmp_path, a={"include": [f"file://{tmp_path}/b%20c.jsap"]})
    assert load_profile(tmp_path / "a.jsap").host == "b"
    put(tmp_path, a={"include": ["file:///none.jsap"]})
    with pytest.raises(JsapError, match=rf"{tmp_path}/none\.jsap, which .* includes, cannot be read: No such file"):
        load_profile(tmp_path / "a.jsap")


def test_a_setting_has_the_last_word_and_may_use_any_spelling(tmp_path: Path) -> None:
    put(tmp_path, a={"include": "b.jsap", "queries": entry("")}, b={"host": "b", "sparql11protocol": {"port": 1}})
    settings = ["host=c", "sparql11protocol.port=2", "graphs.default_graph_uri=http://g"]
    found = load_profile(str(tmp_path / "a.jsap"), settings)
    assert found.query_address("Q").url == "http://c:2/query"
    assert found.graphs.default == ("http://g",)


def test_documents_that_include_each_other_are_named(tmp_path: Path) -> None:
    put(tmp_path, a={"include": "b.jsap"}, b={"include": "./c.jsap"}, c={"include": "../x/a.jsap"})
    folder = tmp_path.rename(tmp_path.with_name("x"))
    with pytest.raises(JsapError, match=r"a\.jsap includes .*b\.jsap includes .*c\.jsap includes .*a\.jsap; remove"):
        load_profile(folder / "a.jsap")


def test_the_same_document_may_be_included_twice(tmp_path: Path) -> None:
    put(
        tmp_path, a={"include": ["b.jsap", "c.jsap"]}, b={"include": "d.jsap"}, c={"include": "d.jsap"}, d={"host": "d"}
    )
    assert load_profile(tmp_path / "a.jsap").host == "d"


def test_depth_number_and_size_of_documents_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = {f"n{number}": {"include": f"n{number + 1}.jsap"} for number in range(20)}
    put(tmp_path, **chain, wide={"include": ["leaf.jsap"] * 100}, leaf={}, large={"extended": {"x": "x" * 1000}})
    with pytest.raises(JsapError, match="the 9th document in a row"):
        load_profile(tmp_path / "n0.jsap")
    with pytest.raises(JsapError, match="more than 64 documents"):
        load_profile(tmp_path / "wide.jsap")
    monkeypatch.setattr(profile_module, "DOCUMENT_BYTES_MAX", 1000)
    with pytest.raises(JsapError, match=r"large\.jsap cannot be read: more than 1,000 bytes"):
        load_profile(tmp_path / "large.jsap")


@each_row(
    ("documents", "message"),
    [
        ({"a": {"include": "b.jsap"}}, r"b\.jsap, which .*a\.jsap includes, cannot be read: No such file"),
        ({"a": {"include": "b.jsap"}, "b": {"graphs": {"x": 1}}}, r"b\.jsap: graphs: no member 'x'"),
        ({"a": {"queries": {"Q": {}}}}, r"a\.jsap line 1: queries\.Q: .*sparql"),
        ({"a": {"include": "ftp://h/b.jsap"}}, r"ftp://h/b\.jsap.* only files and http and https"),
    ],
)
def test_trouble_names_the_document(tmp_path: Path, documents: dict[str, dict[str, Any]], message: str) -> None:
    put(tmp_path, **documents)
    with pytest.raises(JsapError, match=message):
        load_profile(tmp_path / "a.jsap")


def test_the_gateway_reads_files_alone_and_notices_a_change_in_any(tmp_path: Path) -> None:
    put(tmp_path, a={"include": "b.jsap"}, b={"host": "b"}, web={"include": "http://127.0.0.1:1/x.jsap"})

    def digest() -> str:
        loader = Loader(network=False)
        loader.tree(tmp_path / "a.jsap")
        return loader.digest.hexdigest()

    before = digest()
    assert digest() == before
    put(tmp_path, b={"host": "c"})
    assert digest() != before
    with pytest.raises(JsapError, match="only files can"):
        Loader(network=False).tree(tmp_path / "web.jsap")


# --- over HTTP --------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves tmp_path / "web"; /moved/x leads to /x, /file/x to a file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, rest = self.path[1:].partition("/")
            path = tmp_path / "web" / self.path[1:]
            if kind in ("moved", "file"):
                self.send_response(302)
                self.send_header("Location", f"/{rest}" if kind == "moved" else f"file://{tmp_path}/{rest}")
                self.end_headers()
            elif path.is_file():
                self.send_response(200)
                self.end_headers()
                self.wfile.write(path.read_bytes())
            else:
                self.send_error(404)

        def log_message(self, *arguments: object) -> None:
            pass

    (tmp_path / "web").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


def test_documents_are_fetched_with_what_they_include(tmp_path: Path, server: str) -> None:
    put(tmp_path, a={"include": f"{server}/b.jsap"}, secret={"host": "secret"})
    put(tmp_path / "web", b={"include": ["/moved/c.jsap"]}, c={"host": "c"})
    put(tmp_path / "web", stealing={"include": f"file://{tmp_path}/secret.jsap"}, led={"include": "/file/secret.jsap"})
    assert load_profile(tmp_path / "a.jsap").host == "c"
    assert load_profile(f"{server}/moved/b.jsap").host == "c"
    with pytest.raises(JsapError, match=r"none\.jsap cannot be read: status 404"):
        load_profile(f"{server}/none.jsap")
    with pytest.raises(JsapError, match="a document from the network includes no files"):
        load_profile(f"{server}/stealing.jsap")
    with pytest.raises(JsapError, match="cannot be read"):
        load_profile(f"{server}/led.jsap")
    with pytest.raises(JsapError, match=r"cannot be read: .*onnect"):
        load_profile("http://127.0.0.1:1/x.jsap")
