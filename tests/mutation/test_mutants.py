"""The mutants of a module: which there are, that edits elsewhere lose none, and that a live function gets the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamplighter.engine.access import Access, Graphs
from tests.mutation import live, mutants
from tests.mutation.mutants import Identity

PATH = "engine/example.py"
MODULE = '''
LIMIT = 1

@decorated(True)
def first(items: list[int], more=2) -> int:
    """Returns 1."""
    logger.info("begins", count=len(items) + 1)
    assert len(items) < 5, 1 + 1
    if not items:
        raise ValueError(f"{1 + 1}" + "more")
    for item in items:
        if item <= 3 and item is not None:
            break
    items.append(item)
    return item

class Second:
    size = 1

    def all(self):
        def within():
            return [one for one in self if one]
        self.count += 1
        return within()
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / PATH
    path.parent.mkdir()
    path.write_text(MODULE)
    return path


def changes() -> list[tuple[str, str, str, str]]:
    """(function, kind, before, after) of all mutants."""
    result = []
    for identity, _ in mutants.identities(PATH):
        mutant = mutants.mutant(identity)
        assert mutant is not None
        result.append((identity.function, identity.kind, mutant.before, mutant.after))
    return result


@pytest.mark.usefixtures("module")
def test_what_a_function_does_is_mutated_and_what_it_logs_or_raises_is_not() -> None:
    assert changes() == [
        ("first", "not removed", "not items", "items"),
        ("first", "condition negated", "item <= 3 and item is not None", "not (item <= 3 and item is not None)"),
        ("first", "And to Or", "item <= 3 and item is not None", "item <= 3 or item is not None"),
        ("first", "LtE to Lt", "item <= 3", "item < 3"),
        ("first", "one more", "3", "4"),
        ("first", "one less", "3", "2"),
        ("first", "IsNot to Is", "item is not None", "item is None"),
        ("first", "break to continue", "break", "continue"),
        ("first", "statement removed", "items.append(item)", "pass"),
        ("first", "returns None", "return item", "return None"),
        ("Second.all.<locals>.within", "returns None", "return [one for one in self if one]", "return None"),
        ("Second.all.<locals>.within", "condition negated", "if one", "if not one"),
        ("Second.all", "Add to Sub", "self.count += 1", "self.count -= 1"),
        ("Second.all", "statement removed", "self.count += 1", "pass"),
        ("Second.all", "one more", "1", "2"),
        ("Second.all", "one less", "1", "0"),
        ("Second.all", "returns None", "return within()", "return None"),
    ]


def test_a_mutant_is_found_again_until_its_line_is_another_one(module: Path) -> None:
    identity = Identity(PATH, "first", "return item", "returns None", 0)
    before = mutants.mutant(identity)
    module.write_text("import re\n\n" + MODULE.replace("items.append(item)", "return item"))
    moved = mutants.mutant(identity)
    assert before is not None and moved is not None
    assert moved.lines[0] == before.lines[0] + 1, "the first one with that text"
    module.write_text(MODULE.replace("return item", "return +item"))
    assert mutants.mutant(identity) is None
    module.unlink()
    assert mutants.mutant(identity) is None


def test_a_live_function_gets_the_code_of_the_mutant() -> None:
    text = "return self.read.every and self.write.every and self.subscribe.every"
    identity = Identity("engine/access.py", "Access.full", text, "And to Or", 0)
    mutant = mutants.mutant(identity)
    assert mutant is not None
    changes = live.Functions({identity.path}).changes(mutant)
    before = [(function, function.__code__) for function, _ in changes]
    assert [function.__qualname__ for function, _ in changes] == ["Access.full"]
    some = Access(read=Graphs(frozenset({None})))
    assert not some.full
    try:
        live.put(changes)
        assert some.full
    finally:
        live.put(before)
    assert not some.full
