from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.matching.lutt import Lutt
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.terms import Quad
from tests.support.signatures import signature


def lutt(**queries: str) -> Lutt[str]:
    table: Lutt[str] = Lutt()
    for owner, where in queries.items():
        table.add(owner, signature(f"SELECT * WHERE {where}"))
    return table


def touched(table: Lutt[str], *added: Quad, removed: tuple[Quad, ...] = ()) -> list[str]:
    return table.lookup(QuadDelta(added=added, removed=removed))


def test_quad_touches_those_whose_patterns_it_matches() -> None:
    table = lutt(
        fine="{ <a:1> <a:p> ?o }",
        other="{ <a:2> <a:p> ?o }",
        coarse="{ ?s <a:p> ?o }",
        graph="{ GRAPH <a:g> { ?s <a:p> ?o } }",
        any_graph="{ GRAPH ?g { ?s <a:p> ?o } }",
        all="{ ?s ?p ?o }",
    )
    # The default graph is not in ?g, but the table may let that through.
    assert set(touched(table, Quad("<a:1>", "<a:p>", "<a:o>"))) - {"any_graph"} == {"fine", "coarse", "all"}
    assert touched(table, Quad("<a:1>", "<a:p>", "<a:o>", "<a:g>")) == ["graph", "any_graph"]
    assert touched(table, removed=(Quad("<a:2>", "<a:p>", "<a:o>"),)) == ["other", "coarse", "any_graph", "all"]
    assert touched(table, Quad("<a:1>", "<a:q>", "<a:o>")) == ["all"]


def test_graphs_that_come_and_go_touch_those_that_ask_for_graphs() -> None:
    table = lutt(graphs="{ GRAPH ?g {} }", triples="{ ?s ?p ?o }")
    assert table.lookup(QuadDelta(created=("<a:g>",))) == ["graphs"]
    assert table.lookup(QuadDelta(dropped=("<a:g>",))) == ["graphs"]


def test_those_that_one_quad_may_touch_are_beside_each_other() -> None:
    table = lutt(
        fine="{ <a:1> <a:p> ?o }",
        other="{ <a:2> <a:p> ?o }",
        coarse="{ ?s <a:p> ?o . ?s <a:r> ?x }",
        graph="{ GRAPH <a:g> { ?s <a:p> ?o } }",
        another="{ ?s <a:q> ?o }",
        nothing="{}",
    )

    def beside(where: str) -> set[str]:
        return set(table.beside(signature(f"SELECT * WHERE {where}")))

    assert beside("{ <a:1> <a:p> ?o }") == {"fine", "coarse"}
    assert beside("{ ?s <a:r> 1 }") == {"coarse"}
    assert beside("{ GRAPH <a:g> { <a:1> ?p ?o } }") == {"graph"}
    assert beside("{ ?s ?p ?o }") == {"fine", "other", "coarse", "another"}
    assert beside("{}") == set()
    many = " ".join(f"?s <a:{number}> ?o ." for number in range(20))
    assert beside(f"{{ {many} }}") == {"fine", "other", "coarse", "graph", "another"}, "too long to compare"


def test_removed_owner_is_gone() -> None:
    table = lutt(one="{ ?s <a:p> ?o }", two="{ ?s <a:p> ?o }")
    table.remove("one", signature("SELECT * WHERE { ?s <a:p> ?o }"))
    assert touched(table, Quad("<a:1>", "<a:p>", "<a:o>")) == ["two"]


def test_a_large_delta_is_looked_up_with_pauses() -> None:
    class Counted(Slices):
        pauses = 0

        def pause(self) -> None:
            self.pauses += 1

    table, slices = lutt(coarse="{ ?s <a:p> ?o }"), Counted()
    few = tuple(Quad(f"<a:{number}>", "<a:p>", "<a:o>") for number in range(LONG))
    assert table.lookup(QuadDelta(added=few), slices) == ["coarse"]
    assert slices.pauses == 0
    many = (*few, Quad("<a:s>", "<a:p>", "<a:o>"))
    assert table.lookup(QuadDelta(added=many), slices) == ["coarse"]
    assert slices.pauses > 1
    slices.pauses = 0
    table.matchings(QuadDelta(added=many), slices)
    assert slices.pauses > 1
