"""Query -> the quads on which its result can depend (Roffia 2016, III.B)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.matching.lutt import ANY, EVERYTHING, PatternSignature, TriplePattern
from lamplighter.engine.matching.paths import not_anchored
from lamplighter.engine.sparql.algebra import (
    Constant,
    Graph,
    Node,
    OpaquePath,
    Part,
    Pattern,
    Variable,
    takes_apart,
    walk,
)
from lamplighter.engine.sparql.cursor import UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.requests import canonical, declarations_and_body
from lamplighter.engine.sparql.skeletons import Lifter, skeleton_of
from lamplighter.engine.terms import Term


def signature_of(tree: Node, terms: Sequence[Term], *, chosen: bool) -> PatternSignature:
    """What a query reads. terms: its constants, by number; chosen: whether its dataset is not that of the store."""
    patterns: dict[TriplePattern, None] = {}
    graph_names = False
    free = not_anchored(tree)

    def term(part: Part | None) -> Term:
        if isinstance(part, Constant):
            return terms[part.number]
        return part if isinstance(part, str) else ANY

    def place(graph: Part | None) -> Term | None:
        # Chosen graphs are not in the patterns; too many quads are looked at, never too few.
        return ANY if chosen else None if graph is None else term(graph)

    for node in walk(tree):
        match node:
            case Pattern() if takes_apart(node):
                pass  # it reads no quad
            case Pattern(s, p, o, graph):
                patterns[TriplePattern(term(s), term(p), term(o), place(graph))] = None
            case OpaquePath(s, steps, o, graph, zero_length):
                # A path of length zero joins every node of the graph to itself; a constant if it is a node. Another
                # pattern of the graph finds the nodes of an anchored path.
                nodes = zero_length and node in free
                joins_nodes = nodes and isinstance(s, Variable) and isinstance(o, Variable)
                for step in (None,) if joins_nodes else steps:
                    patterns[TriplePattern(ANY, ANY if step is None else term(step), ANY, place(graph))] = None
                for end in (s, o) if nodes and not joins_nodes else ():
                    if not isinstance(end, Variable):
                        patterns[TriplePattern(term(end), ANY, ANY, place(graph))] = None
                        patterns[TriplePattern(ANY, ANY, term(end), place(graph))] = None
            case Graph():
                graph_names = True
    return PatternSignature(tuple(patterns), graph_names)


def signature_of_text(text: str, lifter: Lifter, *, chosen: bool) -> PatternSignature:
    """The same of a SELECT query that the store has accepted; everything where the grammar does not know its syntax."""
    with suppress(GatewayError, SyntaxError, ValueError, RuntimeError):
        lifted = lifter.lift(text)
        prologue, body = declarations_and_body(text)
        # Two lexers have read the text; where they differ, nothing is known of it.
        if lifted is None or skeleton_of(text, len(lifted.prologue), body, constant_spans(body)) != lifted.skeleton:
            return EVERYTHING
        with suppress(UnknownSyntaxError):
            select = read_select(body, lambda raw: canonical(prologue, raw))
            chosen = chosen or bool(select.default_graphs or select.named_graphs)
            return signature_of(select.node, lifted.terms, chosen=chosen)
    return EVERYTHING
