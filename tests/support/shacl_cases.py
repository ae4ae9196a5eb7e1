"""Random shapes and data for the oracle of validation. All shapes have names, which tell their results apart."""

from __future__ import annotations

import random

E = "http://e.example/"
PREFIXES = {
    "": E,
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "sh": "http://www.w3.org/ns/shacl#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "gateway": "http://lamplighter.example/ns/gateway#",
}
THINGS = [f":i{number}" for number in range(4)]
CLASSES = [f":C{number}" for number in range(3)]
PROPERTIES = [f":p{number}" for number in range(4)]
NUMBERS = ["1", "2", "7", "2.5", "3.0e0"]
LITERALS = [
    *NUMBERS,
    '"a"',
    '"abc"',
    '"a b"',
    '"a"@en',
    '"b"@en-us',
    '"c"@de',
    '"d"@en',
    "true",
    '"x"^^xsd:integer',
    '"2026-02-30T00:00:00Z"^^xsd:dateTime',
    '"2026-02-03T04:05:06Z"^^xsd:dateTime',
]
AMOUNTS = [":n0", ":n1"]
"""Properties with numbers only, and the only ones that are compared: pySHACL also orders IRIs, booleans and texts that
are no numbers, which SPARQL does not, and fails for blank nodes."""
LANGUAGES = ["'en'", "'de' 'en-us'", "'*'"]
_NESTED_MAX = 2


