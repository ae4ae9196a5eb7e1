"""Names of their own for variables of an EXISTS: in each place of a query, and only where they are other variables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lamplighter.engine.sparql.exists_variables import with_own_variables
from lamplighter.engine.sparql.lexer import tokens
from tests.support.productions import QUERIES, UPDATES, texts
from tests.support.tables import each_row

CALLS_MAX = 200_000
"""Of functions, for a text of some hundred tokens: 60 ms."""


@each_row(
    "text, renamed",
    [
        ("SELECT ?r (EXISTS { ?r :has ?s } AS ?e) { ?x :in ?r MINUS { ?x :q ?s } }", "?r :has ?s }"),
        ("SELECT ?r (COUNT(*) AS ?n) { ?s :in ?r } GROUP BY ?r HAVING(EXISTS { ?r :has ?s })", "?r :has ?s })"),
        ("SELECT ?r (COUNT(*) AS ?n) { ?s :in ?r } GROUP BY ?r HAVING(EXISTS { ?r :has ?n })", "?r :has ?n })"),
        ("SELECT ?r { ?s :in ?r MINUS { ?r :x ?t } } ORDER BY (EXISTS { ?r :has ?t })", "?r :has ?t })"),
        ("SELECT ?r { ?s :in ?r MINUS { ?r :x ?t } } ORDER BY (EXISTS { ?r :has ?t }) LIMIT 2", "?r :has ?t })"),
        ("PREFIX : <u:> CONSTRUCT { ?r :l ?t } WHERE { ?s :in ?r } ORDER BY (EXISTS { ?s :r ?t })", "?s :r ?t })"),
        ("CONSTRUCT { ?r :l ?k } { { ?s :in ?r FILTER EXISTS { ?s :r ?k } } ?k :p ?x }", "?s :r ?k }"),
        ("ASK { { ?s :in ?r FILTER EXISTS { ?s :r ?k } } ?k :p ?x }", "?s :r ?k }"),
        ("DESCRIBE ?r { ?s :in ?r MINUS { ?r :x ?t } } ORDER BY EXISTS { ?r :has ?t } LIMIT 1", "?r :has ?t }"),
        ("DESCRIBE ?r FROM <u:g> WHERE { { ?s :in ?r FILTER EXISTS { ?s :r ?k } } ?k :p ?x }", "?s :r ?k }"),
        ("INSERT { ?s :p ?k } WHERE { { ?s :in ?r FILTER EXISTS { ?s :r ?k } } ?k :p ?x }", "?s :r ?k }"),
    ],
)
def test_a_variable_that_the_solution_does_not_have_gets_a_name_of_its_own(text: str, renamed: str) -> None:
    before, part, after = text.rpartition(renamed)
    assert part
    found = with_own_variables(text)
    assert found.startswith(before)
    assert found.endswith(after)
    own = found.removeprefix(before).removesuffix(after)
    subject, predicate, name, *rest = own.split()
    assert [subject, predicate, *rest] == [*renamed.split()[:2], *renamed.split()[3:]]
    assert name.startswith(f"{renamed.split()[2]}_")
    assert name not in text


@each_row(
    "text",
    [
        "SELECT ?r (EXISTS { ?r :has ?s } AS ?e) { ?s :in ?r }",
        "SELECT (STR(?s) AS ?k) (EXISTS { ?k :has ?s } AS ?e) { ?s :in ?r }",
        "SELECT ?r (COUNT(*) AS ?n) { ?s :in ?r } GROUP BY ?r HAVING(EXISTS { ?r :has ?x })",
        "SELECT ?r { ?s :in ?r } GROUP BY ?r (EXISTS { ?r :has ?s } AS ?e)",
        "SELECT ?r { ?s :in ?r } ORDER BY (EXISTS { ?r :has ?s })",
        "SELECT DISTINCT ?r { ?s :in ?r } ORDER BY (EXISTS { ?r :has ?s }) LIMIT 2",
        "SELECT ?r { ?x :is ?r { SELECT ?r { ?s :in ?r } ORDER BY (EXISTS { ?r :has ?s }) LIMIT 2 } }",
        "CONSTRUCT WHERE { ?s :in ?r } ORDER BY (EXISTS { ?r :has ?s })",
        "DESCRIBE ?r { ?s :in ?r } ORDER BY (EXISTS { ?r :has ?s })",
        "SELECT ?r (EXISTS { ?r :has ?s } AS ?e",
        "SELECT (EXISTS",
        "CONSTRUCT { ?s EXISTS",
        "DESCRIBE EXISTS",
    ],
)
def test_other_texts_are_unchanged(text: str) -> None:
    assert with_own_variables(text) == text


@contextmanager
def few_calls() -> Iterator[None]:
    """Raises AssertionError for too many calls of functions: a loop that does not end."""
    left = CALLS_MAX

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal left
        left -= event == "call"
        assert left, "it does not end"

    sys.setprofile(counted)
    try:
        yield
    finally:
        sys.setprofile(None)


MODIFIED = (
    "SELECT ?x (COUNT(*) AS ?n) { ?x ?p ?y FILTER EXISTS { ?x <a:b> ?z } } GROUP BY ?x (STR(?y) AS ?k) "
    "HAVING <a:f>(?x) (COUNT(?y) > 1) ORDER BY DESC(?n) ASC <a:f>(?x) LIMIT 3 OFFSET 2 VALUES ?x { 1 2 }"
)


@each_row("name, count, text", [*texts(QUERIES, (2,)), *texts(UPDATES, (2,)), ("modifiers", 1, MODIFIED)])
def test_a_text_that_breaks_off_anywhere_is_read_to_its_end(name: str, count: int, text: str) -> None:
    """It is read before the store says whether it is one."""
    found = list(tokens(text))
    for position in range(len(found)):
        broken = text[: found[position].start]
        with few_calls():
            with_own_variables(f"{broken} EXISTS")
            with_own_variables(broken.replace("{", "{ FILTER EXISTS { ?s ?p ?o } ", 1))
