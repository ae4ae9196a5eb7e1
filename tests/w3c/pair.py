"""An engine and a raw store that live through the same steps, with subscribers that see notifications only.

Every step is given to the engine as text or as a document and to the raw store as the same text; where it brings new
blank nodes, which each side labels in its own way, the raw store takes the engine's quads after they were found
isomorphic to what was sent. So both hold the same quads with the same labels, and their results compare as text.
Results compare as bags: the order that ORDER BY asks for is in no notification.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random

import pyoxigraph as ox

from lamplighter.engine import Commit, Engine
from tests.support.oracle import Answer, Row, answer_from_json, canonical, term_text
from tests.w3c.suite import in_columns, triples, truth

_EXTREME = re.compile(r"\b(MIN|MAX)\s*\(", re.I)
_NUMBER = re.compile(r'"([^"]+)"\^\^<http://www\.w3\.org/2001/XMLSchema#(?:integer|decimal|double|float)>')


class Follower:
    """A subscription as its subscriber sees it: the first result, kept up to date by notifications."""

    def __init__(self, engine: Engine, text: str) -> None:
        subscription = engine.subscribe(text)
        first = answer_from_json(subscription.first.to_json())
        self.text = text
        self.spuid = subscription.spuid
        self.spu_class = subscription.spu_class
        self.variables = first.variables
        self.first = first.rows
        self.rows = Counter(first.rows)
        self.sequence = 0

    def follow(self, commit: Commit) -> None:
        mine = [notification for notification in commit.notifications if notification.spuid == self.spuid]
        assert len(mine) <= 1, f"{len(mine)} notifications of one commit"
        for notification in mine:
            self.sequence += 1
            assert notification.sequence == self.sequence
            added = in_columns(answer_from_json(notification.added.to_json()), self.variables)
            removed = in_columns(answer_from_json(notification.removed.to_json()), self.variables)
            assert added or removed, "a notification of nothing"
            assert not added & removed, "added and removed at once"
            assert removed <= self.rows, f"removed what was not there: {removed - self.rows}"
            self.rows = self.rows - removed + added


class Pair:
    """steps: what was done, for the message of a failure."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.raw = ox.Store()
        self.followers: list[Follower] = []
        self.steps: list[str] = []

    def subscribe(self, text: str) -> Follower:
        """Subscribes, and checks the first result against a fresh evaluation."""
        follower = Follower(self.engine, text)
        self.followers.append(follower)
        self._check_one(follower)
        return follower

    def unsubscribe(self, follower: Follower) -> None:
        """Ends a subscription; a notification of it that comes nevertheless fails a later step."""
        self.engine.unsubscribe(follower.spuid)
        self.followers.remove(follower)

    def insert(self, quads: Sequence[ox.Quad], *, as_document: bool) -> None:
        """One commit that adds these quads. Blank nodes are new ones, whatever their labels."""
        if not quads:
            return
        if as_document:
            data = ox.serialize(quads, format=ox.RdfFormat.N_QUADS)
            assert data is not None
            self.steps.append(f"load {data.decode()}")
            commit = self.engine.load(data, media_type="application/n-quads")
        else:
            text = f"INSERT DATA {{ {data_block(quads)} }}"
            self.steps.append(text)
            commit = self.engine.update(text)
        if any(map(has_blank, quads)):
            brought = ox.Store()
            brought.extend(quads)
            new = self.dumped() - set(self.raw)
            assert canonical(new) == canonical(quad for quad in brought if quad not in self.raw), self.steps[-1]
            self.raw.extend(new)
        elif as_document:
            self.raw.extend(quads)
        else:
            self.raw.update(self.steps[-1])
        self._follow(commit)

    def update(self, text: str) -> Commit:
        """One commit by a text that makes no blank nodes, given to both sides."""
        self.steps.append(text)
        commit = self.engine.update(text)
        self.raw.update(text)
        self._follow(commit)
        return commit

    def adopt(self, commit: Commit, graphs: Iterable[ox.NamedNode | ox.BlankNode]) -> None:
        """After a commit that the raw store was not given: it takes the engine's quads, and these named graphs."""
        self.raw = ox.Store()
        self.raw.extend(self.dumped())
        for graph in graphs:
            self.raw.add_graph(graph)
        self._follow(commit)

    def dumped(self) -> set[ox.Quad]:
        quads = list(ox.parse(self.engine.dump("application/n-quads"), ox.RdfFormat.N_QUADS))
        assert len(quads) == len(set(quads)), "a quad stands twice in the dump"
        return set(quads)

    def _follow(self, commit: Commit) -> None:
        known = {follower.spuid for follower in self.followers}
        assert known >= {notification.spuid for notification in commit.notifications}, "nobody subscribed to this"
        assert self.dumped() == set(self.raw), f"the datasets differ after {self.history()}"
        names = answer_from_json(self.engine.query("SELECT ?g { GRAPH ?g { } }").to_json()).rows
        assert names == Counter((term_text(graph),) for graph in self.raw.named_graphs()), self.history()
        for follower in self.followers:
            follower.follow(commit)
            self._check_one(follower)

    def _check_one(self, follower: Follower) -> None:
        fresh = answer(self.raw, follower.text)
        assert set(follower.variables) == set(fresh.variables)
        rows = in_columns(fresh, follower.variables)
        if _EXTREME.search(follower.text) and by_value(follower.rows) == by_value(rows):
            return  # of equal numbers of different types, the store takes the one that it meets first
        assert follower.rows == rows, (
            f"{follower.spu_class}: {follower.text}\nmissing {rows - follower.rows}\ntoo much {follower.rows - rows}\n"
            f"of {follower.variables} after {self.history()}"
        )

    def history(self) -> str:
        return "\n".join(["these steps:", *self.steps])


