"""Expressions over rows of terms, evaluated by pyoxigraph and by Spark."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyoxigraph as ox

from lamplighter.cloud_sync.fleet.sparql.expression_tree import Tree, expression_tree
from lamplighter.engine.sparql.algebra import Constant, Expression, Variable, walk
from lamplighter.engine.sparql.cursor import constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.requests import canonical

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIXES = "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> "
VARIABLES = ("a", "b", "c")

_NUMBERS = {
    "integer": "0 1 -1 2 3 7 10 18 42 100 1000 9007199254740993 16777217 9223372036854775807 -9223372036854775808",
    "decimal": "0.5 -0.5 1.5 2.5 -2.5 -2.51 0.1 0.3 3.333 1234.5678 0.000000000000000001 9999999999999999999.5 1.1",
    "double": "0 -0 1 -1 0.1 0.5 -0.5 1.5 2.5 -2.5 1e300 1e-10 1e7 12345678.9 1e-320 9007199254740992 INF -INF NaN",
    "float": "0 -0 1 0.1 1.5 -2.5 16777216 3e38 1e-40 INF NaN 12345.678",
}
_ILL_TYPED = {
    "integer": "abc|1.5| 1|1 |99999999999999999999|1e5|",
    "decimal": "1e5|abc|.|0.1234567890123456789",
    "double": "1d|0x10|abc| 1|1f",
    "boolean": "abc|TRUE|",
    "dateTime": "2026-13-01T00:00:00Z|2026-01-01|2026-02-30T00:00:00Z|abc|2026-01-01T25:00:00|2026-1-1T1:2:3Z",
    "date": "2026-02-30|abc",
}
_TIMES = """
    2026-01-01T00:00:00Z 2026-01-01T00:00:00 2026-01-01T10:00:00Z 2026-01-01T02:00:00+02:00 2026-01-02T00:00:00Z
    2025-12-31T12:00:00-05:30 2026-01-01T00:00:00.5Z 2026-01-01T00:00:00.123456789Z 2026-01-01T00:00:00.1234567Z
    1969-12-31T23:59:59Z 2024-02-29T12:30:45.25Z 1900-03-01T00:00:00Z -0001-01-01T00:00:00Z 12026-01-01T00:00:00Z
    0001-01-01T00:00:00Z 9999-12-31T23:59:59.999999Z 2026-01-01T00:00:00+14:00 2026-06-15T23:59:59-00:30
""".split()  # noqa: SIM905
_STRINGS = (
    *(
        "",
        "a",
        "b",
        "ab",
        "abc",
        "ABC",
        "x",
        "1",
        "1.5",
        "-7",
        "true",
        "1e5",
        "INF",
        "nan",
        " 1",
        "0x1",
        "en",
        "en-US",
        "*",
    ),
    *(
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.50+00:00",
        "http://example.org/a",
        "a b*~é/?#[]",
        "#x",
        "@en",
        '"@en',
    ),
    *(
        'quote " and \\ slash',
        "tab\tnew\nline\rreturn",
        "\b\f\x07\x7f\x00",
        "\ufffe\uffff",
        "😀é",
        "ßﬁ ΑΣ İı",
        "e\u0301",
    ),
)
_TAGGED = (
    ("a", "en"),
    ("b", "en"),
    ("abc", "en"),
    ("abc", "de"),
    ("", "en"),
    ("a", "en-US"),
    ('q"', "fr"),
    ("É", "fr"),
)
_IRIS = ("http://example.org/a", "http://example.org/b", "urn:x", "a:b#c", "http://example.org/é")
_OTHERS = (("a", "urn:t"), ("b", "urn:t"), ("1", "urn:t"), ("a", "urn:u"))
XSD = "http://www.w3.org/2001/XMLSchema#"


def corpus() -> list[ox.Literal | ox.NamedNode | ox.BlankNode]:
    """Terms of all kinds, many of them at a boundary."""
    found: list[ox.Literal | ox.NamedNode | ox.BlankNode] = []
    for name, texts in _NUMBERS.items():
        found += [ox.Literal(text, datatype=ox.NamedNode(XSD + name)) for text in texts.split()]
    for name, ill in _ILL_TYPED.items():
        found += [ox.Literal(text, datatype=ox.NamedNode(XSD + name)) for text in ill.split("|")]
    found += [ox.Literal(text, datatype=ox.NamedNode(XSD + "dateTime")) for text in _TIMES]
    found += [
        ox.Literal(text, datatype=ox.NamedNode(XSD + "date"))
        for text in ("2026-01-01", "2026-01-01Z", "2026-01-02", "2026-01-01+02:00", "-0001-05-05")
    ]
    found += [ox.Literal(text, datatype=ox.NamedNode(XSD + "boolean")) for text in ("true", "false")]
    found += [ox.Literal(text) for text in _STRINGS]
    found += [ox.Literal(text, language=tag) for text, tag in _TAGGED]
    found += [ox.Literal(text, datatype=ox.NamedNode(name)) for text, name in _OTHERS]
    found += [ox.NamedNode(text) for text in _IRIS]
    found += [ox.BlankNode("b0"), ox.BlankNode("b1")]
    return found


Rows = list[tuple[str | None, ...]]


def in_store(rows: Sequence[Sequence[object]]) -> tuple[ox.Store, Rows]:
    """A store with a resource for each row, and the rows as N-Triples texts in the store's form."""
    store = ox.Store()
    for number, row in enumerate(rows):
        subject = ox.NamedNode(f"urn:row:{number}")
        store.add(ox.Quad(subject, ox.NamedNode("urn:p:row"), ox.Literal(number)))
        for name, term in zip(VARIABLES, row, strict=True):
            if term is not None:
                store.add(ox.Quad(subject, ox.NamedNode(f"urn:p:{name}"), term))
    texts: Rows = [()] * len(rows)
    for solution in store.query(_query("?a ?b ?c")):
        texts[int(solution["i"].value)] = tuple(_text(solution[name]) for name in VARIABLES)
    return store, texts