class ShapesWriter:
    """Writes the shapes of one case. nests: whether a value node is a focus node of a property shape's property shape,
    so that equal results may have different targets."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = 0
        self._texts: list[str] = []
        self.nests = False

    def document(self) -> str:
        for _ in range(self._chance.randint(1, 3)):
            self.shape(0, root=True)
        prefixes = "".join(f"@prefix {name}: <{iri}> .\n" for name, iri in PREFIXES.items())
        return prefixes + "\n".join(self._texts) + "\n"

    def one(self, *members: str) -> str:
        return self._chance.choice(members)

    def shape(self, depth: int, *, root: bool = False, path: bool | None = None) -> str:
        """Writes a shape, and returns its name."""
        self._count += 1
        name, chance = f":S{self._count}", self._chance
        has_path = chance.random() < (0.2 if root else 0.4) if path is None else path
        lines = [f"a sh:{'PropertyShape' if has_path else 'NodeShape'}"]
        if has_path and chance.random() < 0.15:
            kind = self.one("minInclusive", "minExclusive", "maxInclusive", "maxExclusive")
            compares = self.one(
                f"lessThan {AMOUNTS[1]}", f"lessThanOrEquals {AMOUNTS[1]}", f"{kind} {self.one('1', '2.5')}"
            )
            lines += [f"sh:path {AMOUNTS[0]}", f"sh:{compares}"]
        elif has_path:
            lines.append(f"sh:path {self.path(0)}")
        if root:
            lines += [self.target() for _ in range(chance.randint(1, 2))]
            if chance.random() < 0.1:
                lines.append("a rdfs:Class")
                self._texts.append(f"{name} a rdfs:Class .")
        if chance.random() < 0.2:
            lines.append(f"sh:severity sh:{self.one('Warning', 'Info', 'Violation')}")
        if chance.random() < 0.05:
            lines.append("sh:deactivated true")
        once = set()
        for _ in range(chance.randint(0 if root else 1, 3)):
            text = self.constraint(depth, has_path)
            parameter = text.split()[0]
            if parameter not in once:
                once.add(parameter)
                lines.append(text)
        if depth < _NESTED_MAX and chance.random() < (0.9 if root and not has_path else 0.3):
            self.nests |= has_path
            for _ in range(chance.randint(1, 2)):
                lines.append(f"sh:property {self.shape(depth + 1, path=True)}")
        self._texts.append(f"{name} {' ; '.join(lines)} .")
        return name

    def target(self) -> str:
        kind = self.one("targetClass", "targetClass", "targetNode", "targetSubjectsOf", "targetObjectsOf")
        names = {"targetClass": CLASSES, "targetNode": [*THINGS, "1"]}.get(kind, PROPERTIES)
        return f"sh:{kind} {self.one(*names)}"

    def path(self, depth: int) -> str:
        if depth > 1 or self._chance.random() < 0.6:
            return self.one(*PROPERTIES)
        inner, other = self.path(depth + 1), self.path(depth + 1)
        step = self.one(*PROPERTIES)
        return self.one(
            f"[ sh:inversePath {step if '( ' in inner else inner} ]",  # pySHACL does not reverse a sequence
            f"( {inner} {other} )",
            f"[ sh:alternativePath ( {inner} {other} ) ]",
            f"[ sh:zeroOrMorePath {inner} ]",
            f"[ sh:oneOrMorePath {inner} ]",
            f"[ sh:zeroOrOnePath {inner} ]",
        )

    def constraint(self, depth: int, has_path: bool) -> str:
        one, chance = self.one, self._chance
        number = str(chance.randint(0, 2))
        found = [
            f"sh:class {one(*CLASSES)}",
            f"sh:datatype xsd:{one('integer', 'string', 'dateTime', 'decimal')}",
            f"sh:datatype {one('rdf:langString', 'xsd:boolean', 'xsd:double')}",
            f"sh:nodeKind sh:{one('IRI', 'BlankNode', 'Literal', 'BlankNodeOrIRI', 'IRIOrLiteral')}",
            f"sh:{one('minLength', 'maxLength')} {one('1', '2', '21')}",
            f"sh:pattern '{one('^a', 'b$', '[0-9]', 'e/i', 'a.*b')}'",
            "sh:pattern 'A' ; sh:flags 'i'",
            f"sh:languageIn ( {one(*LANGUAGES)} )",
            f"sh:in ( {' '.join(chance.sample([*THINGS, *LITERALS], 5))} )",
            f"sh:hasValue {one(*THINGS, *NUMBERS)}",
            f"sh:{one('equals', 'disjoint')} {one(*PROPERTIES)}",
        ]
        if chance.random() < 0.1:
            return f"sh:closed true ; sh:ignoredProperties ( rdf:type {one(*PROPERTIES)} )"
        if has_path:
            found += [
                f"sh:minCount {number}",
                f"sh:maxCount {number}",
                f"sh:minCount {number}",
                f"sh:maxCount {number}",
                "sh:uniqueLang true",
            ]
            if depth < _NESTED_MAX:
                limit = one("qualifiedMinCount", "qualifiedMaxCount")
                disjoint = one("", " ; sh:qualifiedValueShapesDisjoint true")
                found.append(f"sh:qualifiedValueShape {self.shape(depth + 1)} ; sh:{limit} {number}{disjoint}")
        if depth < _NESTED_MAX and chance.random() < 0.3:
            if chance.random() < 0.3:
                return f"sh:node {self.shape(depth + 1, path=False)}"
            some = " ".join(self.shape(depth + 1) for _ in range(chance.randint(1, 2)))
            return one(f"sh:{one('and', 'or', 'xone')} ( {some} )", f"sh:not {some.split()[0]}")
        return one(*found)


def data_triple(chance: random.Random) -> str:
    """One triple of data."""
    one = chance.choice
    kind = chance.random()
    if kind < 0.3:
        return f"{one(THINGS)} a {one(CLASSES)}"
    if kind < 0.36:
        return f"{one(CLASSES)} rdfs:subClassOf {one(CLASSES)}"
    if kind < 0.4:
        return f"{one(THINGS)} {one(PROPERTIES)} [ {one(PROPERTIES)} {one(LITERALS)} ]"
    if kind < 0.5:
        return f"{one(THINGS)} {one(AMOUNTS)} {one(NUMBERS)}"
    if kind < 0.75:
        return f"{one(THINGS)} {one(PROPERTIES)} {one(THINGS)}"
    return f"{one(THINGS)} {one(PROPERTIES)} {one(LITERALS)}"


def update(chance: random.Random, graphs: list[str]) -> str:
    """A random update. graphs: ``""`` for the default graph, and ``GRAPH <...>`` for others."""
    prefixes = "".join(f"PREFIX {name}: <{iri}> " for name, iri in PREFIXES.items())
    graph, kind = chance.choice(graphs), chance.random()

    def within(text: str) -> str:
        return f"{graph} {{ {text} }}" if graph else text

    some = " . ".join(data_triple(chance) for _ in range(chance.randint(1, 4)))
    if kind < 0.55:
        return f"{prefixes} INSERT DATA {{ {within(some)} }}"
    s, p = chance.choice(THINGS), chance.choice([*PROPERTIES, "rdf:type"])
    if kind < 0.7:
        return f"{prefixes} DELETE {{ {within(f'{s} ?p ?o')} }} WHERE {{ {within(f'{s} ?p ?o')} }}"
    if kind < 0.8:
        return f"{prefixes} DELETE {{ {within(f'?s {p} ?o')} }} WHERE {{ {within(f'?s {p} ?o')} }}"
    if kind < 0.95:
        value = chance.choice([*THINGS, *LITERALS]) if p != "rdf:type" else chance.choice(CLASSES)
        gone, come = within(f"{s} {p} ?o"), within(f"{s} {p} {value}")
        return f"{prefixes} DELETE {{ {gone} }} INSERT {{ {come} }} WHERE {{ OPTIONAL {{ {gone} }} }}"
    return f"{prefixes} CLEAR SILENT {graph or 'DEFAULT'}"
