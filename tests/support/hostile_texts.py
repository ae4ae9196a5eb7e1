"""Requests that cost more than they look like: each class of fault once found, with a generator for its sisters.

A conversation is a list of steps for one connection, in order: what makes the data, what subscribes to it, and what
makes the gateway work. Every one of them is legal to send. The gateway may answer or refuse each step; it may not end,
stall or grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

_SPACE = "urn:hostile:"


class Step(NamedTuple):
    """kind: subscribe, query or update. more: further members of the message."""

    kind: str
    text: str
    more: Mapping[str, Any] = MappingProxyType({})


class Body(NamedTuple):
    """An RDF document for the graph store."""

    media_type: str
    data: bytes


class Costly:
    """Writes them from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def conversation(self) -> list[Step]:
        """One of a random class."""
        classes: Sequence[Callable[[], list[Step]]] = (
            self.constant_subjects,
            self.products,
            self.growing_terms,
            self.nested_terms,
            self.nested_calls,
            self.bindings_only,
            self.templates,
            self.paths,
            self.tokens,
            self.large_data,
            self.for_later,
        )
        return self._random.choice(classes)()

    def _name(self, kind: str) -> str:
        """A predicate of few: so that subscriptions of different conversations meet."""
        return f"<{_SPACE}{kind}{self._random.randrange(4)}>"

    def _sensors(self, predicate: str, count: int) -> Step:
        rows = " ".join(f"<{_SPACE}s{number}> {predicate} {number} ." for number in range(count))
        return Step("update", f"INSERT DATA {{ {rows} }}")

    def _touch(self, predicate: str) -> Step:
        subject = f"<{_SPACE}s{self._random.randrange(8)}>"
        value = self._random.randrange(1000)
        return Step(
            "update",
            f"DELETE {{ {subject} {predicate} ?o }} INSERT {{ {subject} {predicate} {value} }} "
            f"WHERE {{ {subject} {predicate} ?o }}",
        )

    def constant_subjects(self) -> list[Step]:
        """Many patterns that share no variable, told apart by their subjects: a dashboard's query."""
        random, predicate = self._random, self._name("value")
        patterns = [f"<{_SPACE}s{number}> {predicate} ?v{number}" for number in range(random.randrange(2, 9))]
        optional = f"<{_SPACE}s{random.randrange(60)}> {predicate} ?o"
        body = " . ".join(patterns)
        forms = (
            f"SELECT * {{ {body} OPTIONAL {{ {optional} }} }}",
            f"SELECT DISTINCT ?v0 {{ {body} OPTIONAL {{ {optional} }} }}",
            f"SELECT * {{ {body} FILTER EXISTS {{ {optional} }} }}",
            f"SELECT * {{ {body} FILTER NOT EXISTS {{ {optional} . ?x {predicate} ?o }} }}",
            f"SELECT * {{ {body} MINUS {{ <{_SPACE}s1> {predicate} ?v0 }} }}",
            f"SELECT (COUNT(*) AS ?n) {{ {body} }}",
            f"SELECT ?v0 (COUNT(?v1) AS ?n) {{ {body} }} GROUP BY ?v0",
            f"SELECT * {{ {{ SELECT ?v0 {{ {body} }} }} OPTIONAL {{ {optional} }} }}",
        )
        sensors = random.choice((20, 60, 300))
        return [
            self._sensors(predicate, sensors),
            Step("subscribe", random.choice(forms)),
            *(self._touch(predicate) for _ in range(random.randrange(1, 6))),
        ]

    def products(self) -> list[Step]:
        """Patterns that nothing joins, under a filter that no index serves."""
        random, predicate = self._random, self._name("many")
        condition = random.choice(
            (
                "CONTAINS(STR(?b), STR(?d))",
                "STRLEN(CONCAT(STR(?a), STR(?c), STR(?b))) < 3",
                "REGEX(STR(?a), CONCAT('.*', STR(?d), '.*x'))",
                "?b * ?d = -1",
                "STRBEFORE(STR(?a), STR(?c)) = 'x' || ?b = ?d + 100000",
            )
        )
        more = random.choice(("", f"?e {predicate} ?f .", f"?e {predicate} ?f . ?g {predicate} ?h ."))
        where = f"?a {predicate} ?b . ?c {predicate} ?d . {more} FILTER({condition})"
        rows = random.choice((60, 300))
        asked = random.choice(
            (
                Step("subscribe", f"SELECT * {{ {where} }}"),
                Step("subscribe", f"SELECT (COUNT(*) AS ?n) {{ {where} }}"),
                Step("query", f"SELECT * {{ {where} }}"),
                Step("update", f"INSERT {{ ?a <{_SPACE}met> ?c }} WHERE {{ {where} }}"),
                Step("update", f"DELETE {{ ?a {predicate} ?b }} WHERE {{ {where} }}"),
            )
        )
        return [self._sensors(predicate, rows), asked, self._touch(predicate), self._touch(predicate)]

    def growing_terms(self) -> list[Step]:
        """A literal that doubles, or grows ten times, with each update."""
        random, subject = self._random, f"<{_SPACE}long{self._random.randrange(3)}>"
        copies = random.choice((2, 10))
        grown = ", ".join(["?o"] * copies)
        expression = random.choice(
            (f"CONCAT({grown})", f"REPLACE(?o, '.', 'x{'x' * copies}')", "ENCODE_FOR_URI(CONCAT(?o, '%', ?o))")
        )
        grow = (
            f"DELETE {{ {subject} <{_SPACE}is> ?o }} INSERT {{ {subject} <{_SPACE}is> ?n }} "
            f"WHERE {{ {subject} <{_SPACE}is> ?o BIND({expression} AS ?n) }}"
        )
        first = Step("update", f"INSERT DATA {{ {subject} <{_SPACE}is> '{'x' * random.choice((1, 1000))}' }}")
        times = random.randrange(3, 24)
        return [
            first,
            *(Step("update", grow) for _ in range(times)),
            Step("update", f"DELETE WHERE {{ {subject} ?p ?o }}"),
        ]

    def nested_terms(self) -> list[Step]:
        """Triple terms within each other: at once, or a few levels with each update."""
        random, subject = self._random, f"<{_SPACE}deep{self._random.randrange(3)}>"
        depth = random.choice((3, 49, 51, 90, 190, 3000))
        term = "<<( <urn:s> <urn:p> " * depth + "1" + " )>>" * depth
        levels = random.choice((5, 40, 90))
        deeper = "<<( <urn:s> <urn:p> " * levels + "?o" + " )>>" * levels
        grow = (
            f"DELETE {{ {subject} <{_SPACE}says> ?o }} INSERT {{ {subject} <{_SPACE}says> {deeper} }} "
            f"WHERE {{ {subject} <{_SPACE}says> ?o }}"
        )
        watch = Step("subscribe", f"SELECT * {{ {subject} ?p ?o }}", random.choice(({}, {"resume": {"keep": "PT1S"}})))
        return [
            Step("update", f"INSERT DATA {{ {subject} <{_SPACE}says> {random.choice((term, '1'))} }}"),
            watch,
            *(Step("update", grow) for _ in range(random.randrange(1, 9))),
            Step("query", f"SELECT * {{ {subject} ?p ?o }}"),
            Step("update", f"DELETE WHERE {{ {subject} ?p ?o }}"),
        ]

    def _calls(self) -> str:
        """Functions within each other, each making its operand longer."""
        random = self._random
        text = f"'{'a' * random.choice((1, 30))}'"
        for _ in range(random.randrange(2, 9)):
            text = random.choice(
                (
                    f"REPLACE({text}, '.', 'aaaaaaaaaa')",
                    f"REPLACE({text}, '(a)', '$1$1$1$1$1')",
                    f"CONCAT({text}, {text})",
                    f"ENCODE_FOR_URI(CONCAT({text}, '% %'))",
                    f"STR(UCASE({text}))",
                )
            )
            if len(text) > 20_000:
                break
        return text

    def nested_calls(self) -> list[Step]:
        random, predicate = self._random, self._name("value")
        return [
            self._sensors(predicate, 20),
            random.choice(
                (
                    Step("subscribe", f"SELECT * {{ ?s {predicate} ?o BIND({self._calls()} AS ?x) }}"),
                    Step("subscribe", f"SELECT * {{ ?s {predicate} ?o FILTER(STRLEN({self._calls()}) = ?o) }}"),
                    Step(
                        "update",
                        f"INSERT {{ ?s <{_SPACE}x> ?x }} WHERE {{ ?s {predicate} ?o BIND({self._calls()} AS ?x) }}",
                    ),
                    Step("query", f"SELECT * {{ BIND({self._calls()} AS ?x) }}"),
                )
            ),
            self._touch(predicate),
        ]

    def bindings_only(self) -> list[Step]:
        """A WHERE without any pattern."""
        random = self._random
        rows = " ".join(str(number) for number in range(random.choice((10, 300))))
        values = " ".join(f"VALUES ?v{number} {{ {rows} }}" for number in range(random.randrange(1, 4)))
        return [
            Step("update", f"INSERT {{ <{_SPACE}b> <{_SPACE}b> ?x }} WHERE {{ BIND({self._calls()} AS ?x) }}"),
            Step("update", f"INSERT {{ <{_SPACE}b> <{_SPACE}b> ?v0 }} WHERE {{ {values} FILTER(?v0 < 0) }}"),
            Step("subscribe", f"SELECT ?v0 {{ {values} }}"),
            Step("update", f"DELETE WHERE {{ <{_SPACE}b> ?p ?o }}"),
        ]

    def templates(self) -> list[Step]:
        """Many quads from few rows."""
        random, predicate = self._random, self._name("many")
        triples = " . ".join(f"?a <{_SPACE}t{number}> ?c" for number in range(random.choice((1, 5, 50))))
        return [
            self._sensors(predicate, random.choice((60, 120))),
            Step("subscribe", f"SELECT * {{ <{_SPACE}s{random.randrange(8)}> <{_SPACE}t0> ?c }}"),
            Step("update", f"INSERT {{ {triples} }} WHERE {{ ?a {predicate} ?b . ?c {predicate} ?d }}"),
            Step("update", f"DELETE {{ ?a <{_SPACE}t0> ?c }} WHERE {{ ?a <{_SPACE}t0> ?c }}"),
            Step("update", f"DELETE {{ ?a ?p ?c }} WHERE {{ ?a ?p ?c FILTER(STRSTARTS(STR(?p), '{_SPACE}t')) }}"),
        ]

    def paths(self) -> list[Step]:
        """Reachability over a circle with chords."""
        random, predicate = self._random, self._name("next")
        size = random.choice((20, 150))
        edges = " ".join(
            f"<{_SPACE}n{number}> {predicate} <{_SPACE}n{(number * random.choice((1, 3)) + 1) % size}> ."
            for number in range(size)
        )
        path = random.choice(
            (f"{predicate}+", f"{predicate}*", f"({predicate}/{predicate})+", f"(^{predicate}|{predicate})*")
        )
        where = random.choice(
            (f"?a {path} ?b", f"?a {path} ?b . ?b {path} ?c", f"?a {path} ?b MINUS {{ ?b {path} ?a }}")
        )
        return [
            Step("update", f"INSERT DATA {{ {edges} }}"),
            random.choice((Step("subscribe", f"SELECT * {{ {where} }}"), Step("query", f"SELECT * {{ {where} }}"))),
            Step("update", f"DELETE DATA {{ <{_SPACE}n0> {predicate} <{_SPACE}n1> }}"),
            Step("update", f"INSERT DATA {{ <{_SPACE}n0> {predicate} <{_SPACE}n1> }}"),
        ]

    def tokens(self) -> list[Step]:
        """Texts that a careless expression reads again and again."""
        random = self._random
        part = random.choice(
            (
                *("a.", "a:b.", "x:%20", "x:\\-", "_:b.", "(", "[", "{", "<", "<<", "<<(", "'", '"', "'''", '"""a'),
                *(
                    "@en-",
                    "^^",
                    "1e",
                    "1.",
                    "+",
                    "-",
                    "!",
                    "?x",
                    "$",
                    "#",
                    "\\u00",
                    "\\",
                    "//",
                    "|",
                    "&&",
                    "..",
                    "a",
                    "\n",
                ),
                *("'a' ", "<a> ", "1 ", "?x ", "# a\n", "GRAPH ", "{}", "();", "\u00e9.", "\U0001f4a1", "\x00"),
            )
        )
        count = random.choice((300, 3_000, 30_000))
        text = part * count
        where = random.choice(("", "SELECT * { ?s ?p ", "INSERT DATA { <a> <b> ", "PREFIX a: <"))
        return [Step(random.choice(("subscribe", "query", "update")), where + text + random.choice(("", " }")))]

    def large_data(self) -> list[Step]:
        """Honest, and much of it: some thousand quads, now and then tens of thousands."""
        random = self._random
        count = random.choice((300, 3_000)) if random.random() < 0.95 else 60_000
        graph = f"<{_SPACE}large{random.randrange(2)}>"
        rows = " ".join(f"<{_SPACE}l{number}> <{_SPACE}p{number % 7}> {number} ." for number in range(count))
        return [
            Step("subscribe", f"SELECT * {{ GRAPH {graph} {{ <{_SPACE}l1> ?p ?o }} }}"),
            Step("update", f"INSERT DATA {{ GRAPH {graph} {{ {rows} }} }}"),
            Step(
                "update",
                random.choice(
                    (f"CLEAR GRAPH {graph}", f"DROP GRAPH {graph}", f"DELETE WHERE {{ GRAPH {graph} {{ ?s ?p ?o }} }}")
                ),
            ),
        ]

    def for_later(self) -> list[Step]:
        """Delayed updates, and times that are none."""
        random = self._random
        when = random.choice(
            (
                *(
                    {"delay": "PT0.001S"},
                    {"delay": "PT0S"},
                    {"delay": "-PT1S"},
                    {"delay": "P9999999Y"},
                    {"delay": "P" + "1" * 300 + "D"},
                ),
                *(
                    {"at": "garbage"},
                    {"at": "9999-12-31T23:59:59Z"},
                    {"at": "2026-01-01T00:00:00"},
                    {"at": "-0001-01-01T00:00:00Z"},
                ),
                {"delay": "PT1H", "request_id": "x" * random.choice((10, 100_000))},
            )
        )
        return [Step("update", f"INSERT DATA {{ <{_SPACE}later> <{_SPACE}b> {random.randrange(10)} }}", when)]

    def body(self) -> Body:
        """An RDF document."""
        random = self._random
        depth = random.choice((5, 60, 3_000, 20_000))
        nested = "<<( <urn:s> <urn:p> " * depth + "1" + " )>>" * depth
        entities = "".join(
            f'<!ENTITY e{n} "{"&e" + str(n - 1) + ";" if n else "lol"}{"&e" + str(n - 1) + ";" if n else ""}">'
            for n in range(24)
        )
        namespace = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:x="urn:x:"'
        deep = f"<rdf:RDF {namespace}>" + "<x:A><x:p>" * depth + "</x:p></x:A>" * depth + "</rdf:RDF>"
        bomb = f'<!DOCTYPE a [{entities}]><rdf:RDF {namespace}><x:A x:p="&e23;"/></rdf:RDF>'
        turtle = random.choice(
            (
                f"<urn:a> <urn:b> {nested} .",
                "[ <urn:p> " * depth + "1" + " ]" * depth + " .",
                f"<urn:a> <urn:b> {'(' * depth}{')' * depth} .",
                "<urn:a> <urn:b> '''" + "a" * 100_000,
                "@prefix a: <urn:a#> . " + "a:" * depth,
                "a." * depth,
                '<urn:a> <urn:b> "' + "\\u00e9" * depth + '" .',
            )
        )
        return random.choice(
            (
                Body("application/rdf+xml", deep.encode()),
                Body("application/rdf+xml", bomb.encode()),
                Body("application/rdf+xml", bomb.encode("utf-16")),
                Body("application/rdf+xml", random.randbytes(200)),
                Body("text/turtle", turtle.encode()),
                Body("application/trig", b"<urn:g> { " + turtle.encode()),
                Body("application/n-triples", f"<urn:a> <urn:b> {nested} .\n".encode()),
                Body("application/n-triples", b"<urn:a> <urn:b> <urn:c> .\n" * random.choice((10, 3_000))),
                Body("application/n-quads", f"<urn:a> <urn:b> {nested} <urn:g> .\n".encode()),
                Body("application/ld+json", b"[" * depth),
                Body("text/turtle", random.randbytes(200)),
            )
        )


RDF = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:p="http://p/">{}</rdf:RDF>'
LAUGHS = (
    "<!DOCTYPE r [<!ENTITY a 'ha'>"
    + "".join(f"<!ENTITY {name} '{f'&{before};' * 16}'>" for before, name in zip("abcdef", "bcdefg", strict=True))
    + "]>"
    + RDF.format("<rdf:Description><p:q>&g;</p:q></rdf:Description>")
)
DEEP = RDF.format("<rdf:Description><p:q>" * 300 + "</p:q></rdf:Description>" * 300)
