"""Who shares a unit and who shares a shape: queries that say the same, however they are spelt."""

from __future__ import annotations

from lamplighter.engine import Engine
from lamplighter.engine.matching.shapes import Shape, SharedQuery
from tests.support.tables import each_row


def unit_of(engine: Engine, text: str) -> SharedQuery:
    number = engine._number(engine.subscribe(text).spuid)
    return engine._subscriptions._units[number]


def units(*texts: str) -> list[SharedQuery]:
    engine = Engine()
    return [unit_of(engine, text) for text in texts]


def shapes(*texts: str) -> list[Shape]:
    return [unit.shape for unit in units(*texts)]


ONE = "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }"


@each_row(
    "same",
    [
        "SELECT ?s ?o WHERE{?s <urn:x:p> ?o.?o <urn:x:q> 'a',1 FILTER(?o!=<urn:x:b>)}",
        "\n\tSELECT  ?s\t?o\nWHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }\n",
        "select ?s ?o where { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 filter ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o # columns\nWHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 # it's\nFILTER ( ?o != <urn:x:b> ) }",
        "PREFIX : <urn:x:> SELECT ?s ?o WHERE { ?s :p ?o . ?o :q 'a' , 1 FILTER ( ?o != :b ) }",
        'PREFIX e.e: <urn:x:> SELECT ?s ?o WHERE { ?s e.e:p ?o . ?o e.e:q "a" , 01 FILTER ( ?o != e.e:b ) }',
        "BASE <urn:x:p> SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT $s $o WHERE { $s <urn:x:p> $o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?a ?b WHERE { ?a <urn:x:p> ?b . ?b <urn:x:q> 'a' , 1 FILTER ( ?b != <urn:x:b> ) }",
        "SELECT ?o ?s WHERE { ?o <urn:x:p> ?s . ?s <urn:x:q> 'a' , 1 FILTER ( ?s != <urn:x:b> ) }",
        r"SELECT ?s ?o WHERE { ?s <urn:x:\u0070> ?o . ?o <urn:x:q> '\u0061' , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> '''a''' , "
        "'1'^^<http://www.w3.org/2001/XMLSchema#integer> FILTER ( ?o != <urn:x:b> ) }",
    ],
)
def test_same_query_shares_the_unit(same: str) -> None:
    for texts in ((ONE, same), (same, ONE), (same, ONE, same)):
        assert len(set(units(*texts))) == 1


@each_row(
    "other",
    [
        "SELECT ?o ?s WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }",  # columns
        "SELECT ?s WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'A' , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a'@en , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1.0 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , -1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?s != <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o = <urn:x:b> ) }",
        "SELECT ?s ?o WHERE { ?s <urn:x:r> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }",
        "SELECT DISTINCT ?s ?o WHERE { ?s <urn:x:p> ?o . ?o <urn:x:q> 'a' , 1 FILTER ( ?o != <urn:x:b> ) }",
    ],
)
def test_other_query_has_a_unit_of_its_own(other: str) -> None:
    one, two = units(ONE, other)
    assert one is not two


def test_columns_and_order_of_all_variables() -> None:
    """``SELECT *`` orders its columns by name, so names may matter there."""
    engine = Engine()
    engine.update("INSERT DATA { <urn:x:a> <urn:x:p> 1 }")
    for text in ("SELECT * { ?s <urn:x:p> ?o }", "SELECT * { ?o <urn:x:p> ?s }"):
        first = engine.subscribe(text).first
        row = dict(zip(first.variables, first.rows[0], strict=True))
        assert row[text[12]] == "<urn:x:a>"


def test_each_subscriber_has_columns_and_sequence_of_its_own() -> None:
    engine = Engine()
    early = engine.subscribe("SELECT ?s ?o { ?s <urn:x:p> ?o }")
    [first] = engine.update("INSERT DATA { <urn:x:a> <urn:x:p> 1 }").notifications
    assert first.sequence == 1
    late = engine.subscribe("PREFIX : <urn:x:> select ?who ?what { ?who :p ?what }")
    assert late.first.variables == ("who", "what")
    assert late.first.rows == first.added.rows
    two = {n.spuid: n for n in engine.update("INSERT DATA { <urn:x:b> <urn:x:p> 2 }").notifications}
    assert (two[early.spuid].sequence, two[late.spuid].sequence) == (2, 1)
    assert two[early.spuid].added.variables == ("s", "o")
    assert two[late.spuid].added.variables == two[late.spuid].removed.variables == ("who", "what")
    assert two[early.spuid].added.rows == two[late.spuid].added.rows
    engine.unsubscribe(early.spuid)
    [last] = engine.update("DELETE DATA { <urn:x:a> <urn:x:p> 1 }").notifications
    assert (last.spuid, last.sequence, last.removed.variables) == (late.spuid, 2, ("who", "what"))


def test_queries_that_differ_in_constants_share_a_shape() -> None:
    found = shapes(
        "SELECT ?o { <urn:x:a> <urn:x:p> ?o FILTER ( ?o > 1 ) }",
        "PREFIX : <urn:x:> SELECT ?o { :b :p ?o FILTER ( ?o > 22 ) }",
        "SELECT ?v { <urn:x:c> <urn:x:p> ?v FILTER(?v > 1.5) }",
    )
    assert found[0] is found[1]
    assert found[0].units.constants
    assert len({id(shape) for shape in found}) <= 2