def by_value(rows: Counter[Row]) -> Counter[tuple[object, ...]]:
    """The rows with each number as its value, whatever its type."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row, count in rows.items():
        numbers = [term and _NUMBER.fullmatch(term) for term in row]
        counts[tuple(float(number[1]) if number else term for number, term in zip(numbers, row, strict=True))] += count
    return counts


def answer(store: ox.Store, text: str) -> Answer:
    """A fresh evaluation by the raw store: the answer of ASK is one row, that of CONSTRUCT a set of triples."""
    found = store.query(text)
    if isinstance(found, ox.QueryBoolean):
        return truth(bool(found))
    if isinstance(found, ox.QueryTriples):
        return triples(tuple(map(term_text, triple)) for triple in found)
    rows: list[Row] = [tuple(None if t is None else term_text(t) for t in solution) for solution in found]
    return Answer([variable.value for variable in found.variables], rows)


# --- quads as texts, and in pieces -------------------------------------------------------------------


def blanks(quad: ox.Quad) -> set[ox.BlankNode]:
    """The blank nodes of a quad, also within triple terms."""
    return {term for term in (*_parts(quad.triple), quad.graph_name) if isinstance(term, ox.BlankNode)}


def _parts(triple: ox.Triple) -> Iterator[ox.NamedNode | ox.BlankNode | ox.Literal]:
    """The terms of a triple, and of the triple terms in it."""
    yield triple.subject
    yield triple.predicate
    if isinstance(triple.object, ox.Triple):
        yield from _parts(triple.object)
    else:
        yield triple.object


def has_blank(quad: ox.Quad) -> bool:
    return bool(blanks(quad))


def units(quads: Iterable[ox.Quad]) -> list[list[ox.Quad]]:
    """The parts that can come in commits of their own: quads that share a blank node have to come together."""
    found: list[tuple[set[ox.BlankNode], list[ox.Quad]]] = []
    for quad in quads:
        nodes, members = blanks(quad), [quad]
        apart = []
        for unit in found:
            if nodes & unit[0]:
                nodes |= unit[0]
                members = unit[1] + members
            else:
                apart.append(unit)
        found = [*apart, (nodes, members)]
    return [members for _, members in found]


def data_block(quads: Iterable[ox.Quad]) -> str:
    """Quads as INSERT DATA and DELETE DATA have them between their braces."""
    return " ".join(
        _in_graph(quad, f"{_text(quad.subject)} {_text(quad.predicate)} {_text(quad.object)} .") for quad in quads
    )


def deletion(quads: Iterable[ox.Quad], random: Random) -> str:
    """A request that removes at least these quads: DELETE DATA cannot name a blank node, so a pattern stands for it."""
    ground: list[ox.Quad] = []
    others: list[ox.Quad] = []
    for quad in quads:
        (others if has_blank(quad) else ground).append(quad)
    operations = [f"DELETE DATA {{ {data_block(ground)} }}"] if ground else []
    for quad in others:
        names = {node: f"?b{number}" for number, node in enumerate(sorted(blanks(quad), key=str))}
        pattern = _in_graph(quad, f"{_pattern(quad.triple, names)} .")
        operations.append(f"DELETE WHERE {{ {pattern} }}")
    random.shuffle(operations)
    return " ;\n".join(operations)


def _pattern(triple: ox.Triple, names: Mapping[ox.BlankNode, str]) -> str:
    """The triple with variables in place of blank nodes."""

    def text(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple) -> str:
        if isinstance(term, ox.BlankNode):
            return names[term]
        return f"<<( {_pattern(term, names)} )>>" if isinstance(term, ox.Triple) else _text(term)

    return f"{text(triple.subject)} {text(triple.predicate)} {text(triple.object)}"


def _in_graph(quad: ox.Quad, triple: str) -> str:
    return triple if isinstance(quad.graph_name, ox.DefaultGraph) else f"GRAPH {_text(quad.graph_name)} {{ {triple} }}"


def _text(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple | ox.DefaultGraph) -> str:
    assert not isinstance(term, ox.DefaultGraph)
    return term_text(term)
