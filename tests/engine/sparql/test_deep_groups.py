"""Groups of very many parts are trees as deep: they are not read, since what looks at trees is recursive."""

from __future__ import annotations

import pytest

from lamplighter.engine.sparql.exists_variables import with_own_variables
from lamplighter.engine.sparql.grammar import LINKS_MAX

PARTS = {
    "lists": "?s <urn:p> (1) .",
    "blank nodes": "?s <urn:p> [ <urn:q> ?x ] .",
    "sequences": "?s <urn:p>/<urn:q> ?x .",
    "inverse paths": "?s ^<urn:q> ?x .",
    "alternatives": "?s <urn:p>|<urn:q> ?x .",
    "negated paths": "?s !<urn:q> ?x .",
    "repeated sequences": "?s (<urn:p>/<urn:q>)* ?x .",
    "optional paths": "?s <urn:p>? ?x .",
    "objects of a path": "?s <urn:p>? ?x, ?y, (1 2 3), [ <urn:p>* ?z ] .",
    "OPTIONAL": "OPTIONAL { ?s <urn:p> ?x }",
    "MINUS": "MINUS { ?s <urn:p> ?x }",
    "groups": "{ ?s <urn:p> ?x }",
    "UNION": "{ ?s <urn:p> ?x } UNION { ?s <urn:q> ?x }",
    "FILTER": "FILTER(?s > 1)",
    "VALUES": "VALUES ?s { 1 }",
    "sub-selects": "{ SELECT ?s { ?s <urn:p> ?x } }",
    "named graphs": "GRAPH ?g { ?s <urn:p>+ ?x }",
}


@pytest.mark.parametrize("part", list(PARTS.values()), ids=list(PARTS))
def test_variables_of_exists_are_found_in_few_parts_and_many_are_no_fault(part: str) -> None:
    for count in (LINKS_MAX // 6, 3_000):
        group = f"{{ ?s <urn:p> 1 . {part * count} FILTER EXISTS {{ ?s <urn:p> ?other }} }}"
        text = f"SELECT * {{ ?other <urn:p> 1 . GRAPH ?h {group} {group} }}"
        found = with_own_variables(text)
        assert found == text or found.count("?other_") == 2
    assert with_own_variables(text.replace(part * 3_000, part)) != text


def test_the_objects_of_one_path_are_many_nodes() -> None:
    text = (
        f"SELECT * {{ ?other <urn:p> 1 . {{ ?s <urn:p>? {'1, ' * 3_000} 1 FILTER EXISTS {{ ?s <urn:p> ?other }} }} }}"
    )
    assert with_own_variables(text) == text
