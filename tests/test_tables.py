"""`each_row`: one test of all rows of a table that reports each row that fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.tables import Checked, each_row

FailedByRow: type[BaseException] = pytest.fail.Exception


def notes(error: BaseException) -> list[str]:
    return list(error.__notes__)


def test_every_row_runs_and_each_failure_is_named() -> None:
    calls: list[int] = []

    @each_row("number, square", [(1, 1), (2, 5), (3, 9), (4, 15)])
    def test_squares(number: int, square: int) -> None:
        calls.append(number)
        assert number**2 == square

    before = Checked.rows
    with pytest.raises(ExceptionGroup) as group:
        test_squares()
    assert calls == [1, 2, 3, 4] and Checked.rows == before + 4
    labels = ["row 1: number=2, square=5", "row 3: number=4, square=15"]
    assert group.value.message.splitlines() == ["2 of 4 rows of test_squares fail", *labels]
    assert [notes(error) for error in group.value.exceptions] == [[f"test_squares, {label}"] for label in labels]


def test_the_only_row_that_fails_raises_its_own_error() -> None:
    @each_row("word", ["good", "bad"], ids=str.upper)
    def test_words(word: str) -> None:
        assert word == "good"

    with pytest.raises(AssertionError, match="bad") as failure:
        test_words()
    assert notes(failure.value) == ["test_words, row 1: BAD"]
    assert failure.traceback[-1].frame.code.name == "test_words"


async def test_a_coroutine_runs_for_each_row() -> None:
    calls: list[str] = []

    @each_row("word", [pytest.param("a", id="first"), pytest.param("b", id="second")])
    async def test_words(word: str) -> None:
        await anyio.lowlevel.checkpoint()
        calls.append(word)
        assert word == "b"

    with pytest.raises(AssertionError) as failure:
        await test_words()
    assert calls == ["a", "b"] and notes(failure.value) == ["test_words, row 0: first"]


def test_tables_multiply_and_each_row_has_a_folder(tmp_path: Path) -> None:
    rows: list[tuple[str, int]] = []

    @each_row("letter", "abc")
    @each_row("number", range(4), ids=[f"number {number}" for number in range(4)])
    def test_pairs(letter: str, number: int, tmp_path: Path) -> None:
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").touch()
        rows.append((letter, number))
        assert (letter, number) != ("b", 2)

    assert list(inspect.signature(test_pairs).parameters) == ["tmp_path"]
    before = Checked.rows
    with pytest.raises(AssertionError) as failure:
        test_pairs(tmp_path=tmp_path)
    assert Checked.rows == before + 12
    assert rows == [(letter, number) for letter in "abc" for number in range(4)]
    assert notes(failure.value) == ["test_pairs, row 2: number 2", "test_pairs, row 1: letter='b'"]


@pytest.mark.parametrize("end", [lambda: pytest.fail("no"), lambda: pytest.skip("later")], ids=["fail", "skip"])
def test_a_row_that_calls_fail_or_skip_fails_its_test(end: Callable[[], None]) -> None:
    calls: list[int] = []

    @each_row("number", range(3))
    def test_it(number: int) -> None:
        calls.append(number)
        if number == 1:
            end()

    with pytest.raises((FailedByRow, AssertionError)) as failure:
        test_it()
    assert calls == [0, 1, 2] and notes(failure.value) == ["test_it, row 1: number=1"]


def test_an_interrupt_ends_the_table() -> None:
    calls: list[int] = []

    @each_row("number", range(3))
    def test_it(number: int) -> None:
        calls.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        test_it()
    assert calls == [0]


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_table_without_rows_is_a_component_that_is_missing(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    @each_row("number", ())
    def test_it(number: int) -> None: ...

    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="test_it has no rows"):
        test_it()


@pytest.mark.parametrize(
    ("names", "row"),
    [
        pytest.param("other", 1, id="name that the test does not take"),
        pytest.param("number, other", (1, 2), id="one name too many"),
        pytest.param("number", pytest.param(1, marks=pytest.mark.faults), id="row with a mark"),
    ],
)
def test_a_table_that_does_not_fit_its_test_is_refused(names: str, row: Any) -> None:
    with pytest.raises(AssertionError):

        @each_row(names, [row])
        def test_it(number: int) -> None: ...