@each_row(
    ("one", "other"),
    [
        ("SELECT ?o { <urn:x:a> <urn:x:p> ?o }", "SELECT ?o { <urn:x:a> <urn:x:q> ?o }"),  # predicates choose the plan
        ("SELECT ?s { ?s <urn:x:p> ?o } LIMIT 1", "SELECT ?s { ?s <urn:x:p> ?o } LIMIT 2"),
        ("SELECT ?s { ?s <urn:x:p> ?o VALUES ?o { 1 } }", "SELECT ?s { ?s <urn:x:p> ?o VALUES ?o { 2 } }"),
    ],
)
def test_constants_that_are_part_of_the_plan_make_shapes(one: str, other: str) -> None:
    first, second = shapes(one, other)
    assert first is not second


def test_equal_constants_are_one() -> None:
    """A unit's key holds each constant once; whose constants are equal is another shape than whose are not."""
    text = "SELECT ?v {{ <urn:x:{}> <urn:x:p> ?v . ?v <urn:x:q> <urn:x:{}> }}"
    engine = Engine()
    equal, different, equal_too = (unit_of(engine, text.format(*pair)) for pair in ("aa", "ab", "bb"))
    assert equal.shape is equal_too.shape is not different.shape
    assert len(equal.shape.units.constants) == 1
    assert len(different.shape.units.constants) == 2
    spuids = {}
    for pair in ("aa", "ab", "ba", "bb"):
        spuids[engine.subscribe(text.format(*pair)).spuid] = pair
    engine.update("INSERT DATA { <urn:x:v> <urn:x:q> <urn:x:a> }")
    commit = engine.update("INSERT DATA { <urn:x:a> <urn:x:p> <urn:x:v> }")
    assert [spuids[n.spuid] for n in commit.notifications if n.spuid in spuids] == ["aa"]
    commit = engine.update("INSERT DATA { <urn:x:b> <urn:x:p> <urn:x:v> }")
    assert [spuids[n.spuid] for n in commit.notifications if n.spuid in spuids] == ["ba"]


@each_row(
    ("condition", "found"),
    [
        ("?o = <urn:x:b>", {"<urn:x:b>"}),
        ("<urn:x:b> = ?o", {"<urn:x:b>"}),
        ("( ( ?o = <urn:x:b> ) )", {"<urn:x:b>"}),
        ("?o = <urn:x:b> && ?s != <urn:x:b>", {"<urn:x:b>"}),
        ("?o = <urn:x:b> && ?o = <urn:x:c>", set()),
        ("?o = <urn:x:b> && BOUND( ?o )", {"<urn:x:b>"}),
        ("?o = <urn:x:b> || ?o = <urn:x:c>", {"<urn:x:b>", "<urn:x:c>"}),
        ("! ( ?o = <urn:x:b> )", {"<urn:x:c>", '"1"^^<http://www.w3.org/2001/XMLSchema#decimal>'}),
        ("?o = 1", {'"1"^^<http://www.w3.org/2001/XMLSchema#decimal>'}),  # by value, so no term to look for
        ("?nowhere = <urn:x:b>", set()),
    ],
)
def test_filter_for_an_iri(condition: str, found: set[str]) -> None:
    """``FILTER(?x = <iri>)`` is put into the pattern (notes, finding 3), and means what it meant."""
    engine = Engine()
    text = f"SELECT ?s ?o {{ ?s <urn:x:p> ?o FILTER ( {condition} ) }}"
    subscription = engine.subscribe(text)
    commit = engine.update("INSERT DATA { <urn:x:a> <urn:x:p> <urn:x:b> , <urn:x:c> , 1.0 }")
    rows = [row for notification in commit.notifications for row in notification.added.rows]
    assert {row[1] for row in rows} == found
    assert len(rows) == len(found)
    assert {row[0] for row in rows} <= {"<urn:x:a>"}
    again = engine.subscribe(f"{text} ").first.rows
    assert sorted(map(str, again)) == sorted(map(str, rows))
    assert engine.query(text).value == engine.subscribe(text).first or len(rows) > 1
    assert subscription.spu_class == "telescoped"


def test_filter_for_an_iri_groups_subscribers() -> None:
    text = "SELECT ?s {{ ?s <urn:x:p> ?o . ?o <urn:x:q> ?r FILTER ( ?r = <urn:x:{}> ) }}"
    engine = Engine()
    found = [unit_of(engine, text.format(number)) for number in range(20)]
    assert len({id(unit.shape) for unit in found}) == 1
    assert len(set(found)) == 20
    engine.update("INSERT DATA { <urn:x:s> <urn:x:p> <urn:x:o> }")
    [notification] = engine.update("INSERT DATA { <urn:x:o> <urn:x:q> <urn:x:7> }").notifications
    assert engine._subscriptions._units[engine._number(notification.spuid)] is found[7]


def test_protocol_graphs_make_another_unit() -> None:
    engine = Engine()
    text = "SELECT ?s { ?s <urn:x:p> 1 }"
    engine.subscribe(text)
    chosen = engine.subscribe(text, default_graphs=["<urn:x:g>"])
    engine.subscribe(text, default_graphs=["<urn:x:h>"])
    engine.subscribe(text, named_graphs=["<urn:x:g>"])
    [notification] = engine.update("INSERT DATA { GRAPH <urn:x:g> { <urn:x:a> <urn:x:p> 1 } }").notifications
    assert notification.spuid == chosen.spuid


def test_base_matters_where_the_query_makes_iris() -> None:
    engine = Engine()
    text = "BASE <http://{}.example/> SELECT ?s {{ ?s <urn:x:p> ?o FILTER ( IRI( 'x' ) = ?o ) }}"
    one, two = engine.subscribe(text.format("a")), engine.subscribe(text.format("b"))
    [notification] = engine.update("INSERT DATA { <urn:x:a> <urn:x:p> <http://b.example/x> }").notifications
    assert notification.spuid == two.spuid != one.spuid
