"""Files that another version has written: what this one does not know stays, what it must not misread is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.engine.client.state_files import StateFile
from lamplighter.engine.errors import ConfigurationError


class Inner(msgspec.Struct, frozen=True, omit_defaults=True, rename={"number": "no"}):
    number: int = 0


class Item(msgspec.Struct, frozen=True):
    name: str
    inner: Inner = Inner()


class Whole(msgspec.Struct, frozen=True):
    items: list[Item]


def written(path: Path, document: Any) -> StateFile[Whole]:
    path.write_text(json.dumps(document))
    return StateFile(path, Whole, "the cure")


def test_members_of_a_newer_version_are_kept_with_what_they_belong_to(tmp_path: Path) -> None:
    file = written(
        tmp_path / "state.json",
        {
            "items": [
                {"name": "a", "inner": {"no": 1, "deep": [1]}, "new": True},
                {"name": "b", "inner": {}, "new": False},
                {"name": "c", "inner": {}, "new": None},
            ],
            "further": {"x": 1},
        },
    )
    read = file.read()
    assert read == Whole([Item("a", Inner(1)), Item("b"), Item("c")])
    # One is changed, one is gone, one is added in front: each keeps its own.
    changed = Whole([Item("new"), Item("c", Inner(7)), Item("a")])
    expected = {
        "items": [
            {"name": "new", "inner": {}},
            {"name": "c", "inner": {"no": 7}, "new": None},
            {"name": "a", "inner": {"deep": [1]}, "new": True},
        ],
        "further": {"x": 1},
    }
    assert json.loads(file.encode(changed)) == expected
    file.commit()
    assert json.loads(file.encode(changed)) == expected, "and again"
    file.encode(Whole([]))
    assert json.loads(file.encode(changed)) == expected, "what could not be written has forgotten nothing"
    assert "new" not in json.loads(file.encode(Whole([Item("b")])))["items"][0], "what went is forgotten"


def test_lists_are_files_too(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('[{"name": "a", "new": 1}]')
    file = StateFile(path, list[Item], "the cure")
    assert file.read() == [Item("a")]
    assert json.loads(file.encode([Item("b"), Item("a")])) == [
        {"name": "b", "inner": {}},
        {"name": "a", "inner": {}, "new": 1},
    ]


def test_a_newer_format_is_refused_and_says_how_nothing_is_lost(tmp_path: Path) -> None:
    file = written(tmp_path / "state.json", {"format": 2, "items": "otherwise"})
    with pytest.raises(ConfigurationError, match="newer version") as refused:
        file.read()
    assert str(tmp_path / "state.json") in str(refused.value)
    assert "the cure" not in str(refused.value), "it would delete what the newer version needs"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\0" * 100, b"[" * 20_000, b"[]", b'{"items": 1}', b'{"items": [{"name": 1}]}', b"\xff\xfe"],
)
def test_damage_names_the_file_and_the_cure(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"is damaged .*; the cure") as refused:
        StateFile(path, Whole, "the cure").read()
    assert str(path) in str(refused.value)


def test_no_file_is_no_value(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "missing.json", Whole, "").read() is None
