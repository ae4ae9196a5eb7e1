"""The pages of the site: copies of the documents, whose links lead to what the site has.

docs/ is the site without docs/internals; README.md and SECURITY.md are pages of it. Other files of the repository that
a page links to are downloads. Links to other documents and to folders become text with the name.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

EXTRA_PAGES = {"README.md": "readme.md", "SECURITY.md": "security.md"}
_LEFT_OUT = "internals"
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$", re.M | re.S)
# A code span, or a link or picture with its text, target and title.
_LINK = re.compile(r'(`+)(?!`).*?(?<!`)\1(?!`)|(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^)\s]+)((?:\s+"[^"]*")?)\)', re.S)
_GROUP = re.compile(r"^##+ (?P<heading>.+)$|^\| \*\*(?P<row>[^*|]+)\*\* *\|", re.M)


def write_pages(top: Path, source: Path) -> None:
    """Writes what Sphinx reads. top: the repository; source: an empty folder."""
    places = page_places(top)
    for document, page in places.items():
        target = source / page
        target.parent.mkdir(parents=True, exist_ok=True)
        text = relinked((top / document).read_text(encoding="utf-8"), document, places, top, source)
        if page == "index.md":
            text += navigation(text, list(places.values()))
        target.write_text(text, encoding="utf-8")


def page_places(top: Path) -> dict[str, str]:
    """Path of each document in the repository -> its path in the site."""
    found = {}
    for path in sorted((top / "docs").rglob("*.md")):
        inside = path.relative_to(top / "docs")
        if inside.parts[0] != _LEFT_OUT:
            found[f"docs/{inside}"] = str(inside)
    for document, page in EXTRA_PAGES.items():
        if page in found.values():
            raise SystemExit(f"docs: docs/{page} and {document} would be one page")
        found[document] = page
    return found


def relinked(text: str, document: str, places: dict[str, str], top: Path, source: Path) -> str:
    """The text of a document with links for the site. Copies the files that it links to."""

    def link(found: re.Match[str]) -> str:
        if found[1]:
            return found[0]
        picture, label, target, title = found[2], found[3], found[4], found[5]
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
        here = posixpath.dirname(places[document])
        if place in places:
            return f"{picture}[{label}]({posixpath.relpath(places[place], here or '.')}{hash_}{anchor}{title})"
        if (top / place).is_file() and not place.endswith(".md"):
            inside = place.removeprefix("docs/") if place.startswith("docs/") else f"files/{place}"
            (source / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(top / place, source / inside)
            return f"{picture}[{label}]({posixpath.relpath(inside, here or '.')}{title})"
        return label if label.strip("`") == place else f"{label} (`{place}`)"

    return "".join(part if fenced else _LINK.sub(link, part) for fenced, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The blocks of code and the text between them; whether it is a block."""
    at = 0
    for block in _FENCE.finditer(text):
        yield False, text[at : block.start()]
        yield True, block[0]
        at = block.end()
    yield False, text[at:]


def navigation(index: str, pages: list[str]) -> str:
    """The menu as hidden tables of contents: the groups of the index, which are its headings and bold rows, with the
    pages that each is the first to link to. The links before the first group are a choice of pages."""
    first = _GROUP.search(index)
    at = first.start() if first else 0
    groups: dict[str, list[str]] = {}
    placed: set[str] = {"index.md"}
    marks = [*_GROUP.finditer(index, at)]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        caption = (mark["heading"] or mark["row"]).strip()
        part = index[mark.end() : following.start() if following else None]
        for target in re.findall(r"\]\(([^)#\s]+\.md)", part):
            if target in pages and target not in placed:
                placed.add(target)
                groups.setdefault(caption, []).append(target)
    if left := [page for page in pages if page not in placed]:
        groups["More"] = left
    trees = (
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(targets) + "\n```\n"
        for caption, targets in groups.items()
    )
    return "".join(trees)
