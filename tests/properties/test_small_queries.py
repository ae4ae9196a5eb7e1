"""Small queries on random data: answers in the loop and answers of the store are the same, as bags.

Each is asked as by a client with all permissions, and as by one that may read some graphs only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pyoxigraph as ox

from lamplighter.engine import Engine
from lamplighter.engine.access import FULL, Access
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.querying.small_queries import SmallQueries
from lamplighter.engine.store.quad_store import query_native
from tests.properties.comparison import Rows, same_rows
from tests.properties.sparql_texts import case_of
from tests.properties.test_access_oracle import permitted
from tests.support.amounts import Amounts
from tests.support.seeds import seeds

CASES = 150
ANSWERED_MIN = 150
MOST = 60


def rows(answer: ox.QuerySolutions | ox.QueryBoolean | ox.QueryTriples) -> Rows:
    assert isinstance(answer, ox.QuerySolutions)
    columns = sorted(variable.value for variable in answer.variables)  # a `SELECT *` has them in another order
    return Counter(tuple(str(row[name]) for name in columns) for row in answer)


def test_the_answers_are_those_of_the_store(amounts: Amounts) -> None:
    tally: Counter[str] = Counter()

    def check() -> None:
        assert tally["answered"] >= amounts.of(ANSWERED_MIN), tally
        assert tally["with rows"] >= amounts.of(ANSWERED_MIN // 3), tally

    for number in seeds(amounts.of(CASES), check):
        random = Random(number)
        with Engine() as engine:
            small = SmallQueries(engine.store)
            texts: list[tuple[str, tuple[Sequence[str] | None, Sequence[str] | None] | None]] = []
            for step in case_of(number).steps:
                if step.kind == "subscribe" and step.cut is None:  # else rows that tie are the store's choice
                    texts.append((step.text, step.graphs))
                elif step.kind == "update":
                    if engine.quad_count > MOST:
                        engine.update("CLEAR ALL")
                    try:
                        engine.update(step.text)
                    except GatewayError:
                        continue
                for text, graphs in texts[-3:]:
                    tally[_compared(engine, small, text, graphs or (None, None), random, number)] += 1
    print(f"\nqueries in the loop, to seed {number}: {dict(tally)}")


def _compared(
    engine: Engine,
    small: SmallQueries,
    text: str,
    graphs: tuple[Sequence[str] | None, Sequence[str] | None],
    random: Random,
    number: int,
) -> str:
    access = Access(read=permitted(random)) if random.random() < 0.5 else FULL
    try:
        default, named = engine.readable(text, *graphs, access)
    except GatewayError:
        return "denied"
    found = small.answer(text, default, named, 10_000)
    if found is None:
        return "left"
    expected = rows(query_native(engine.store.native, text, default, named))
    assert same_rows(rows(found), expected, text), (number, text, default, named, engine.dump())
    return "with rows" if expected else "answered"
