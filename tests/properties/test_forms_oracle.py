"""Random subscriptions to ASK and CONSTRUCT, the engine against the oracle after each update."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError, LimitExceededError, UnsupportedRequestError
from tests.properties.sparql_texts import LINKS, Query, Scope, Writer, spelled
from tests.support.amounts import Amounts
from tests.support.oracle import REFUSALS, Oracle, Row, respelled_rows, term_text
from tests.support.seeds import seeds

CASES = 60
TRUE, FALSE = (f'"{value}"^^<http://www.w3.org/2001/XMLSchema#boolean>' for value in ("true", "false"))


class FormsOracle(Oracle):
    def rows(self, sparql: str) -> Counter[Row]:
        """The answer of an ASK as its one row, that of a CONSTRUCT as a set of triples."""
        answer = self._store.query(sparql)
        if isinstance(answer, ox.QueryBoolean):
            return Counter([(TRUE if answer else FALSE,)])
        assert isinstance(answer, ox.QueryTriples)
        return Counter({(term_text(t.subject), term_text(t.predicate), term_text(t.object)) for t in answer})


def query(writer: Writer) -> Query:
    scope = Scope()
    body = writer.group(scope, richness=writer.one((0, 1, 2)))
    names = [name for name in scope.variables() if name in body] or ["?x"]
    if writer.chance(40):
        return Query(f"ASK {writer.one(('', 'WHERE '))}{{ {body} }}", tuple(scope.patterns))
    triples = [writer._template(names, scope)[:3] for _ in range(writer.one((1, 2, 3)))]
    triples = [(s, writer.one(LINKS) if p[0] not in "?«" else p, o) for s, p, o in triples]
    template = " ".join(f"{s} {p} {o} ." for s, p, o in triples)
    return Query(f"CONSTRUCT {{ {template} }} WHERE {{ {body} }}", tuple(scope.patterns))


def run(seed: int, tally: Counter[str]) -> None:
    writer, oracle = Writer(Random(seed).choice), FormsOracle()
    queries = [query(writer) for _ in range(3)]
    texts = [spelled(writer, one.text) for one in queries]
    updates = [spelled(writer, writer.start(queries))]
    updates += [spelled(writer, writer.update(queries)) for _ in range(5)]
    shown: dict[str, tuple[str, Counter[Row]]] = {}
    with Engine() as engine:
        for number, update in enumerate(updates):
            if number == 1:
                for text in (*texts, texts[0]):
                    try:
                        one = engine.subscribe(text)
                    except LimitExceededError:
                        continue
                    shown[one.spuid] = (text, respelled_rows(one.first))
                    assert shown[one.spuid][1] == oracle.rows(text), text
            try:
                oracle.update(update)
            except REFUSALS:
                with pytest.raises(GatewayError):
                    engine.update(update)
                continue
            for change in engine.update(update).notifications:
                text, rows = shown[change.spuid]
                removed, added = respelled_rows(change.removed), respelled_rows(change.added)
                assert removed <= rows
                assert removed or added
                shown[change.spuid] = text, rows - removed + added
                tally[f"changed {text.split()[0][:1]}"] += 1
            for text, rows in shown.values():
                assert rows == oracle.rows(text), (seed, text)
                tally["checks"] += 1


def test_ask_and_construct_are_those_of_a_fresh_evaluation(amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    tally = Counter[str]()

    def check() -> None:
        assert sum(count for name, count in tally.items() if name != "checks") > cases
        assert tally["checks"] > 10 * cases

    for seed in seeds(cases, check):
        try:
            run(seed, tally)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(f"\nforms against oracle, to seed {seed}: {dict(tally)}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("DESCRIBE <x:a>", "not DESCRIBE"),
        ("ASK { ?s ?p ?o } LIMIT 1", "ends with its pattern"),
        ("ASK { ?s ?p ?o } VALUES ?s { <x:a> }", "ends with its pattern"),
        ("CONSTRUCT { ?s <x:p> [] } WHERE { ?s <x:p> ?o }", "no blank nodes"),
        ("CONSTRUCT WHERE { ?s <x:p> [] }", "no blank nodes"),
        ("CONSTRUCT { ?s <x:p> <<( ?s <x:p> ?o )>> } WHERE { ?s <x:p> ?o }", "no triple terms with variables"),
        ("CONSTRUCT { ?s <x:p> ?o } WHERE { ?s <x:p> ?o FILTER( ?o < NOW() ) }", "NOW"),
    ],
)
def test_what_cannot_be_followed_is_refused(text: str, reason: str) -> None:
    with Engine() as engine:
        with pytest.raises(UnsupportedRequestError, match=reason):
            engine.subscribe(text)
        assert (engine.subscription_count, engine.unit_count) == (0, 0)


def test_a_triple_stays_while_one_solution_makes_it() -> None:
    with Engine() as engine:
        engine.update("INSERT DATA { <x:a> <x:in> <x:r> . <x:b> <x:in> <x:r> }")
        one = engine.subscribe("CONSTRUCT { ?r <x:is> 'used' } WHERE { ?x <x:in> ?r }")
        same = engine.subscribe("construct { ?r <x:is> 'used' } where { ?y <x:in> ?r }")
        other = engine.subscribe("CONSTRUCT { ?r <x:is> 'in use' } WHERE { ?x <x:in> ?r }")
        assert (list(one.first), engine.unit_count) == ([("<x:r>", "<x:is>", '"used"')], 2)
        assert one.first.variables == ("subject", "predicate", "object")
        assert not engine.update("DELETE DATA { <x:a> <x:in> <x:r> }").notifications
        told = engine.update("DELETE DATA { <x:b> <x:in> <x:r> }").notifications
        assert {change.spuid for change in told} == {one.spuid, same.spuid, other.spuid}
        assert {change.sequence for change in told} == {1}
        assert all(len(change.removed) == 1 and not change.added for change in told)
