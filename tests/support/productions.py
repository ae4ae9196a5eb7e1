"""Texts of every production of the SPARQL grammar (SPARQL 1.1 Query and Update, 19.8), n wide or n deep.

Used by tests of what a short text may cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Sized = Callable[[int], str]
"""n -> the text."""


def _each(count: int, piece: str, between: str = " ") -> str:
    """The piece count times, with the number of each in place of #."""
    return between.join(piece.replace("#", str(number)) for number in range(count))


def _deep(opening: str, inner: str, closing: str) -> Sized:
    return lambda count: opening * count + inner + closing * count


def _wide(piece: str, between: str = " ", around: str = "%") -> Sized:
    return lambda count: around.replace("%", _each(count, piece, between))


_FILTER = "?s ?p ?o FILTER(%)"

PATTERNS: dict[str, Sized] = {
    "triples": _wide("?s# <urn:q> ?o ."),
    "predicates": _wide("<urn:p#> ?o#", ";", "?s %"),
    "objects": _wide("?o#", ",", "?s <urn:q> %"),
    "list": _wide("#", " ", "?s <urn:q> (%)"),
    "list of variables": _wide("?v#", " ", "?s <urn:q> (%)"),
    "blank nodes": _wide("[] <urn:p> # ."),
    "nested blank nodes": lambda count: f"?s ?p {_deep('[ <urn:p> ', '1', ']')(count)}",
    "nested lists": lambda count: f"?s ?p {_deep('(', '1', ')')(count)}",
    "sequence": _wide("<urn:p#>", "/", "?s % ?o"),
    "alternative": _wide("<urn:p#>", "|", "?s % ?o"),
    "negated": _wide("<urn:p#>", "|", "?s !(%) ?o"),
    "nested path": lambda count: f"?s {_deep('(', '<urn:p>', ')*')(count)} ?o",
    "nested inverse": lambda count: f"?s {_deep('^(', '<urn:p>', ')')(count)} ?o",
    "paths": _wide("?s# <urn:p>* ?o# ."),
    "OPTIONAL": _wide("OPTIONAL { ?s <urn:p#> ?o# }", " ", "?s <urn:q> ?o %"),
    "nested OPTIONAL": _deep("OPTIONAL { ?s <urn:q> ?o ", "", "}"),
    "MINUS": _wide("MINUS { ?s <urn:p#> ?o# }", " ", "?s <urn:q> ?o %"),
    "nested MINUS": _deep("?s ?p ?o MINUS { ", "?s ?p ?o", "}"),
    "UNION": _wide("{ ?s <urn:p#> ?o }", " UNION "),
    "nested UNION": _deep("{ ?s ?p ?o } UNION { ", "?s ?p ?o", "}"),
    "GRAPH": _wide("GRAPH <urn:g#> { ?s <urn:p> ?o }"),
    "GRAPH with a variable": _wide("GRAPH ?g# { ?s <urn:p> ?o }"),
    "nested GRAPH": _deep("GRAPH ?g { ?s <urn:p> ?o ", "", "}"),
    "empty groups": _wide("{}"),
    "groups": _wide("{ ?s# ?p ?o }"),
    "nested groups": _deep("{ ?s ?p ?o ", "", "}"),
    "FILTER": _wide("FILTER(?o != #)", " ", "?s ?p ?o %"),
    "BIND": _wide("BIND(?o + # AS ?b#)", " ", "?s ?p ?o %"),
    "&&": _wide("?o != #", "&&", _FILTER),
    "||": _wide("?o = #", "||", _FILTER),
    "&& of ||": _wide("(?o = # || ?s = #)", "&&", _FILTER),
    "+": _wide("?o", "+", "?s ?p ?o FILTER(% > 0)"),
    "*": _wide("?o", "*", "?s ?p ?o FILTER(% > 0)"),
    "IN": _wide("#", ",", "?s ?p ?o FILTER(?o IN (%))"),
    "IN of expressions": _wide("?o + #", ",", "?s ?p ?o FILTER(?o IN (%))"),
    "CONCAT": _wide('"#"', ",", '?s ?p ?o FILTER(CONCAT(%) != "")'),
    "COALESCE": _wide("?o#", ",", '?s ?p ?o FILTER(COALESCE(%) != "")'),
    "nested IF": lambda count: _FILTER.replace("%", _deep("IF(?o, 1, ", "1", ")")(count)),
    "nested brackets": lambda count: _FILTER.replace("%", _deep("(", "?o", ")")(count)),
    "nested !": lambda count: _FILTER.replace("%", _deep("!(", "?o", ")")(count)),
    "nested -": lambda count: _FILTER.replace("%", _deep("-(", "?o", ")")(count)),
    "nested STR": lambda count: _FILTER.replace("%", _deep("STR(", "?o", ")")(count) + ' != ""'),
    "EXISTS": _wide("FILTER EXISTS { ?s <urn:p#> ?o }", " ", "?s ?p ?o %"),
    "nested EXISTS": lambda count: f"?s ?p ?o {_deep('FILTER EXISTS { ?s ?p ?o ', '', '}')(count)}",
    "|| of EXISTS": _wide("EXISTS { ?s <urn:p#> ?o }", "||", _FILTER),
    "VALUES": _wide("#", " ", "?s ?p ?o VALUES ?o { % }"),
    "VALUES with rows": _wide("(# <urn:#>)", " ", "?s ?p ?o VALUES (?o ?s) { % }"),
    "blocks of VALUES": _wide("VALUES ?x# { # }", " ", "?s ?p ?o %"),
    "VALUES with columns": lambda count: f"?s ?p ?o VALUES ({_each(count, '?x#')}) {{ ({_each(count, '#')}) }}",
    "sub-selects": _wide("{ SELECT ?s { ?s ?p ?o } }"),
    "nested sub-selects": _deep("{ SELECT * { ?s ?p ?o ", "", "} }"),
    "nested groupings": _deep("{ SELECT ?s (COUNT(*) AS ?n) { ?s ?p ?o ", "", "} GROUP BY ?s }"),
    "nested triple terms": lambda count: f"{_deep('<<( ?s ?p ', '?o', ')>>')(count)} ?q ?r",
    "reified triples": _wide("<< ?s <urn:p#> ?o >> <urn:q> # ."),
    "annotations": _wide("{| <urn:p#> # |}", " ", "?s ?p ?o %"),
    "nested annotations": lambda count: f"?s ?p ?o {_deep('{| <urn:p> 1 ', '', '|}')(count)}",
}
"""What stands between the braces of a WHERE."""


