"""The built files of the page."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

import lamplighter.gateway.page
from lamplighter.gateway.page.assets import BUILT, built_assets
from tests.support.components import missing, require_command, require_page
from tests.support.places import ROOT

GZIP_BYTES_MAX = 150_000
"""Of all files together."""


def test_a_folder_without_a_build_has_no_page(tmp_path: Path) -> None:
    assert built_assets(tmp_path) is None


def test_each_gzip_has_its_file() -> None:
    page = require_page()
    for asset in (page.index, *page.files.values()):
        assert gzip.decompress(asset.packed) == asset.plain


def test_the_page_is_small() -> None:
    page = require_page()
    assert sum(len(asset.packed) for asset in (page.index, *page.files.values())) < GZIP_BYTES_MAX


def test_names_have_the_hash_of_their_content() -> None:
    page = require_page()
    assert {Path(name).suffix for name in page.files} == {".css", ".js", ".png", ".svg", ".webmanifest"}
    for name, asset in page.files.items():
        assert re.fullmatch(r"[a-z]+(?:-\d+)?-([0-9a-f]{12})\.[a-z]+", name)
        assert f"-{hashlib.sha256(asset.plain).hexdigest()[:12]}." in name


def test_the_index_has_no_script_or_style_of_its_own_and_names_no_other_host() -> None:
    page = require_page()
    index = page.index.plain.decode()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", index) == [""]
    assert "<style" not in index and "style=" not in index and "://" not in index
    named = set(re.findall(r'(?:src|href)="assets/([^"]+)"', index))
    (manifest,) = (name for name in named if name.endswith(".webmanifest"))
    assert named | {icon["src"] for icon in json.loads(page.files[manifest].plain)["icons"]} == page.files.keys()


def test_the_manifest_makes_the_page_installable() -> None:
    page = require_page()
    (manifest,) = (json.loads(one.plain) for name, one in page.files.items() if name.endswith(".webmanifest"))
    assert (manifest["start_url"], manifest["scope"], manifest["display"]) == ("../now", "../", "standalone")
    for icon in manifest["icons"]:
        asset = page.files[icon["src"]]
        assert asset.media_type == icon["type"]
        if icon["type"] == "image/png":
            size = struct.unpack(">II", asset.plain[16:24])
            assert icon["sizes"] == f"{size[0]}x{size[1]}"
    assert {"192x192", "512x512"} <= {icon["sizes"] for icon in manifest["icons"]}


def test_licenses_of_what_is_bundled_are_with_it() -> None:
    require_page()
    text = (BUILT / "licenses.txt").read_text()
    assert [name for name in ("htm", "preact", "uplot") if f"{name} " not in text] == []


def test_two_builds_are_equal(tmp_path: Path) -> None:
    """With the packages that the build of the page has installed."""
    require_page()
    modules = ROOT / "build" / "page"
    node = modules / "node" / "bin" / "node"
    command = str(node) if node.exists() else require_command("node")
    if not (modules / "node_modules").is_dir():
        missing("build/page/node_modules is not there; make page")
    for name in ("one", "other"):
        build = [command, str(ROOT / "gateway/page/source/build.mjs"), str(modules), str(tmp_path / name)]
        environment = {**os.environ, "TZ": "Asia/Tokyo" if name == "one" else "UTC"}
        subprocess.run(build, cwd=tmp_path, env=environment, check=True, timeout=300)
    found = {name: contents(tmp_path / name) for name in ("one", "other")}
    assert found["one"] == found["other"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["package-lock.json", "package.json"])
def test_the_lock_has_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / "gateway/page/source" / name).read_text()
    assert "resolved" not in text and "registry" not in text
    if name == "package-lock.json":
        assert text.count('"integrity"') == text.count('"node_modules/')


def test_texts_of_others_are_isolated_from_the_text_around_them() -> None:
    """A text whose direction differs (`<bdi>`), or that leaves an embedding open, would reorder its neighbours. What is
    cut comes from devices and clients; a `<pre>` is a paragraph of its own."""
    sources = Path(lamplighter.gateway.page.__file__).parent / "source"
    texts = {path.name: path.read_text() for path in sources.rglob("*.js")}
    before = re.compile(r"(<[a-z][^<>`]*>)[^<>$`]*\$\{(?:cut|begun|stateText)\(")
    found = [(name, one[1]) for name, text in texts.items() for one in before.finditer(text)]
    assert len(found) > 30
    assert [one for one in found if not one[1].startswith(("<bdi", "<pre"))] == []
