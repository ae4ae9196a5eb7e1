"""Groups of very many parts are trees as deep; what looks at them does not recurse so deep."""

from __future__ import annotations

import pytest

from lamplighter.engine.sparql.exists_variables import with_own_variables

COUNT = 3_000
PARTS = {
    "lists": "?s <urn:p> (1) .",
    "blank nodes": "?s <urn:p> [ <urn:q> ?x ] .",
    "paths": "?s (<urn:p>/<urn:q>)* ?x .",
    "optional paths": "?s <urn:p>? ?x .",
}


@pytest.mark.parametrize("part", list(PARTS.values()), ids=list(PARTS))
def test_variables_of_exists_are_found_in_groups_of_many_parts(part: str) -> None:
    inner = f"{{ {{ ?s <urn:p> 1 }} {part * COUNT} FILTER EXISTS {{ ?s <urn:p> ?other }} }}"
    text = f"SELECT * {{ ?other <urn:p> 1 . {inner} }}"
    assert with_own_variables(text).count("?other_") == 1