def _selecting(pattern: Sized) -> Sized:
    return lambda count: f"SELECT * {{ {pattern(count)} }}"


def _inserting(pattern: Sized) -> Sized:
    return lambda count: f"INSERT {{ ?s <urn:made> 1 }} WHERE {{ {pattern(count)} }}"


_GROUPED = "SELECT (COUNT(*) AS ?n) { ?s ?p ?o } GROUP BY "

QUERIES: dict[str, Sized] = {
    **{name: _selecting(pattern) for name, pattern in PATTERNS.items()},
    "projected expressions": _wide("(?o + # AS ?x#)", " ", "SELECT % { ?s ?p ?o }"),
    "projected variables": _wide("?x#", " ", "SELECT % { ?s ?p ?o }"),
    "aggregates": _wide("(SUM(?o + #) AS ?x#)", " ", "SELECT % { ?s ?p ?o }"),
    "GROUP_CONCAT": _wide('(GROUP_CONCAT(?o; SEPARATOR="#") AS ?x#)', " ", "SELECT % { ?s ?p ?o }"),
    "GROUP BY expressions": _wide("(?o + # AS ?x#)", " ", f"{_GROUPED}%"),
    "GROUP BY variables": _wide("?x#", " ", f"{_GROUPED}%"),
    "HAVING": _wide("(COUNT(?o) > #)", " ", f"{_GROUPED}?s HAVING %"),
    "HAVING with &&": _wide("COUNT(?o) > #", "&&", f"{_GROUPED}?s HAVING (%)"),
    "ORDER BY": _wide("(?o + #)", " ", "SELECT * { ?s ?p ?o } ORDER BY %"),
    "ORDER BY with LIMIT": _wide("(?o + #)", " ", "SELECT * { ?s ?p ?o } ORDER BY % LIMIT 3"),
    "FROM": _wide("FROM <urn:g#>", " ", "SELECT * % { ?s ?p ?o }"),
    "FROM NAMED": _wide("FROM NAMED <urn:g#>", " ", "SELECT * % { GRAPH ?g { ?s ?p ?o } }"),
    "PREFIX": _wide("PREFIX p#: <urn:#>", " ", "% SELECT * { ?s ?p ?o }"),
    "BASE": _wide("BASE <urn:#>", " ", "% SELECT * { ?s ?p <a> }"),
    "VALUES at the end": _wide("#", " ", "SELECT * { ?s ?p ?o } VALUES ?o { % }"),
    "CONSTRUCT": _wide("?s <urn:p#> ?o .", " ", "CONSTRUCT { % } WHERE { ?s ?p ?o }"),
    "CONSTRUCT WHERE": _wide("?s <urn:p#> ?o .", " ", "CONSTRUCT WHERE { % }"),
    "ASK": _wide("?s <urn:p#> ?o .", " ", "ASK { % }"),
    "DESCRIBE": _wide("<urn:#>", " ", "DESCRIBE %"),
}

UPDATES: dict[str, Sized] = {
    **{name: _inserting(pattern) for name, pattern in PATTERNS.items()},
    "operations": _wide("INSERT DATA { <urn:s#> <urn:p> # }", ";"),
    "modifications": _wide("DELETE { ?s <urn:p#> ?o } INSERT { ?s <urn:p> # } WHERE { ?s <urn:p#> ?o }", ";"),
    "DELETE WHERE": _wide("?s <urn:p#> ?o .", " ", "DELETE WHERE { % }"),
    "template": _wide("?s <urn:p#> ?o .", " ", "INSERT { % } WHERE { ?s ?p ?o }"),
    "data": _wide("<urn:s> <urn:p#> # .", " ", "INSERT DATA { % }"),
    "list as data": _wide("#", " ", "INSERT DATA { <urn:s> <urn:p> (%) }"),
    "graphs of data": _wide("GRAPH <urn:g#> { <urn:s> <urn:p> # }", " ", "INSERT DATA { % }"),
    "USING": _wide("USING <urn:g#>", " ", "INSERT { ?s <urn:p> 1 } % WHERE { ?s ?p ?o }"),
    "CLEAR": _wide("CLEAR SILENT GRAPH <urn:g#>", ";"),
}


def texts(productions: dict[str, Sized], counts: Iterable[int]) -> Iterable[tuple[str, int, str]]:
    """(production, n, text) of each production in each size."""
    sizes = list(counts)
    return ((name, count, text(count)) for name, text in productions.items() for count in sizes)