def _query(projection: str) -> str:
    optional = " ".join(f"OPTIONAL {{ ?s <urn:p:{name}> ?{name} }}" for name in VARIABLES)
    return f"{PREFIXES} SELECT ?i {projection} {{ ?s <urn:p:row> ?i {optional} }}"


def _text(term: object) -> str | None:
    return None if term is None else str(term)


def by_store(store: ox.Store, expression: str, count: int) -> list[str | None]:
    """The expression's term for each row, None for an error."""
    found: list[str | None] = [None] * count
    for solution in store.query(_query(f"(({expression}) AS ?r)")):
        found[int(solution["i"].value)] = _text(solution["r"])
    return found


def tree_and_constants(expression: str) -> tuple[Tree, list[str]]:
    text = f"SELECT (({expression}) AS ?r) {{}}"
    found = list(tokens(text))
    constants = [
        canonical(PREFIXES, text[found[first].start : found[end - 1].end]) for first, end in constant_spans(found)
    ]
    algebra = read_select(found, lambda raw: canonical("", raw))
    (tree,) = (expression_tree(node, constants) for node in walk(algebra.node) if isinstance(node, Expression))
    return tree, constants


def by_spark(
    spark: SparkSession, rows: Rows, expressions: Sequence[str], conditions: Sequence[str] = ()
) -> tuple[list[list[str | None]], list[list[bool | None]]]:
    """The terms of expressions, and the effective boolean values of conditions, for each row. One job."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    from lamplighter.cloud_sync.fleet.sparql.expressions import Expressions

    trees = [tree_and_constants(expression) for expression in (*expressions, *conditions)]
    constants = [text for _, found in trees for text in found]
    names = ("i", *VARIABLES, "constants")
    table = zip(names, (range(len(rows)), *zip(*rows, strict=True), [constants] * len(rows)), strict=True)
    types = {"i": pa.int32(), **dict.fromkeys(VARIABLES, pa.string()), "constants": pa.list_(pa.string())}
    frame = spark.createDataFrame(pa.table({name: pa.array(values, types[name]) for name, values in table}))
    columns, first = [F.col("i")], 0
    for number, (tree, own) in enumerate(trees):

        def term(part: Variable | Constant, first: int = first) -> F.Column:
            return F.col(part.name) if isinstance(part, Variable) else F.col("constants")[first + part.number]

        compiled = Expressions(term)
        column = compiled.term(tree) if number < len(expressions) else compiled.condition(tree)
        columns.append(column.alias(f"r{number}"))
        first += len(own)
    found = sorted(frame.select(*columns).collect(), key=lambda row: row["i"])
    results = [[row[f"r{number}"] for row in found] for number in range(len(trees))]
    return results[: len(expressions)], results[len(expressions) :]


def condition_by_store(store: ox.Store, expression: str, count: int) -> list[bool | None]:
    texts = by_store(store, f"IF(({expression}), true, false)", count)
    return [None if text is None else text.startswith('"true"') for text in texts]


def random_rows(source: random.Random, terms: Sequence[object], count: int) -> list[tuple[object, ...]]:
    """Rows of terms, a few of them unbound. Every other row has terms that are close in the corpus: of one kind."""
    rows = []
    for number in range(count):
        at = source.randrange(len(terms))
        row = [
            terms[(at + source.randrange(12)) % len(terms)] if number % 2 else source.choice(terms) for _ in VARIABLES
        ]
        rows.append(tuple(None if source.random() < 0.03 else term for term in row))
    return rows


_CONSTANTS = (
    "1",
    "2.5",
    "10",
    "0",
    "'a'",
    "'abc'@en",
    "<http://example.org/a>",
    "'2026-01-01T00:00:00Z'^^xsd:dateTime",
)


def random_term(source: random.Random, depth: int) -> str:
    """An expression of any type."""
    if depth == 0:
        return source.choice([*(f"?{name}" for name in VARIABLES * 2), *_CONSTANTS])
    below = [random_term(source, depth - 1) for _ in range(2)]
    kind = source.randrange(8)
    if kind == 0:
        return f"if({random_condition(source, depth - 1)}, {below[0]}, {below[1]})"
    if kind == 1:
        return f"coalesce({below[0]}, {below[1]})"
    if kind == 2:
        return source.choice(("datatype({})", "lang({})", "strlang({}, 'en')", "year({})", "tz({})")).format(below[0])
    if kind <= 4:
        return random_text(source, depth)
    return random_number(source, depth)


def random_number(source: random.Random, depth: int) -> str:
    """A number, mostly. What is subtracted from is no time, since durations are not compiled."""
    if depth == 0 or source.random() < 0.2:
        return source.choice(("?a", "?b", "strlen(?a)", "xsd:double(?b)", "xsd:decimal(?a)", "3", "0.25"))
    left, right = (random_number(source, depth - 1) for _ in range(2))
    sign = source.choice("+-*/ar")
    if sign in "ar":
        return f"{'abs' if sign == 'a' else 'round'}({left})"
    return f"(0 + {left} - {right})" if sign == "-" else f"({left} {sign} {right})"


def random_text(source: random.Random, depth: int) -> str:
    """A string, mostly."""
    if depth == 0 or source.random() < 0.2:
        return source.choice(("?a", "str(?b)", "'ab'", "?c"))
    inner = random_text(source, depth - 1)
    other = random_text(source, depth - 1)
    shape = ("ucase({0})", "concat({0}, {1})", "strafter({0}, {1})", "strbefore({0}, {1})", "substr({0}, 2)")
    return source.choice(shape).format(inner, other)


def random_condition(source: random.Random, depth: int) -> str:
    """A boolean. No constants beside ``||`` and ``&&``, which Oxigraph drops without a look at the other side."""
    kind = source.randrange(7) if depth else 6
    if kind <= 1:
        parts = [random_condition(source, depth - 1) for _ in range(2)]
        return f"({parts[0]} {source.choice(('||', '&&'))} {parts[1]})"
    if kind == 2:
        return f"!({random_condition(source, depth - 1)})"
    if kind == 3:
        return f"contains({random_text(source, depth - 1)}, {random_text(source, 0)})"
    if kind == 4:
        return (
            f"({random_number(source, depth - 1)} {source.choice(('<', '>=', '=', '!='))} {random_number(source, 1)})"
        )
    if kind == 5:
        return f"({random_term(source, depth - 1)} in (?b, {random_term(source, 0)}))"
    sign = source.choice(("<", "<=", "=", "!=", ">"))
    return f"({random_term(source, 0)} {sign} ?{source.choice(VARIABLES)})"


_ROUNDED = re.compile(r'"([^"\\]*)"\^\^<http://www\.w3\.org/2001/XMLSchema#(float|double)>')


def _equal(want: object, got: object) -> bool:
    """Whether two results are equal; the last digit of a float or double may differ (`numbers._rust_text`)."""
    if want == got or not isinstance(want, str) or not isinstance(got, str):
        return want == got
    found = [_ROUNDED.fullmatch(term) for term in (want, got)]
    if found[0] is None or found[1] is None or found[0][2] != found[1][2]:
        return False
    form = "f" if found[0][2] == "float" else "d"
    first, second = (struct.pack(form, float(match[1])) for match in found if match)
    return first == second


def differences(
    rows: Rows, expression: str, expected: Iterable[object], found: Iterable[object]
) -> list[tuple[object, ...]]:
    return [
        (expression, row, f"expected {want}", f"found {got}")
        for row, want, got in zip(rows, expected, found, strict=True)
        if not _equal(want, got)
    ]
