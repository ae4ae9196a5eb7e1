"""Tables of a test: `each_row` makes one test of all rows, where `pytest.mark.parametrize` makes a test of each.

A test costs about 3 ms of collection, set-up and reports, a row a few microseconds; a subtest of pytest costs 0.6 ms.
All rows run, whatever fails before them. A row that fails has its traceback, and its number and values in a note.

Rows share the fixtures of their test, but for `tmp_path`: each row has a folder of its own. A test whose other fixtures
have to be fresh for each case, or whose cases have marks, stays with `parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support.amounts import AMOUNTS
from tests.support.components import missing

_VALUE_LENGTH_MAX = 200
_FAILURES = (Exception, pytest.fail.Exception, pytest.skip.Exception)

Test = Callable[..., Any]


class Checked:
    """How many rows have run in this process."""

    rows = 0


def each_row(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Callable[[Any], object] | Sequence[str] | None = None,
    *,
    is_amount: bool = False,
) -> Callable[[Test], Test]:
    """Decorator of a test: runs it with the values of each row. The arguments are those of `pytest.mark.parametrize`.

    names: of the parameters that the rows give. ids: a name for each row, or makes one of each value. is_amount: the
    rows are an amount, of which `make test` runs a part (`tests.support.amounts`). The test fails if a row fails or is
    skipped. Without rows, as where a suite was not fetched, it is skipped, and fails where CI=true.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_row(columns, values, number, ids) for number, values in enumerate(rows)]

    def decorated(test: Test) -> Test:
        signature = inspect.signature(test)
        fixtures = [it for it in signature.parameters.values() if it.name not in columns]
        assert len(fixtures) + len(columns) == len(signature.parameters), f"{test.__name__} takes {names}"

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(**given: Any) -> None:
                __tracebackhide__ = True
                chosen = AMOUNTS.some(table) if is_amount else table
                failures = _Failures(test, len(chosen))
                for number, (label, values) in enumerate(chosen):
                    with failures.of(number, label):
                        await test(**_own(given, number), **values)
                failures.report()

        else:

            @functools.wraps(test)
            def run(**given: Any) -> None:
                __tracebackhide__ = True
                chosen = AMOUNTS.some(table) if is_amount else table
                failures = _Failures(test, len(chosen))
                for number, (label, values) in enumerate(chosen):
                    with failures.of(number, label):
                        test(**_own(given, number), **values)
                failures.report()

        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # pytest reads it
        run.has_rows = True  # type: ignore[attr-defined]
        return pytest.mark.amounts(run) if is_amount else run

    return decorated


def _row(
    columns: Sequence[str], row: Any, number: int, ids: Callable[[Any], object] | Sequence[str] | None
) -> tuple[str, dict[str, Any]]:
    """The label of a row, and its values by their names."""
    label = ""
    if isinstance(row, type(pytest.param())):
        assert not row.marks, "a row has no marks of its own"
        label, values = row.id or "", row.values
    else:
        values = (row,) if len(columns) == 1 else tuple(row)
    if not label and callable(ids):
        label = "-".join(str(ids(value)) for value in values)
    elif not label and ids is not None:
        label = ids[number]
    named = dict(zip(columns, values, strict=True))
    return label or ", ".join(f"{name}={_short(value)}" for name, value in named.items()), named


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}..."


def _own(given: dict[str, Any], number: int) -> dict[str, Any]:
    """The fixtures of a row."""
    if "tmp_path" not in given:
        return given
    folder: Path = given["tmp_path"] / str(number)
    folder.mkdir()
    return {**given, "tmp_path": folder}


class _Failures:
    """Failures of the rows of a test."""

    def __init__(self, test: Test, rows: int) -> None:
        self._test = test.__name__
        self._rows = rows
        self._counted = not hasattr(test, "has_rows")  # a row of a table of tables is counted in the inner one
        self._row = ""
        self._failures: list[BaseException] = []
        self._labels: list[str] = []

    def of(self, number: int, label: str) -> _Failures:
        """Catches what fails in its body: the row with this number and label."""
        self._row = f"row {number}: {label}"
        return self

    def __enter__(self) -> None:
        Checked.rows += self._counted

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if error is None:
            return True
        if not isinstance(error, _FAILURES):
            return False
        if isinstance(error, pytest.skip.Exception):
            error = AssertionError(f"a row is not skipped: {error.msg}")
        error.add_note(f"{self._test}, {self._row}")
        self._failures.append(error)
        self._labels.append(self._row)
        return True

    def report(self) -> None:
        """Raises the failure of the only row that fails, or all failures in a group."""
        __tracebackhide__ = True
        if not self._rows:
            missing(f"{self._test} has no rows")
        if len(self._failures) == 1:
            raise self._failures[0]
        if self._failures:
            # A traceback of a group shows 15 of its errors, so the message has all rows.
            count = f"{len(self._failures)} of {self._rows} rows of {self._test} fail"
            raise BaseExceptionGroup("\n".join([count, *self._labels]), self._failures)
