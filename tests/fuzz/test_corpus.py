"""Each file of the corpus, and some hundred inputs made of them by a fixed seed, are taken as the targets say."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.__main__ import fault, mutated
from tests.fuzz.targets import TARGETS, corpus
from tests.support.amounts import Amounts
from tests.support.tables import each_row


@each_row(("name", "path"), [(name, path) for name in TARGETS for path in corpus(name)], ids=str)
def test_a_file_of_the_corpus_is_taken(name: str, path: Path) -> None:
    assert fault(name, path.read_bytes()) is None


@each_row("name", TARGETS)
def test_mutations_are_taken(name: str, amounts: Amounts) -> None:
    inputs, random = [path.read_bytes() for path in corpus(name)], Random(1)
    for _ in range(amounts.of(300)):
        data = mutated(random, inputs)
        assert fault(name, data) is None, data


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(data: bytes) -> None:
        for _ in range(len(data)):
            sum(data)

    monkeypatch.setitem(TARGETS, "lexer", lambda data: data.decode())
    assert "UnicodeDecodeError" in (fault("lexer", b"\xff") or "")
    monkeypatch.setitem(TARGETS, "lexer", quadratic)
    monkeypatch.setattr("tests.fuzz.__main__.INPUT_S_MAX", 0.01)
    assert "it takes" in (fault("lexer", b"a" * 5000) or "")
