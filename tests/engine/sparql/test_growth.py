"""What a short text may cost before anybody knows whether it is worth it: the loop reads it, sees whether it has a
plan, and asks for a trial. Each production of the grammar, wide and deep.

Calls of functions are counted, not seconds: 1,000 take about 0.3 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.access import FULL
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.querying.small_queries import SmallQueries
from lamplighter.engine.sparql import requests
from lamplighter.gateway.settings import LimitSettings
from lamplighter.gateway.workers.dry_runs import DryRuns
from tests.support.productions import QUERIES, UPDATES, texts
from tests.support.tables import each_row

SIZES = (16, 32, 120, 1000)
CALLS_MAX = 1_000_000
"""0.3 s. The dearest are plans of as many patterns as a plan may have."""


class _Nobody:
    """A trial that is not run needs no reader."""


def _calls(work: Callable[[], object]) -> int:
    """How many functions are called, native ones included."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        with suppress(GatewayError):
            work()
    finally:
        sys.setprofile(None)
    return count


def _dry_runs(engine: Engine) -> DryRuns:
    return DryRuns(engine, _Nobody(), LimitSettings())  # type: ignore[arg-type]


def _tried(engine: Engine, text: str) -> Any:
    """Of a long text, what follows its parsing."""
    request = engine.request(text)
    with suppress(GatewayError):
        request.check(FULL)
    return _dry_runs(engine).of_update(request)


@pytest.mark.faults
@each_row("name, count, text", [*texts(QUERIES, SIZES)])
def test_no_query_takes_the_loop_long(name: str, count: int, text: str) -> None:
    engine = Engine()
    small = SmallQueries(engine.store)
    assert _calls(lambda: small.answer(text, None, None, 1000)) < CALLS_MAX, "as an ad-hoc query"
    dry_runs = _dry_runs(engine)
    tried: list[Any] = []
    assert _calls(lambda: tried.append(dry_runs.of_subscription(text, None, None))) < CALLS_MAX, "before a dry run"
    if tried == [None]:  # it is refused, or a plan follows it, and no dry run is needed
        assert _calls(lambda: engine.subscribe(text)) < CALLS_MAX, "as a subscription"


@pytest.mark.faults
@each_row("name, count, text", [*texts(UPDATES, SIZES)])
def test_no_update_takes_the_loop_long(name: str, count: int, text: str) -> None:
    engine = Engine()
    tried: list[Any] = []
    assert _calls(lambda: tried.append(_tried(engine, text))) < CALLS_MAX, "before a dry run"
    if tried == [None]:
        assert _calls(lambda: engine.update(text)) < CALLS_MAX, "as an update"


@each_row("name, count, text", [*texts(QUERIES, (3, 60, 120))])
def test_the_planner_of_the_store_is_not_asked(
    name: str, count: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time grows with the fourth power of the patterns, so it sees the text with VALUES that have no row only."""
    planned: list[str] = []

    class Store:
        def query(self, text: str, **options: Any) -> object:
            if not options.get("use_default_graph_as_union"):  # with a default graph too, it is parsed and refused
                planned.append(text)
            return empty.query(text, **options)

    empty = requests._EMPTY
    monkeypatch.setattr(requests, "_EMPTY", Store())
    with suppress(GatewayError):
        requests.parse_query(text)
    assert [text for text in planned if not text.endswith(("VALUES () {}", "VALUES ?o {}"))] == []
