"""docs/internals/papers-to-code.md maps papers to code and back: both tables agree with each other and the code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "internals" / "papers-to-code.md").read_text()
FOLDERS = ("adapters", "apps", "benchmarks", "cloud_sync", "demo", "docs/examples", "engine", "gateway", "ontology")
CITATION = re.compile(r"(?:Roffia|Pellegrino) (2016|2018|2013)((?:,| and) (?:[IV]+(?:\.[A-D])?|\d(?:\.\d)?)\b)*")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    [table] = re.findall(rf"^## {heading}\n\n(.*?)\n\n", DOCUMENT, re.M | re.S)
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


TO_CODE = {(section, name) for section, _, code in rows("Section to code") for name in names(code)}
TO_SECTION = {
    (section, name)
    for code, sections in rows("Code to section")
    for name in names(code)
    for section in sections.split(", ")
}


def citations() -> Iterator[tuple[str, str]]:
    """Each section that a file cites, such as 2016 III.B, and the file."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".ttl", ".jsap"):
                for found in CITATION.finditer(re.sub(r"\s+", " ", path.read_text())):
                    year, *sections = re.split(r", | and ", found[0].partition(" ")[2])
                    for section in sections:
                        yield f"{year} {section}", str(path.relative_to(ROOT))


def test_both_tables_say_the_same() -> None:
    assert TO_CODE == TO_SECTION


def test_files_are_there() -> None:
    for _, name in TO_CODE:
        assert (ROOT / name).is_dir() if name.endswith("/") else (ROOT / name).is_file(), name


def test_every_citation_in_the_code_is_in_the_tables() -> None:
    cited = set(citations())
    assert len(cited) > 20
    missing = [
        (section, file)
        for section, file in sorted(cited)
        if not any(section == one and file.startswith(name) for one, name in TO_CODE)
    ]
    assert missing == []
