"""PathRelation: which nodes a path of any length joins, and what one quad changes of that.

A path in the place of a pattern's predicate (`PathPredicate`) is a relation between the nodes of one graph. It is
never stored: a lookup searches the CTS from one end, so only the part of the graph is visited that other patterns lead
to. Searches are remembered until a quad of the path changes, at most `REMEMBERED_MAX` nodes of them.

What a quad changes is the difference of the relation with the quad and without it. The pairs that it can join are those
of a node that leads to its start with a node that is reached from its end. Of these, a pair is changed if no path joins
it without the quad. That is found by a search from the end with fewer candidates, and holds in cycles, where counting
the ways that lead to a node would keep a cycle alive that nothing leads to any more.

All searches count on the meter of the plan that asks, and raise TooMuchWork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lamplighter.engine.matching.quad_tables import Members, Table, Tables
from lamplighter.engine.sparql.algebra import Hops
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.work import Meter

# Nodes in all remembered searches of one path. When there are more, all are forgotten.
REMEMBERED_MAX = 200_000
# Nodes that a search from one end may visit before the other end is tried, and by how much the next try has more.
BUDGET, BUDGET_GROWTH = 8, 8

Nodes = dict[Term, None]
# Node -> the nodes one hop away, for each way to make a hop.
Halves = Sequence[Mapping[Term, Members]]
Edge = tuple[Term, Term]
# Hops that a search does not make: start -> ends.
Without = Mapping[Term, Nodes]
# (node, graph) -> whether the node can be at one end of the path in a solution; too often rather than too rarely.
Accept = Callable[[Term, "Term | None"], bool]


class PathPredicate(str):
    """A path of variable length as the predicate of a pattern. Equal paths are equal strings.

    steps: predicate and whether the hop leads from object to subject; zero_length, repeated: as in `Hops`.
    nodes: whether it has to be found out which terms are nodes of the graph, and so are joined to themselves. Otherwise
    the pattern is joined with another one that finds nodes of the graph.
    """

    steps: tuple[tuple[Term, bool], ...]
    zero_length: bool
    repeated: bool
    nodes: bool

    def __new__(cls, hops: Hops, *, nodes: bool) -> PathPredicate:
        """hops: with terms for all steps."""
        steps = []
        for part, inverse in hops.steps:
            assert isinstance(part, str), "predicates of paths belong to the shape"
            steps.append((part, inverse))
        sign = ("*" if hops.zero_length else "+") if hops.repeated else "?" if hops.zero_length else ""
        text = f"({'|'.join('^' * inverse + step for step, inverse in steps)}){sign}{' of nodes' * nodes}"
        path = super().__new__(cls, text)
        path.steps, path.zero_length, path.repeated, path.nodes = tuple(steps), hops.zero_length, hops.repeated, nodes
        return path

    def follows(self, predicate: Term) -> bool:
        """Whether quads of the predicate can change the path."""
        return self.nodes or predicate in self.predicates

    def meets(self, other: PathPredicate) -> bool:
        """Whether one quad can change both paths."""
        return self.nodes or any(other.follows(predicate) for predicate in self.predicates)

    @property
    def predicates(self) -> tuple[Term, ...]:
        """The predicates of the quads that it follows, each once."""
        return tuple(dict.fromkeys(step for step, _ in self.steps))


class PathRelation:
    """One path over the CTS.

    tables: those of the CTS by predicate; the tables of the path's steps call `forget` when they change. All that are
    read are indexed by object, too.
    """

    def __init__(self, path: PathPredicate, tables: Mapping[Term, Tables]) -> None:
        self.path = path
        self._tables = tuple([tables[step] for step, _ in path.steps])
        self._all_tables = tables
        defaults = [its.default for its in self._tables]
        self._default_halves = self._halves_of(defaults, False), self._halves_of(defaults, True)
        self._remembered: dict[tuple[Term, Term | None, bool, Quad | None], Nodes] = {}
        self._size = 0

    def forget(self) -> None:
        """Forgets all searches, since a quad of the path has changed."""
        if self._remembered:
            self._remembered.clear()
            self._size = 0

    # --- lookups ---

    def forward(self, node: Term, graph: Term | None, meter: Meter, without: Quad | None = None) -> Nodes:
        """The nodes that the path leads to from a node. The caller must not change them.

        without: a quad that is not followed.
        """
        return self._find(node, graph, meter, without, False)

    def backward(self, node: Term, graph: Term | None, meter: Meter, without: Quad | None = None) -> Nodes:
        """The nodes from which the path leads to a node."""
        return self._find(node, graph, meter, without, True)

    def joins(self, start: Term, end: Term, graph: Term | None, meter: Meter, without: Quad | None = None) -> bool:
        """Whether the path leads from one node to the other."""
        if not self.path.nodes:
            # A search from the other side answers as well. With zero-length paths over all nodes it may hold a term
            # that is no node.
            known = self._remembered.get((end, graph, True, without))
            if known is not None:
                return start in known
        return end in self._find(start, graph, meter, without, False)

    def starts(self, graph: Term | None, meter: Meter) -> list[Term]:
        """The nodes from which the path leads somewhere."""
        found: Nodes = {}
        halves = self._all_halves(graph) if self.path.nodes else self._halves(graph, False)
        for half in halves:
            meter.take(len(half))
            found.update(dict.fromkeys(half))
        return list(found)

    def graphs(self) -> list[Term]:
        """The named graphs in which the path joins nodes."""
        tables = self._all_tables.values() if self.path.nodes else self._tables
        return list(dict.fromkeys(graph for its in tables for graph in its.named))

    def _find(self, node: Term, graph: Term | None, meter: Meter, without: Quad | None, backward: bool) -> Nodes:
        key = (node, graph, backward, without)
        found = self._remembered.get(key)
        if found is None:
            # A quad of another graph is no step here.
            skipped = {} if without is None or without.g != graph else _group_edges(self._edges(without), backward)
            found = {node: None} if self.path.zero_length else {}
            self._search((node,), self._halves(graph, backward), found, meter, skipped)
            self._size += len(found)
            # All at once: no ages are kept, and each commit that changes the path forgets them in any case.
            if self._size > REMEMBERED_MAX:
                self.forget()
                self._size = len(found)
            self._remembered[key] = found
        # A zero-length path joins each node with itself (SPARQL 1.1 Query, 18.4), and a term that no quad has is none.
        if self.path.nodes and len(found) == 1 and not self._is_node(node, graph, meter, without):
            return {}
        return found

    def _is_node(self, node: Term, graph: Term | None, meter: Meter, without: Quad | None) -> bool:
        """Whether a quad of the graph has the term as subject or object, other than one."""
        meter.take(len(self._all_tables))
        apart = without is not None and without.g == graph and node in (without.s, without.o)
        for predicate, tables in self._all_tables.items():
            table = tables.default if graph is None else tables.named.get(graph)
            if table is None:
                continue
            assert table.po is not None
            objects, subjects = table.sp.get(node, ()), table.po.get(node, ())
            # The quad itself is in the table: it does not count, but another one with the same subject or object does.
            if apart and without is not None and predicate == without.p:
                if any(other != without.o for other in objects) if node == without.s else objects:
                    return True
                if any(other != without.s for other in subjects) if node == without.o else subjects:
                    return True
            elif objects or subjects:
                return True
        return False

    def _all_halves(self, graph: Term | None) -> Iterator[Mapping[Term, Members]]:
        for tables in self._all_tables.values():
            table = tables.default if graph is None else tables.named.get(graph)
            if table is not None:
                assert table.po is not None
                yield table.sp
                yield table.po

    def _halves(self, graph: Term | None, backward: bool) -> Halves:
        if graph is None:
            return self._default_halves[backward]
        return self._halves_of([its.named.get(graph) for its in self._tables], backward)

    def _halves_of(self, tables: Sequence[Table | None], backward: bool) -> Halves:
        """The halves that lead along the steps, or back, in one table for each step."""
        halves: list[Mapping[Term, Members]] = []
        for table, (_, inverse) in zip(tables, self.path.steps, strict=True):
            if table is not None:
                assert table.po is not None, "paths are followed in both directions"
                # Along an inverse step, and back along a plain one, the lookup is by object.
                halves.append(table.po if inverse is not backward else table.sp)
        return halves

    def _search(
        self,
        starts: Sequence[Term],
        halves: Halves,
        found: Nodes,
        meter: Meter,
        skipped: Without,
        most: int | None = None,
    ) -> bool:
        """Adds to found the nodes that hops lead to. Returns False if it stopped because it saw more than most."""
        waiting = list(starts)
        while waiting:
            # Depth first: the order does not matter for a set, and a list pops from its end without moving.
            node = waiting.pop()
            for half in halves:
                members = half.get(node)
                if members is None:
                    continue
                # Looked at before the loop: a hub would use up the budget in one step.
                if most is not None and len(members) > most:
                    return False
                meter.left -= 2 * len(members)
                if meter.left < 0:
                    meter.more()
                without = skipped.get(node)
                for other in members:
                    if other not in found and (without is None or other not in without):
                        found[other] = None
                        waiting.append(other)
            if not self.path.repeated:
                waiting.clear()
            if most is not None and len(found) > most and waiting:
                return False
        return True

    # --- what a quad changes ---

    def changed_pairs(self, quad: Quad, accept_start: Accept, accept_end: Accept, meter: Meter) -> Iterator[Edge]:
        """The pairs that the path joins with a quad of the CTS, but not without it, as far as both ends are accepted.

        The quad is in the CTS: it is about to be removed, or has just been added.
        """
        graph = quad.g
        if self.path.nodes:
            for node in dict.fromkeys((quad.s, quad.o)):
                if (
                    accept_start(node, graph)
                    and accept_end(node, graph)
                    and not self._is_node(node, graph, meter, quad)
                ):
                    yield node, node
        edges = self._edges(quad)
        if not edges:
            return
        if not self.path.repeated:
            for start, end in edges:
                if (
                    (start != end or not self.path.zero_length)
                    and accept_start(start, graph)
                    and accept_end(end, graph)
                ):
                    yield start, end
            return
        # Each changed pair has its start among the nodes that lead to the edges, and its end among those reached from
        # them. The smaller set is found first, both growing in turn, so a change near a leaf costs little in a large
        # graph.
        change = _Change(self, edges, graph, meter)
        backward, candidates = change.smaller_side()
        accepts = (accept_end, accept_start)
        # The patterns around the path refuse most nodes, and then the other side need not be searched.
        ends = [node for node in candidates if accepts[backward](node, graph)]
        if not ends:
            return
        nodes = change.side(not backward, BUDGET)
        if nodes is None:  # before a longer search, find out whether the edges change anything
            if not change.matters():
                return
            nodes = change.side(not backward, None)
            assert nodes is not None
        others = [node for node in nodes if accepts[not backward](node, graph)]
        if others:
            yield from change.pairs(ends, others) if backward else change.pairs(others, ends)

    def _edges(self, quad: Quad) -> list[Edge]:
        """The hops that a quad of the CTS makes, without those that another quad makes, too."""
        if len(self.path.steps) == 1:
            (step, inverse), *_ = self.path.steps
            return [] if step != quad.p else [(quad.o, quad.s) if inverse else (quad.s, quad.o)]
        own: dict[Edge, int] = {}
        for step, inverse in self.path.steps:
            if step == quad.p:
                edge = (quad.o, quad.s) if inverse else (quad.s, quad.o)
                own[edge] = own.get(edge, 0) + 1
        halves = self._halves(quad.g, False)
        # If another predicate of the path makes the same hop, the quad changes nothing.
        return [edge for edge, ways in own.items() if sum(edge[1] in half.get(edge[0], ()) for half in halves) == ways]


class _Change:
    """The search for the pairs that a quad changes, in the graph with the quad's edges and without them."""

    def __init__(self, reachability: PathRelation, edges: Sequence[Edge], graph: Term | None, meter: Meter) -> None:
        self._search = reachability._search
        self._zero_length = reachability.path.zero_length
        self._edges = edges
        self._halves = reachability._halves(graph, False), reachability._halves(graph, True)
        self._without = _group_edges(edges, False), _group_edges(edges, True)
        self._meter = meter

    def smaller_side(self) -> tuple[bool, Nodes]:
        """The side with fewer nodes, and the nodes: those that lead to the edges (True), or are reached from them."""
        most = BUDGET
        while True:
            for backward in (True, False):
                nodes = self.side(backward, most)
                if nodes is not None:
                    return backward, nodes
            most *= BUDGET_GROWTH

    def side(self, backward: bool, most: int | None) -> Nodes | None:
        """The nodes of one side, as in `smaller_side`; None if they are more than most."""
        nodes = dict.fromkeys([edge[not backward] for edge in self._edges])
        whole = self._search(list(nodes), self._halves[backward], nodes, self._meter, {}, most)
        return nodes if whole else None

    def matters(self) -> bool:
        """Whether the end of an edge cannot be reached from its start without the edges. Else they change nothing."""
        return any(not self._are_joined(start, end) for start, end in self._edges)

    def _are_joined(self, start: Term, end: Term) -> bool:
        if start == end and self._zero_length:
            return True
        most = BUDGET
        while True:
            for backward, one, other in ((True, end, start), (False, start, end)):
                nodes: Nodes = {}
                whole = self._search((one,), self._halves[backward], nodes, self._meter, self._without[backward], most)
                if other in nodes:
                    return True
                if whole:
                    return False
            most *= BUDGET_GROWTH

    def pairs(self, starts: Sequence[Term], ends: Sequence[Term]) -> Iterator[Edge]:
        """The pairs of a start and an end that nothing joins without the edges."""
        # The budget grows eightfold, so the searches that were given up are a small part of the work.
        most = BUDGET * max(len(starts), len(ends))
        fewer_ends = len(ends) < len(starts)
        while True:
            for backward in (fewer_ends, not fewer_ends):
                joined = self._reachable(ends if backward else starts, backward, most)
                if joined is not None:
                    for start in starts:
                        self._meter.take(len(ends))
                        for end in ends:
                            one, other = (end, start) if backward else (start, end)
                            if other not in joined[one] and not (self._zero_length and start == end):
                                yield start, end
                    return
            most *= BUDGET_GROWTH

    def _reachable(self, nodes: Sequence[Term], backward: bool, most: int) -> dict[Term, Nodes] | None:
        """For each node those that are joined with it without the edges; None if they are more than most in all."""
        joined: dict[Term, Nodes] = {}
        for node in nodes:
            found = joined[node] = {}
            if not self._search((node,), self._halves[backward], found, self._meter, self._without[backward], most):
                return None
            most -= len(found) + 1
        return joined


def _group_edges(edges: Sequence[Edge], backward: bool) -> dict[Term, Nodes]:
    found: dict[Term, Nodes] = {}
    for edge in edges:
        found.setdefault(edge[backward], {})[edge[not backward]] = None
    return found
