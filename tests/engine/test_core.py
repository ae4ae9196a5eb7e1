"""The engine as a library, to the letter of the design's section 8."""

import json

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError, UnknownSpuidError
from lamplighter.engine.terms import Quad
from tests.support.tables import each_row

LAMPS = "SELECT ?lamp ?state WHERE { ?lamp <a:state> ?state }"


def test_library_use() -> None:
    engine = Engine()
    engine.load(b'<a:1> <a:state> "OFF" .\n', media_type="application/n-triples")
    subscription = engine.subscribe(LAMPS)
    assert subscription.first.to_json() == {
        "head": {"vars": ["lamp", "state"]},
        "results": {
            "bindings": [{"lamp": {"type": "uri", "value": "a:1"}, "state": {"type": "literal", "value": "OFF"}}]
        },
    }
    commit = engine.update("DELETE { ?l <a:state> ?s } INSERT { ?l <a:state> 'ON' } WHERE { ?l <a:state> ?s }")
    assert commit.sequence == 2
    assert commit.added == (Quad("<a:1>", "<a:state>", '"ON"'),)
    assert commit.removed == (Quad("<a:1>", "<a:state>", '"OFF"'),)
    [notification] = commit.notifications
    assert notification.spuid == subscription.spuid
    assert notification.sequence == 1
    assert notification.added.rows == (("<a:1>", '"ON"'),)
    assert notification.removed.rows == (("<a:1>", '"OFF"'),)
    assert json.dumps(notification.added.to_json())
    assert engine.query("ASK { <a:1> <a:state> 'ON' }").to_json() == {"head": {}, "boolean": True}
    assert engine.query(LAMPS).to_json()["head"] == {"vars": ["lamp", "state"]}
    assert engine.dump("application/n-quads") == b'<a:1> <a:state> "ON" .\n'
    engine.unsubscribe(subscription.spuid)
    assert engine.update("DELETE WHERE { ?l <a:state> ?s }").notifications == ()
    engine.close()


@each_row(
    ("media_type", "data"),
    [
        ("application/n-triples", b"<a:s> <a:p> <a:o> ."),
        ("application/n-quads", b"<a:s> <a:p> <a:o> <a:g> ."),
        ("text/turtle", b"@prefix a: <a:> . a:s a:p a:o ."),
        ("application/trig", b"@prefix a: <a:> . a:g { a:s a:p a:o }"),
    ],
)
def test_each_syntax_is_one_commit(media_type: str, data: bytes) -> None:
    engine = Engine()
    commit = engine.load(data, media_type=media_type)
    assert commit.sequence == 1
    assert len(commit.added) == 1
    assert engine.load(data, media_type=media_type).added == ()
    assert engine.quad_count == 1


def test_document_that_does_not_parse_changes_nothing() -> None:
    engine = Engine()
    with pytest.raises(SyntaxError) as caught:
        engine.load(b"<a:s> <a:p> <a:o> .\n<a:s> <a:p> .\n")
    assert isinstance(caught.value, GatewayError)
    assert caught.value.lineno == 2
    assert engine.dump() == b""


def test_bad_syntax_is_both_kinds_of_error_and_changes_nothing() -> None:
    engine = Engine()
    for ask in (engine.update, engine.query, engine.subscribe):
        with pytest.raises(SyntaxError) as caught:
            ask("SELEKT\n*")
        assert isinstance(caught.value, GatewayError)
        assert caught.value.lineno in (1, 2)
        assert caught.value.offset is not None
    assert engine.sequence == 0
    assert engine.subscription_count == 0


def test_rows_that_occur_twice_count_twice() -> None:
    engine = Engine()
    engine.update("INSERT DATA { <a:1> <a:p> 1 . <a:2> <a:p> 1 }")
    subscription = engine.subscribe("SELECT ?o { ?s <a:p> ?o }")
    one = ('"1"^^<http://www.w3.org/2001/XMLSchema#integer>',)
    assert subscription.first.rows == (one, one)
    [notification] = engine.update("DELETE DATA { <a:1> <a:p> 1 }").notifications
    assert notification.removed.rows == (one,)
    assert notification.added.rows == ()


def test_no_notification_without_net_change() -> None:
    engine = Engine()
    engine.update("INSERT DATA { <a:1> <a:p> 1 }")
    engine.subscribe("SELECT * { ?s <a:p> ?o }")
    engine.subscribe("SELECT DISTINCT ?p { ?s ?p ?o }")
    assert engine.update("DELETE DATA { <a:1> <a:p> 1 } ; INSERT DATA { <a:1> <a:p> 1 }").notifications == ()


def test_same_text_shares_the_evaluation_and_counts_for_itself() -> None:
    engine = Engine()
    early = engine.subscribe(LAMPS)
    engine.update("INSERT DATA { <a:1> <a:state> 'ON' }")
    late = engine.subscribe(LAMPS)
    assert late.spuid != early.spuid
    assert len(late.first) == 1
    commit = engine.update("INSERT DATA { <a:2> <a:state> 'ON' }")
    assert [(n.spuid, n.sequence) for n in commit.notifications] == [(early.spuid, 2), (late.spuid, 1)]
    engine.unsubscribe(early.spuid)
    [notification] = engine.update("INSERT DATA { <a:3> <a:state> 'ON' }").notifications
    assert (notification.spuid, notification.sequence) == (late.spuid, 2)


def test_ended_subscriptions_leave_nothing_behind() -> None:
    engine = Engine()
    for number in range(50):
        engine.unsubscribe(engine.subscribe(f"SELECT * {{ <a:{number}> ?p ?o GRAPH ?g {{ ?s <a:x> 1 }} }}").spuid)
        engine.unsubscribe(engine.subscribe(f"SELECT * {{ <a:{number}> <a:p>* ?o GRAPH ?g {{}} }}").spuid)
    with pytest.raises(UnknownSpuidError):
        engine.unsubscribe("sepa://subscription/unknown")
    assert engine.subscription_count == 0
    subscriptions = engine._subscriptions
    assert subscriptions._lutt._patterns == {}
    assert subscriptions._lutt.matchers == {}
    assert subscriptions._shapes.by_key == {}
    assert len(engine._cts) == 0
    assert engine._cts.tables == {}


def test_refused_commit_changes_nothing() -> None:
    engine = Engine()
    engine.subscribe(LAMPS)
    delta = engine.prepare("INSERT DATA { <a:1> <a:state> 'ON' } ; INSERT { ?l <a:x> 1 } WHERE { ?l <a:state> 'ON' }")
    assert len(delta.added) == 2
    assert engine.dump() == b""
    assert engine.sequence == 0
    assert len(engine.commit(delta).notifications) == 1


def test_blank_nodes_keep_their_labels() -> None:
    engine = Engine()
    subscription = engine.subscribe("SELECT ?b ?v { ?b <a:v> ?v }")
    [added] = engine.update("INSERT DATA { [] <a:v> 1 }").notifications
    [changed] = engine.update("DELETE { ?b <a:v> ?v } INSERT { ?b <a:v> 2 } WHERE { ?b <a:v> ?v }").notifications
    assert subscription.first.rows == ()
    assert added.added.rows[0][0] == changed.removed.rows[0][0] == changed.added.rows[0][0]


def test_lists_of_notifications_follow_the_order_of_subscribing() -> None:
    engine = Engine()
    spuids = [engine.subscribe(f"SELECT ?s {{ ?s ?p{number} ?o }}").spuid for number in range(20)]
    commit = engine.update("INSERT DATA { <a:1> <a:p> 1 }")
    assert [notification.spuid for notification in commit.notifications] == spuids
