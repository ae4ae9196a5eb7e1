"""Random queries that join paths with comparisons with the clock, and edits of edges, classes and times."""

from __future__ import annotations

from random import Random

from tests.properties import path_cases
from tests.properties.path_cases import CLASSES, NODES, PathCodegen
from tests.properties.timed_texts import PREFIX, Step, Texts

_JOINED = ("?x", "?x", "?y", "?y", "?z")
"""Variables of the path that have a time, too."""


class TimedPaths:
    """Writes the steps of one case. The graphs are those of `path_cases`, the times those of `timed_texts`."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._paths = PathCodegen(self._random)
        self._times = Texts(seed)
        self._times.random = self._random

    def _one(self, *texts: str) -> str:
        return self._random.choice(texts)

    # --- updates ---

    def _quad(self) -> str:
        if self._random.random() < 0.35:
            name = self._one(":at", ":at", ":at", ":hold")
            value = self._times.time() if name == ":at" else self._times.duration()
            return f"{self._one(*NODES, *CLASSES[:1])} {name} {value} ."
        return self._paths.quad()

    def _quads(self, *counts: int) -> str:
        return " ".join(self._quad() for _ in range(self._random.choice(counts)))

    def update(self) -> str:
        node, kind = self._one(*NODES), self._one(*CLASSES)
        forms = (
            (self._paths.update().removeprefix(path_cases.PREFIX).replace("CLEAR", "CLEAR SILENT"), 6),
            (f"INSERT DATA {{ {self._quads(1, 2, 3)} }}", 5),
            (
                f"DELETE {{ {node} :at ?old }} INSERT {{ {node} :at {self._times.time()} }} "
                f"WHERE {{ OPTIONAL {{ {node} :at ?old }} }}",
                4,
            ),
            (f"DELETE WHERE {{ {node} :at ?t }}", 1),
            # a class moves below another one, and a part of the building goes with its times
            (f"DELETE WHERE {{ {kind} :sub ?c }} ; INSERT DATA {{ {kind} :sub {self._one(*CLASSES)} }}", 2),
            (f"DELETE WHERE {{ {node} ?p ?o }} ; DELETE WHERE {{ ?s ?p {node} }}", 1),
        )
        texts, weights = zip(*forms, strict=True)
        return PREFIX + self._random.choices(texts, weights)[0]

    # --- queries ---

    def _timed(self, subject: str) -> str:
        """A pattern with a time, and a FILTER that compares it with the clock."""
        if self._random.random() < 0.25:
            return f"{subject} :at ?t ; :hold ?d {self._times.conditions('td')}"
        return f"{subject} :at ?t {self._times.conditions('t')}"

    def query(self) -> str:
        path = self._paths.path_group()
        subject = self._one(*_JOINED)
        timed = self._timed(subject)
        inner = self._one(f"{subject} :p+ ?w . {self._timed('?w')}", timed)
        classes = f"?x a/:sub* {self._one(*CLASSES)}"
        text = self._one(
            f"SELECT * {{ {path} . {timed} }}",
            f"SELECT * {{ {path} . {timed} }}",
            f"SELECT ?x {{ {path} . {timed} }}",
            f"SELECT DISTINCT ?x {{ {path} . {timed} }}",
            f"SELECT * {{ {classes} . {self._timed('?x')} }}",
            f"SELECT * {{ {classes} . ?x :p* ?y . {self._timed('?y')} }}",
            f"SELECT * {{ {path} OPTIONAL {{ {timed} }} }}",
            f"SELECT * {{ {timed} OPTIONAL {{ {path} }} }}",
            f"SELECT * {{ {path} MINUS {{ {inner} }} }}",
            f"SELECT * {{ {path} FILTER NOT EXISTS {{ {inner} }} }}",
            f"SELECT * {{ {path} FILTER EXISTS {{ {inner} }} }}",
            f"SELECT * {{ {{ {path} }} UNION {{ {inner} }} }}",
            f"SELECT ?x (COUNT(*) AS ?count) {{ {path} . {timed} }} GROUP BY ?x",
            f"SELECT (COUNT(*) AS ?count) (COUNT(DISTINCT ?x) AS ?several) {{ {path} . {timed} }}",
            f"SELECT ?x (SUM(?v) AS ?sum) (MAX(?v) AS ?max) {{ {classes} ; :v ?v . {self._timed('?x')} }} GROUP BY ?x",
            f"SELECT ?x ?t {{ {classes} . {self._timed('?x')} }} ORDER BY ?t ?x LIMIT 2",
            f"SELECT * {{ {path} {{ SELECT DISTINCT {subject} {{ {timed} }} }} }}",
        )
        return PREFIX + text

    # --- cases ---

    def case(self) -> list[Step]:
        """A graph, some subscriptions, and then everything in any order."""
        steps = [Step("update", f"{PREFIX} INSERT DATA {{ {self._quads(14, 20, 28)} }}")]
        steps += [Step("subscribe", self.query()) for _ in range(self._random.randrange(2, 4))]
        kinds = ("update", "due", "advance", "back", "subscribe", "unsubscribe", "snapshot", "restart")
        for kind in self._random.choices(kinds, (45, 20, 12, 5, 6, 3, 3, 6), k=self._random.randrange(8, 16)):
            match kind:
                case "update":
                    steps.append(Step("update", self.update()))
                case "subscribe":
                    steps.append(Step("subscribe", self.query()))
                case "advance":
                    steps.append(Step("advance", seconds=self._random.choice((0.000001, 0.5, 1, 2, 3.5))))
                case "back":
                    steps.append(Step("back", seconds=self._random.choice((0.000001, 1, 2.5, 6))))
                case _:
                    steps.append(Step(kind))
        return steps
