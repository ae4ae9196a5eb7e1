"""The built documents: their links, their size, and what the policy of the gateway permits in them."""

from __future__ import annotations

import gzip
import hashlib
import os
import posixpath
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lamplighter.gateway.page.documents import BUILT_DOCUMENTS, built_documents
from tests.support.components import missing, require_documents
from tests.support.places import ROOT

GZIP_BYTES_MAX = 600_000
"""Of all files together, without pictures."""
WEB_PAGE = "../"
"""The link out of the site: to the page of the gateway."""


class _Page(HTMLParser):
    """Collects the anchors of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("script", "img", "source", "iframe", "video", "object"):
            self.loaded += [attributes[name] for name in ("src", "srcset", "data") if name in attributes]
        if tag == "link" and attributes.get("rel") not in ("search", "next", "prev"):
            self.loaded.append(attributes["href"])
        if tag == "style" or (tag == "script" and "src" not in attributes) or "style" in attributes:
            self.inline.append(self.get_starttag_text() or tag)
        self.inline += [name for name in attributes if name.startswith("on")]


@cache
def page(name: str) -> _Page:
    return _Page(require_documents().content(name, packed=False).decode())


def broken_links(name: str) -> list[str]:
    """The links of a page that lead nowhere in the site."""
    files, found = require_documents().files, []
    for link in page(name).links:
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path.partition("?")[0])) if path else name
        if target == posixpath.normpath(WEB_PAGE) and path.endswith("../"):
            continue
        if target not in files or (anchor and target.endswith(".html") and anchor not in page(target).anchors):
            found.append(f"{name}: {link}")
    return found


def test_a_folder_without_a_build_has_no_documents(tmp_path: Path) -> None:
    assert built_documents(tmp_path) is None


def test_each_document_of_users_is_a_page() -> None:
    pages = set(require_documents().pages)
    expected = {
        str(path.relative_to(ROOT / "docs").with_suffix(".html"))
        for path in (ROOT / "docs").rglob("*.md")
        if path.relative_to(ROOT / "docs").parts[0] != "internals"
    }
    assert pages == expected | {"readme.html", "security.html", "search.html"}, "make docs"


def test_links_lead_somewhere_in_the_site() -> None:
    pages = require_documents().pages
    assert sum(len(page(name).links) for name in pages) > 1_000
    assert [link for name in pages for link in broken_links(name)] == []


def test_each_page_is_in_the_menu() -> None:
    pages = set(require_documents().pages) - {"index.html", "search.html"}
    assert pages <= {link.partition("#")[0] for link in page("index.html").links}


def test_pages_load_files_of_the_site_only_and_have_no_script_or_style_within() -> None:
    documents = require_documents()
    for name in documents.pages:
        found = page(name)
        assert found.inline == [], name
        for link in found.loaded:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link.partition("?")[0]))
            assert target in documents.files, f"{name}: {link}"
    for name in documents.files:
        if name.endswith((".css", ".js")):
            text = documents.content(name, packed=False).decode()
            assert not re.findall(r"url\(['\"]?https?:|@import", text), name


def test_files_are_as_listed() -> None:
    documents = require_documents()
    stored = {str(path.relative_to(BUILT_DOCUMENTS)) for path in BUILT_DOCUMENTS.rglob("*") if path.is_file()}
    listed = {f"{name}.gz" if one.packed else name for name, one in documents.files.items()}
    assert stored == listed | {"files.json"}
    for name, one in documents.files.items():
        content = documents.content(name, packed=False)
        assert (len(content), hashlib.sha256(content).hexdigest()[:16]) == (one.size, one.tag), name
        if one.packed:
            assert gzip.decompress(documents.content(name, packed=True)) == content


def test_the_documents_are_small() -> None:
    documents = require_documents()
    packed = [name for name, one in documents.files.items() if one.packed]
    assert sum(len(documents.content(name, packed=True)) for name in packed) < GZIP_BYTES_MAX
    assert len(packed) < len(documents.files)


def test_licenses_of_what_is_in_the_site_are_with_it() -> None:
    text = require_documents().content("licenses.txt", packed=False).decode()
    assert [name for name in ("furo", "Sphinx", "snowballstemmer") if f"{name} " not in text] == []


def test_the_lock_has_hashes_and_no_addresses() -> None:
    text = (ROOT / "requirements-docs.lock").read_text()
    assert "://" not in text and "--index-url" not in text
    pins = re.findall(r"^\S.*\n    \S+", text, re.M)
    assert len(pins) > 20
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[^\\]+\\\n    --hash=sha256:[0-9a-f]{64}", pin)] == []


def build(target: Path) -> subprocess.CompletedProcess[str]:
    """Builds the documents of this checkout into a folder."""
    python = ROOT / "build" / "docs" / "env" / "bin" / "python"
    if not python.exists():
        missing("build/docs/env is not there; make docs")
    command = [str(python), str(ROOT / "docs_site" / "build.py"), str(ROOT), str(target / "work"), str(target / "made")]
    environment = {**os.environ, "PYTHONHASHSEED": "random", "TZ": "Asia/Tokyo"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.faults  # it takes long
def test_two_builds_are_equal(tmp_path: Path) -> None:
    require_documents()
    built = build(tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    again = built_documents(tmp_path / "made")
    assert again and again.files == require_documents().files


# --- links of the sources -----------------------------------------------------------------------------------------


def relinked(text: str, tmp_path: Path) -> str:
    """The text of docs/a.md with links for the site."""
    script = (
        "import sys; from pathlib import Path; from pages import relinked; "
        "places = {'docs/a.md': 'a.md', 'docs/b.md': 'b.md', 'README.md': 'readme.md'}; "
        "print(relinked(sys.stdin.read(), 'docs/a.md', places, Path(sys.argv[1]), Path(sys.argv[2])), end='')"
    )
    command = [sys.executable, "-c", script, str(ROOT), str(tmp_path)]
    done = subprocess.run(
        command, input=text, cwd=ROOT / "docs_site", capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_links_out_of_the_documents_lead_into_the_site_or_become_text(tmp_path: Path) -> None:
    text = """[b](b.md#x "t") [start](../README.md) [file](../lamplighter.toml) [code](internals/engine.md#y)
[`ARCHITECTURE.md`](../ARCHITECTURE.md) [folder](../ontology) [web](https://example.org) [here](#z) `[x](../y.md)`
```
[b](../ARCHITECTURE.md)
```
"""
    assert (
        relinked(text, tmp_path)
        == """[b](b.md#x "t") [start](readme.md) [file](files/lamplighter.toml) \
code (`docs/internals/engine.md`)
`ARCHITECTURE.md` folder (`ontology`) [web](https://example.org) [here](#z) `[x](../y.md)`
```
[b](../ARCHITECTURE.md)
```
"""
    )
    assert (tmp_path / "files" / "lamplighter.toml").read_bytes() == (ROOT / "lamplighter.toml").read_bytes()
