"""Builds the site: pages -> Sphinx -> files for the gateway, whose policy permits no script or style within a page.

The folder that is made has the files, texts packed by gzip, and `files.json`: path -> media type, entity tag and size.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

from pages import write_pages
from sphinx.cmd.build import main as sphinx

# Of files that are packed; other texts are `text/plain`, so that a browser shows them.
TEXTS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
PICTURES = {".png": "image/png", ".webp": "image/webp"}
_UNUSED = (".buildinfo", ".buildinfo.bak", "objects.inv")
_LICENSES = ("furo", "Sphinx", "sphinx-basic-ng", "Pygments", "snowballstemmer")
# What Sphinx and the theme leave out: levels of headings, and that keys can scroll wide blocks and tables.
_ACCESSIBLE = {
    ' role="heading">': ' role="heading" aria-level="2">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<div class="highlight"><pre>': '<div class="highlight"><pre tabindex="0">',
}
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)
_STYLE = re.compile(r"<style>(.*?)</style>", re.S)
_STYLED = re.compile(r'<([a-z][\w-]*)([^<>]*?) style="([^"]*)"([^<>]*)>')


def build(top: Path, work: Path, made: Path) -> None:
    source, site, trees = work / "source", work / "html", work / "trees"
    for folder in (source, site, made):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    write_pages(top, source)
    os.environ["DOCS_TOP"] = str(top)
    os.environ["TZ"] = "UTC"
    options = ["-b", "html", "-q", "-n", "-E", "-W", "--keep-going", "-c", str(Path(__file__).parent), "-d", str(trees)]
    if code := sphinx([*options, str(source), str(site)]):
        raise SystemExit(code)
    for name in _UNUSED:
        (site / name).unlink(missing_ok=True)
    outside = _Outside(site / "_static")
    for page in sorted(site.rglob("*.html")):
        page.write_text(outside.page(page.read_text(encoding="utf-8")), encoding="utf-8")
    outside.write()
    _remove_unused(site)
    (site / "licenses.txt").write_text(_licenses(), encoding="utf-8")
    _pack(site, made)


class _Outside:
    """Moves scripts and styles out of pages, into files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._classes: dict[str, str] = {}

    def page(self, text: str) -> str:
        root = re.search(r'data-content_root="([^"]*)"', text)
        static = f"{root[1] if root else './'}_static/"
        for before, after in _ACCESSIBLE.items():
            text = text.replace(before, after)
        text = _SCRIPT.sub(lambda one: f'<script src="{static}{self._file(one[1], "js")}"></script>', text)
        text = _STYLE.sub(lambda one: f'<link rel="stylesheet" href="{static}{self._file(one[1], "css")}">', text)
        while True:  # an element has one such attribute, so one round is enough; the last one finds none
            text, count = _STYLED.subn(self._classed, text)
            if not count:
                return text.replace("</head>", f'<link rel="stylesheet" href="{static}classes.css"></head>', 1)

    def _file(self, content: str, kind: str) -> str:
        content = re.sub(r"\s+", " ", content).strip() + "\n"
        name = f"inline-{hashlib.sha256(content.encode()).hexdigest()[:12]}.{kind}"
        (self._folder / name).write_text(content, encoding="utf-8")
        return name

    def _classed(self, found: re.Match[str]) -> str:
        tag, before, style, after = found[1], found[2], found[3], found[4]
        name = self._classes.setdefault(style, f"styled-{len(self._classes)}")
        rest = before + after
        if ' class="' in rest:
            return f"<{tag}" + rest.replace(' class="', f' class="{name} ', 1) + ">"
        return f'<{tag} class="{name}"{rest}>'

    def write(self) -> None:
        rules = "".join(f".{name} {{ {style} }}\n" for style, name in self._classes.items())
        (self._folder / "classes.css").write_text(rules, encoding="utf-8")


def _remove_unused(site: Path) -> None:
    """Removes files of the theme that nothing names, and the links to maps of sources."""
    static = site / "_static"
    texts = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".js") and path.is_file()]
    for path in (path for path in texts if path.is_relative_to(static)):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"/[/*]# sourceMappingURL=\S+( \*/)?", "", text), encoding="utf-8")
    named = set(re.findall(r"[\w.-]+\.\w+", "\n".join(path.read_text(encoding="utf-8") for path in texts)))
    for path in sorted(static.rglob("*"), reverse=True):
        if path.is_file() and path.name not in named:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _licenses() -> str:
    """The licences of what is in the site."""
    parts = []
    for name in _LICENSES:
        found = distribution(name)
        texts = [one for one in found.files or () if re.match(r"(LICEN[CS]E|COPYING)", one.name)]
        parts.append(f"{name} {found.version}\n\n" + "\n".join(str(one.read_text()).strip() for one in texts))
    return f"\n\n{'-' * 80}\n\n".join(parts) + "\n"


def _pack(site: Path, made: Path) -> None:
    files = {}
    for path in sorted(path for path in site.rglob("*") if path.is_file()):
        name, content = path.relative_to(site).as_posix(), path.read_bytes()
        packed = path.suffix not in PICTURES
        if packed and path.suffix not in TEXTS:
            content.decode()  # else its media type is missing here
        target = made / (f"{name}.gz" if packed else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(content, 9, mtime=0) if packed else content)
        files[name] = {
            "media_type": (TEXTS | PICTURES).get(path.suffix, "text/plain"),
            "tag": hashlib.sha256(content).hexdigest()[:16],
            "size": len(content),
            "packed": packed,
        }
    (made / "files.json").write_text(json.dumps(files, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(*(Path(argument) for argument in sys.argv[1:4]))
