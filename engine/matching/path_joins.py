"""Joins with paths of any length: lookups in a `PathRelation`, and tests of the ends that a change may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.reachability import Accept, PathPredicate, PathRelation
from lamplighter.engine.matching.source_text import Consume, Scope, Source
from lamplighter.engine.sparql.algebra import Constant, Part, Pattern, Variable
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.work import ROW, Meter

# Ranks of a lookup (`JoinCodegen._rank`) with so many known ends. A path that may be empty needs one.
ONE_END, TWO_ENDS, NO_END = 2.5, 1.2, 9.0


class PathCodegen(Source):
    """Writes the loops over the pairs that a path joins."""

    def __init__(
        self, cts: Cts, hold: Callable[[Term | None, bool], None], meter: Meter, counted: Sequence[str] = ()
    ) -> None:
        super().__init__(meter, counted)
        self._cts = cts
        self._hold = hold

    def path(self, pattern: Pattern, scope: Scope, consume: Consume, without: bool) -> None:
        """Writes the loops. without: the path does not follow the quad in the local ``quad``.

        Raises Unsupported if all nodes of the graph would have to be known.
        """
        predicate, graph = pattern.p, pattern.graph
        assert isinstance(predicate, PathPredicate)
        if isinstance(graph, (Variable, Constant)) and graph not in scope.bound:
            self._need_ends(predicate)
            name = self.name("v")
            with self.loop(name, f"{self._share_relation(predicate)}.graphs()"):
                self.path(pattern, scope.binding(graph, name), consume, without)
            return
        path = self._share_relation(predicate)
        self._counted = True
        rest = f"{'None' if graph is None else self.part(graph, scope)}, meter{', quad' if without else ''}"
        s, o = pattern.s, pattern.o
        subject, object_ = self.part(s, scope), self.part(o, scope)
        if _is_known(s, scope) and _is_known(o, scope):
            with self.block(f"if {path}.joins({subject}, {object_}, {rest}):"):
                consume(scope)
        elif _is_known(s, scope):
            assert isinstance(o, (Variable, Constant))
            name = self.name("v")
            with self.loop(name, f"{path}.forward({subject}, {rest})"):
                consume(scope.binding(o, name))
        elif _is_known(o, scope):
            assert isinstance(s, (Variable, Constant))
            name = self.name("v")
            with self.loop(name, f"{path}.backward({object_}, {rest})"):
                consume(scope.binding(s, name))
        else:
            assert isinstance(s, (Variable, Constant))
            self._need_ends(predicate)
            name = self.name("v")
            with self.loop(name, f"{path}.starts({'None' if graph is None else self.part(graph, scope)}, meter)"):
                self.path(pattern, scope.binding(s, name), consume, without)

    def path_rank(self, pattern: Pattern, scope: Scope) -> float:
        """The rank of a lookup, as `JoinCodegen._rank` gives it for triple patterns."""
        assert isinstance(pattern.p, PathPredicate)
        known = _is_known(pattern.s, scope) + _is_known(pattern.o, scope)
        place = pattern.graph is None or _is_known(pattern.graph, scope)
        if not known or (pattern.p.zero_length and not place):
            return NO_END + (pattern.p.zero_length and not pattern.p.nodes)
        return (TWO_ENDS if known == 2 else ONE_END) + (0.0 if place else 0.5)

    def _share_relation(self, predicate: PathPredicate) -> str:
        self._hold(predicate, True)
        return self.share("path", self._cts.paths[predicate])

    @staticmethod
    def _need_ends(predicate: PathPredicate) -> None:
        if predicate.zero_length and not predicate.nodes:
            raise Unsupported("a path that may be empty, and whose ends are found after it")


def _is_known(part: Part, scope: Scope) -> bool:
    return not isinstance(part, (Variable, Constant)) or part in scope.bound


class PathMatcher:
    """Matches a changed quad of a path: calls a matcher for each pair that the path joins because of the quad.

    Its call has the arguments of a `Matcher` or `Seeder`. matcher: takes a pair in the place of subject and object, and
    the quad as its last argument.
    """

    may_exceed = True

    def __init__(
        self,
        path: PathRelation,
        named: bool,
        matcher: Callable[..., None],
        accepts: tuple[Accept, Accept],
        meter: Meter,
    ) -> None:
        """named: whether the path is followed in named graphs, and not in the default graph."""
        self._path = path
        self._named = named
        self._matcher = matcher
        self._accepts = accepts
        self._meter = meter

    def __call__(self, s: Term, p: Term, o: Term, g: Term | None, *rest: object) -> None:
        if (g is not None) is not self._named:
            return
        quad = Quad(s, p, o, g)
        for start, end in self._path.changed_pairs(quad, *self._accepts, self._meter):
            self._meter.take(ROW)
            self._matcher(start, self._path.path, end, g, *rest, quad)
