"""`Engine.load`: files and bytes, formats, graphs, limits, and what its errors say."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError, LimitExceededError, RequestSyntaxError, UnsupportedRequestError
from lamplighter.engine.terms import XSD, Quad
from tests.support.tables import each_row

LAMP = "http://example.org/lamp"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
DOCUMENTS = {
    "nt": f"<{LAMP}> <{LAMP}#state> 'ON' .".replace("'", '"'),
    "nq": f"<{LAMP}> <{LAMP}#state> 'ON' .".replace("'", '"'),
    "ttl": f"@prefix l: <{LAMP}#> . <{LAMP}> l:state 'ON' .",
    "trig": f"@prefix l: <{LAMP}#> . {{ <{LAMP}> l:state 'ON' }}",
    "rdf": f'<rdf:RDF xmlns:rdf="{RDF}" xmlns:l="{LAMP}#"><rdf:Description rdf:about="{LAMP}">'
    "<l:state>ON</l:state></rdf:Description></rdf:RDF>",
    "jsonld": f'{{"@id": "{LAMP}", "{LAMP}#state": "ON"}}',
}
STATE = (f"<{LAMP}>", f"<{LAMP}#state>", '"ON"')


@each_row("name", [*DOCUMENTS, "xml", "ttl.gz", "TTL", "nq.GZ"])
def test_the_format_follows_from_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    kind, _, packed = name.lower().partition(".")
    data = DOCUMENTS["rdf" if kind == "xml" else kind].encode()
    path = tmp_path / f"street.v1.{name}"
    path.write_bytes(gzip.compress(data) if packed else data)
    for source in (path, str(path)):
        with Engine() as engine:
            watched = engine.subscribe(f"SELECT ?lamp {{ ?lamp <{LAMP}#state> 'ON' }}")
            commit = engine.load(source)
            assert commit.sequence == 1
            assert commit.added == (Quad(*STATE),)
            [notification] = commit.notifications
            assert (notification.spuid, notification.added.rows) == (watched.spuid, ((f"<{LAMP}>",),))


@each_row("kind", DOCUMENTS)
def test_a_byte_order_mark_is_no_part_of_the_document(tmp_path: Path, kind: str) -> None:
    marked = b"\xef\xbb\xbf" + DOCUMENTS[kind].encode()
    path = tmp_path / f"lamp.{kind}.gz"
    path.write_bytes(gzip.compress(marked))
    for source, name in ((marked, kind), (path, None)):
        assert Engine().load(source, name).added == (Quad(*STATE),)


@each_row("kind", DOCUMENTS)
def test_bytes_with_a_named_format_go_into_a_graph(kind: str) -> None:
    with Engine() as engine:
        commit = engine.load(DOCUMENTS[kind].encode(), kind, graph="<http://g>")
        assert commit.added == (Quad(*STATE, "<http://g>"),)
        assert commit.delta.created == ("<http://g>",)
        assert engine.load(DOCUMENTS[kind].encode(), kind, graph="<http://g>").delta.kept == commit.added


def test_a_named_format_goes_before_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "street.txt"
    path.write_text(DOCUMENTS["ttl"])
    with Engine() as engine, pytest.raises(UnsupportedRequestError, match=r"street\.txt: the name does not tell"):
        engine.load(path)
    with Engine() as engine:
        assert len(engine.load(path, "text/turtle; charset=utf-8").added) == 1
        assert engine.load(path, "turtle").added == ()


def test_a_dataset_goes_into_its_graphs() -> None:
    data = b"<http://a> <http://p> 1 . GRAPH <http://g> { <http://a> <http://p> 1 , 1.50 }"
    with Engine() as engine:
        commit = engine.load(data, "trig")
        assert sorted((quad.o, quad.g or "") for quad in commit.added) == [
            ('"1"^^<http://www.w3.org/2001/XMLSchema#integer>', ""),
            ('"1"^^<http://www.w3.org/2001/XMLSchema#integer>', "<http://g>"),
            ('"1.5"^^<http://www.w3.org/2001/XMLSchema#decimal>', "<http://g>"),
        ]
        with pytest.raises(UnsupportedRequestError, match="names the graph <http://g> itself; name none for it"):
            engine.load(data, "trig", graph="<http://other>")
        assert engine.quad_count == 3


def test_blank_nodes_are_fresh_and_stay_together() -> None:
    data = b"".join(b"_:a <http://p%d> _:b .\n" % number for number in range(3000))
    with Engine() as engine:
        first, second = engine.load(data).added, engine.load(data).added
        assert len(first) == len(second) == 3000
        assert len({quad.s for quad in first}) == len({quad.o for quad in first}) == 1
        assert {first[0].s, first[0].o}.isdisjoint({second[0].s, second[0].o, "_:a", "_:b"})


def test_relative_names_are_resolved_with_the_base_or_the_graph() -> None:
    with Engine() as engine:
        [quad] = engine.load(b"<#1> <p> <> .", "ttl", base="http://example.org/x").added
        assert quad == Quad("<http://example.org/x#1>", "<http://example.org/p>", "<http://example.org/x>")
        [quad] = engine.load(b"<#1> <p> <> .", "ttl", graph="<http://example.org/g>").added
        assert quad.s == "<http://example.org/g#1>"
        with pytest.raises(RequestSyntaxError, match="declare a base in the document, or pass base"):
            engine.load(b"<#1> <p> <> .", "ttl")
        with pytest.raises(UnsupportedRequestError, match="pass an absolute IRI"):
            engine.load(b"<#1> <p> <> .", "ttl", base="x")


def test_an_empty_document_makes_its_graph() -> None:
    with Engine() as engine:
        commit = engine.load(b"", "ttl", graph="<http://g>")
        assert (commit.sequence, commit.added, commit.delta.created) == (1, (), ("<http://g>",))
        assert engine.store.graphs() == ["<http://g>"]


def test_errors_name_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "street.ttl"
    path.write_text("<http://a> <http://p> 1 .\n<http://a> oops 2 .\n")
    with Engine() as engine:
        with pytest.raises(SyntaxError) as caught:
            engine.load(path)
        assert isinstance(caught.value, GatewayError)
        assert (caught.value.filename, caught.value.lineno, caught.value.offset) == (str(path), 2, 12)
        assert str(caught.value).startswith(f"{path} line 2, column 12: ")
        assert str(caught.value).endswith("(read as text/turtle)")
        with pytest.raises(RequestSyntaxError, match=r"^line 2, column 12: [^:]+$"):
            engine.load(path.read_bytes(), "ttl")
        assert engine.sequence == engine.quad_count == 0


@each_row(
    ("name", "data", "error", "message"),
    [
        ("a.rdf", b"<rdf", RequestSyntaxError, r"a\.rdf line 1, column"),
        ("a.rdf", b"<!DOCTYPE r []><r/>", UnsupportedRequestError, r"a\.rdf: RDF/XML with a DOCTYPE"),
        ("a.rdf", b"<a>" * 300, LimitExceededError, r"a\.rdf: elements are nested more than 200"),
        ("a.rdf", b"\xff", RequestSyntaxError, r"a\.rdf: the document is not UTF-8"),
        ("a.jsonld", b"[" * 300, LimitExceededError, r"a\.jsonld: the JSON is nested 300 deep"),
        ("a.jsonld", b'{"@context": "http://c", "@id": "http://a"}', RequestSyntaxError, "put the context into"),
        ("a.ttl", b"<<" * 60, LimitExceededError, r"a\.ttl: triples are nested 60 deep"),
        ("a.ttl", b'<a:s> <a:p> "%s" .' % (b"x" * 2_000_000), LimitExceededError, r"a\.ttl: a term that begins"),
        ("a.ttl", b'<a:s> <a:p> "%s" .' % (b"x" * 17_000_000), LimitExceededError, r"a\.ttl: "),
        ("a.ttl.gz", b"no gzip", RequestSyntaxError, r"a\.ttl\.gz: not a whole gzip file"),
        ("a.ttl.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], RequestSyntaxError, r"a\.ttl\.gz: not a whole gzip file"),
        ("a.ttl.zip", b"", UnsupportedRequestError, "the name does not tell the format"),
        ("a", b"", UnsupportedRequestError, "the name does not tell the format"),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, name: str, data: bytes, error: type[GatewayError], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with Engine() as engine:
        with pytest.raises(error, match=message):
            engine.load(tmp_path / name)
        assert engine.sequence == engine.quad_count == 0


def test_wrong_arguments_are_named() -> None:
    with Engine() as engine:
        with pytest.raises(FileNotFoundError, match=r"nowhere\.ttl"):
            engine.load("nowhere.ttl")
        with pytest.raises(UnsupportedRequestError, match=r"load\(text\.encode\(\), \"ttl\"\)"):
            engine.load("<http://a> <http://p> 1 .\n")
        with pytest.raises(
            UnsupportedRequestError, match="unknown format 'docx'; use one of application/n-triples, nt"
        ):
            engine.load(b"", "docx")
        for graph in ("http://g", "<http://g", "<g>", "_:g", '"g"', "<http://a b>"):
            with pytest.raises(UnsupportedRequestError, match="in N-Triples syntax; write <http:"):
                engine.load(b"", "ttl", graph=graph)


def test_the_size_is_limited(tmp_path: Path) -> None:
    data = b"<http://a> <http://p> '1' .\n".replace(b"'", b'"') * 100
    (tmp_path / "a.nt").write_bytes(data)
    (tmp_path / "a.nt.gz").write_bytes(gzip.compress(data))
    with Engine() as engine:
        for source in (data, tmp_path / "a.nt", tmp_path / "a.nt.gz"):
            with pytest.raises(
                LimitExceededError, match="has more than 2799 bytes; load it in parts, or pass a larger"
            ):
                engine.load(source, bytes_max=2799)
            engine.load(source, bytes_max=2800)


def test_the_size_of_what_a_document_stands_for_is_limited() -> None:
    document = b"<http://a> <http://p> 1, 2 ."
    size = sum(len(f'<http://a> <http://p> "{number}"^^<{XSD}integer> <http://g> .\n') for number in (1, 2))
    with Engine() as engine:
        with pytest.raises(LimitExceededError, match=f"stands for more than {size - 1} characters"):
            engine.load(document, "ttl", graph="<http://g>", bytes_max=size - 1)
        assert len(engine.load(document, "ttl", graph="<http://g>", bytes_max=size).added) == 2


def test_a_prefix_that_makes_much_of_little_is_noticed_early() -> None:
    prefix = b"@prefix p: <http://%s/> .\n" % (b"x" * 500_000)
    document = prefix + b"".join(b"p:a p:b %d .\n" % number for number in range(10_000))
    with Engine() as engine, pytest.raises(LimitExceededError, match="stands for more than 10000000 characters"):
        engine.load(document, "ttl", bytes_max=10_000_000)


def _large(kind: str) -> tuple[bytes, str]:
    """A document of 6,000 quads on two predicates, and its format."""
    form = {
        "plain": '<http://s/{0}> <http://p/{1}> "{0}" .\n',
        "with graphs": '<http://s/{0}> <http://p/{1}> "{0}" <http://g/{1}> .\n',
        "not canonical": '<http://s/{0}> <http://p/{1}> "0{0}"^^<http://www.w3.org/2001/XMLSchema#integer> .\n',
        "turtle": "<http://s/{0}> <http://p/{1}> {0} .\n",
    }[kind]
    lines = [form.format(number, number % 2) for number in range(6000)]
    lines.insert(3, lines[0])  # twice the same
    return "".join(lines).encode(), {"with graphs": "nq", "turtle": "ttl"}.get(kind, "nt")


@each_row("graph", [None, "<http://g>"])
@each_row("kind", ["plain", "with graphs", "not canonical", "turtle"])
def test_an_empty_dataset_takes_a_large_document_as_any_other(kind: str, graph: str | None) -> None:
    document, syntax = _large(kind)
    if kind == "with graphs" and graph is not None:
        return
    query = "SELECT ?s ?v { { ?s <http://p/1> ?v } UNION { GRAPH ?g { ?s <http://p/1> ?v } } }"
    with Engine() as empty, Engine() as other:
        other.load(b"<http://a> <http://b> <http://c> <http://d> .\n", "nq")
        for engine in (empty, other):
            engine.subscribe(query)
            engine.subscribe("SELECT ?p ?v { { <http://s/8> ?p ?v } UNION { GRAPH ?g { <http://s/8> ?p ?v } } }")
        commits = [engine.load(document, syntax, graph=graph) for engine in (empty, other)]
        assert len(commits[0].added) == 6000
        assert commits[0].delta == commits[1].delta
        assert [one.added for one in commits[0].notifications] == [one.added for one in commits[1].notifications]
        assert [len(one.added) for one in commits[0].notifications] == [3000, 1]
        for text in ("DELETE WHERE { <http://s/1> ?p ?o }", "INSERT DATA { <http://s/2> <http://p/1> 5 }", "CLEAR ALL"):
            left = [set(engine.dump().splitlines()) for engine in (empty, other)]
            assert left[0] == left[1] - {b"<http://a> <http://b> <http://c> <http://d> ."}
            assert (empty.quad_count, empty.store.graphs()) == (other.quad_count - 1, other.store.graphs()[1:])
            for engine in (empty, other):
                engine.update(text)
        assert empty.dump() == b""
        for engine in (empty, other):  # the removed quads are still in the lists of the native store
            assert engine.load(document, syntax, graph=graph).added == commits[0].added
            assert engine.load(document, syntax, graph=graph).delta.kept == commits[0].added
            while engine.store.step():
                pass
            assert len(engine.dump().splitlines()) == engine.quad_count == 6000


def test_an_error_at_the_end_of_a_large_document_leaves_nothing() -> None:
    document, _ = _large("plain")
    with Engine() as engine:
        engine.subscribe("SELECT * { ?s <http://p/1> ?v }")
        with pytest.raises(RequestSyntaxError) as raised:
            engine.load(document + b"<http://s> <p> <http://o> .\n")
        assert raised.value.lineno == 6002
        with pytest.raises(LimitExceededError, match="characters of N-Quads"):
            engine.load(document, graph="<http://g>", bytes_max=len(document))
        assert (engine.sequence, engine.quad_count, engine.dump(), engine.store.graphs()) == (0, 0, b"", [])
        assert len(engine.load(document).notifications[0].added) == 3000


def test_a_prepared_document_may_be_committed_later_or_never() -> None:
    document, _ = _large("plain")
    with Engine() as engine:
        delta = engine.prepare_load(document)
        assert (engine.quad_count, engine.dump()) == (0, b"")
        engine.update("INSERT DATA { <http://a> <http://b> <http://c> }")
        engine.commit(delta)
        assert len(engine.dump().splitlines()) == engine.quad_count == 6001
        engine.commit(delta.invert())
        assert engine.dump() == b"<http://a> <http://b> <http://c> .\n"
        engine.commit(delta)
        assert len(engine.dump().splitlines()) == 6001
    with Engine() as engine:
        delta = engine.prepare_load(document)
        for each in (delta, delta.invert(), delta):  # the second time, nothing is there to be taken
            engine.commit(each)
            assert len(engine.dump().splitlines()) == engine.quad_count == len(each.added)


def test_a_large_document_is_indexed_where_only_the_index_needs_it() -> None:
    document, _ = _large("plain")
    with Engine() as engine:
        engine.cts.hold("<http://p/0>")
        engine.load(document)
        assert len(engine.cts) == 3000
