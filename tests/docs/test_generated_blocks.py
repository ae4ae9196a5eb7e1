"""The generated blocks of the documents are what their functions make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.__main__ import documents, generators, refreshed
from tests.support.places import ROOT
from tests.support.tables import each_row


@each_row("document", list(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_are_up_to_date(document: Path) -> None:
    text = document.read_text()
    assert refreshed(text, generators()) == text, "python -m tests.docs"


def test_a_stale_block_is_noticed() -> None:
    text = "<!-- generated: one -->\n\nold\n\n<!-- end -->\nrest\n"
    assert refreshed(text, {"one": lambda: "new\n"}) == text.replace("old", "new")
    with pytest.raises(KeyError):
        refreshed(text, {})


def test_marks_are_in_pairs() -> None:
    for document in documents():
        text = document.read_text()
        assert text.count("<!-- generated: ") == text.count("<!-- end -->"), document.name
