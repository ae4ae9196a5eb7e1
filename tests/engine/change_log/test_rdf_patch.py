"""RDF Patch: what Jena is told of a commit, and what it is not told."""

from __future__ import annotations

from lamplighter.engine import Engine
from lamplighter.engine.change_log import Cause, GraphChanges, Record, Timer
from lamplighter.engine.change_log.rdf_patch import patch_id, patches
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.terms import Quad
from tests.support.oracle import parsed_dump
from tests.support.rdf_patch_reader import applied

S, P = "<http://e/s>", "<http://e/p>"


def record(sequence: int, delta: QuadDelta = QuadDelta(), kind: str = "commit", **members: object) -> Record:  # noqa: B008
    graphs = GraphChanges(delta.created, delta.dropped) if delta.created or delta.dropped else None
    return Record(
        v=1,
        type=kind,
        gw="gw-1",
        epoch=1,
        seq=sequence,
        ts="2026-11-21T02:00:00.000000Z",
        trusted=True,
        boot="b",
        boottime_us=1,
        d=delta.removed,
        a=delta.added,
        k=delta.kept,
        graphs=graphs,
        **members,  # type: ignore[arg-type]
    )


def test_a_commit_is_a_patch_with_one_transaction() -> None:
    one = record(1, QuadDelta(added=(Quad(S, P, '"1"'), Quad(S, P, S, "<http://e/g>")), created=("<http://e/g>",)))
    two = record(2, QuadDelta(removed=(Quad(S, P, '"1"'),), dropped=("<http://e/h>",)))
    first, second = patches([one, two])
    assert first.splitlines() == [
        f"H id {patch_id(one)} .",
        'H record "gw-1/1/1" .',
        'H time "2026-11-21T02:00:00.000000Z"^^<http://www.w3.org/2001/XMLSchema#dateTime> .',
        "TX .",
        "# graph created: <http://e/g>",
        f'A {S} {P} "1" .',
        f"A {S} {P} {S} <http://e/g> .",
        "TC .",
    ]
    assert f"H prev {patch_id(one)} ." in second.splitlines()
    assert f'D {S} {P} "1" .' in second.splitlines()
    assert "# graph dropped: <http://e/h>" in second.splitlines()


def test_an_id_belongs_to_a_record_for_ever() -> None:
    assert patch_id(record(1)) == patch_id(record(1, QuadDelta(added=(Quad(S, P, S),))))
    assert len({patch_id(record(number)) for number in range(100)}) == 100


def test_what_changes_no_quad_is_left_out_and_not_in_the_chain() -> None:
    change = QuadDelta(added=(Quad(S, P, S),))
    kept = QuadDelta(kept=(Quad(S, P, S),))
    records = [
        record(1, change),
        record(2, kept),
        record(3, kind="timer", timer=Timer("t", "CLEAR ALL", 1)),
        record(4, cause=Cause("timer", "t", 3)),
        record(5, change.invert()),
    ]
    first, second = patches(records)
    assert f"H prev {patch_id(records[0])} ." in second
    assert first.count("\nA ") == 1


def test_blank_nodes_keep_their_labels_and_nothing_else_is_touched() -> None:
    quads = (
        Quad("_:a1", P, "_:b.c", "_:g"),
        Quad(S, P, '"_:x <_:y> \\"_:z\\" "@en'),
        Quad("<http://e/_:s>", P, '"1"^^<http://e/_:type>'),
        Quad(S, P, '<<( _:a1 <http://e/p> "_:o" )>>'),
    )
    [text] = patches([record(1, QuadDelta(added=quads))])
    rows = [row for row in text.splitlines() if row.startswith("A ")]
    assert rows == [
        f"A <_:a1> {P} <_:b.c> <_:g> .",
        f"A {S} {P} " + '"_:x <_:y> \\"_:z\\" "@en .',
        f"A <http://e/_:s> {P} " + '"1"^^<http://e/_:type> .',
        f"A {S} {P} " + '<<( <_:a1> <http://e/p> "_:o" )>> .',
    ]


def test_patches_lead_to_the_dataset() -> None:
    with Engine() as engine:
        texts = (
            f'INSERT DATA {{ {S} {P} "a\\u2028\\n\\"b\\" .", 1.50, _:b . GRAPH <http://e/g> {{ _:b a _:c }} }}',
            f'DELETE {{ ?s ?p 1.5 }} INSERT {{ ?s ?p "1.5"@en, << {S} {P} _:x >> }} WHERE {{ ?s ?p 1.5 }}',
            "DROP GRAPH <http://e/g>",
        )
        records = [record(number, engine.update(text).delta) for number, text in enumerate(texts, 1)]
        assert applied("".join(patches(records))) == set(parsed_dump(engine.dump()))
        assert len(parsed_dump(engine.dump())) > 3
