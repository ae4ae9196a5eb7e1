"""Subscriptions as queries: a plan follows each, a change costs what it changes, and rows tell what happened."""

from __future__ import annotations

from time import thread_time
from typing import Any

from lamplighter.engine import Engine
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.terms import Term, iri
from lamplighter.gateway.gates.ngsild.contexts import DEFAULT, PLAIN
from lamplighter.gateway.gates.ngsild.graphs import RESULT, STREAM_TYPE, EntityGraphs
from lamplighter.gateway.gates.ngsild.information import attributes
from lamplighter.gateway.gates.ngsild.subscriptions import TRIGGERS, kept_members, subscription
from lamplighter.gateway.gates.ngsild.watching import PATTERNS_MAX, EntityChange, Watching
from lamplighter.gateway.gates.ngsild.writing import EntityUpdates
from tests.support.tables import each_row

GRAPHS = EntityGraphs("http://lamplighter.local/")
STREAM = STREAM_TYPE[1:-1]
ALL = list(TRIGGERS)
ONE, TWO = iri("urn:x:1"), iri("urn:x:2")


def watching(**members: Any) -> Watching:
    whole = {"notification": {"endpoint": {"uri": "http://127.0.0.1/"}}, **members}
    return Watching(subscription(kept_members(whole, PLAIN), PLAIN), GRAPHS)


def create(entity: Term, types: list[str], **members: Any) -> str:
    found = {name: one for name, one in attributes(members, PLAIN).items() if one is not None}
    return EntityUpdates(GRAPHS, entity).create([DEFAULT + one for one in types], found)


def put(entity: Term, *types: str, **members: Any) -> str:
    return EntityUpdates(GRAPHS, entity).put(attributes(members, PLAIN), [DEFAULT + one for one in types])


FOLLOWED: list[dict[str, Any]] = [
    {"entities": [{"type": "T"}]},
    {"entities": [{"type": "*"}], "notificationTrigger": ALL, "q": "a==1;b~=x"},
    {"entities": [{"type": "T"}], "q": "a>1|a<0;b|c==1..2,5;d.observedAt>2026-01-01T00:00:00Z"},
    {"entities": [{"type": "T", "id": "urn:x:1"}, {"type": "U,V", "id": "urn:x:2"}], "notificationTrigger": ALL},
    {"entities": [{"type": "T", "idPattern": "^urn"}, {"type": "U"}], "q": "a!=1", "notificationTrigger": ALL},
    {"entities": [{"type": f"T{one}", "id": f"urn:x:{one}"} for one in range(20)], "watchedAttributes": ["a"]},
    {"watchedAttributes": ["a", "b", "c"], "entities": [{"type": "T"}], "q": "a>1"},
    {"watchedAttributes": [f"a{one}" for one in range(50)]},
    {"entities": [{"type": STREAM}], "q": f"{RESULT[1:-1]}>20", "notificationTrigger": ALL},
    {"entities": [{"type": STREAM}], "watchedAttributes": [RESULT[1:-1]]},
]


@each_row("members", FOLLOWED, ids=range(len(FOLLOWED)))
def test_a_plan_follows_each(members: dict[str, Any]) -> None:
    with Engine() as engine:
        info = engine.describe(engine.subscribe(watching(**members).query()).spuid)
        assert info.spu_class in ("telescoped", "seeded"), info.reason


def test_what_no_plan_would_follow_is_refused() -> None:
    for terms in range(1, 20):
        text = "|".join(f"a{one}>1" for one in range(terms))
        try:
            query = watching(entities=[{"type": "T"}], q=text).query()
        except LimitExceededError as error:
            assert f"{PATTERNS_MAX} are the most" in str(error) and terms > 5
            return
        with Engine() as engine:
            assert engine.describe(engine.subscribe(query).spuid).spu_class == "seeded"
    raise AssertionError("none is refused")


@each_row(
    "members",
    [
        {"entities": [{"type": "T"}], "notificationTrigger": ALL, "q": "a>10;b"},
        {"entities": [{"type": "T"}, {"type": "U"}], "q": "a>10"},
        {"entities": [{"type": "T", "idPattern": "^urn"}], "watchedAttributes": ["a", "b"], "q": "b>10"},
    ],
)
def test_a_change_costs_what_it_changes(members: dict[str, Any]) -> None:
    """10 updates take less than the first evaluation over 300 entities; evaluating again would take 10 times it."""
    with Engine() as engine:
        for number in range(300):
            engine.update(create(iri(f"urn:x:{number}"), ["T"], a=number, b=number))
        begun = thread_time()
        spuid = engine.subscribe(watching(**members).query()).spuid
        first_s = thread_time() - begun
        texts = [put(iri(f"urn:x:{number}"), a=-1 - number) for number in range(20)]
        for text in texts[10:]:
            engine.update(text)
        begun = thread_time()
        told = [engine.update(text) for text in texts[:10]]
        took_s = thread_time() - begun
        assert took_s < first_s
        assert all(one.notifications[0].spuid == spuid for one in told)


def changes(before: list[str], text: str, **members: Any) -> dict[Term, EntityChange]:
    """What an update changes after others."""
    with Engine() as engine:
        for one in before:
            engine.update(one)
        watched = watching(**members)
        engine.subscribe(watched.query())
        found = engine.update(text).notifications
        if not found:
            return {}
        return watched.changes(list(found[0].added.bindings()), list(found[0].removed.bindings()))


def told(found: dict[Term, EntityChange]) -> dict[Term, tuple[list[str], bool]]:
    return {entity: (sorted(set(one.triggers())), one.matches) for entity, one in found.items()}


T: dict[str, Any] = {"entities": [{"type": "T"}], "notificationTrigger": ALL}


def test_triggers() -> None:
    there = [create(ONE, ["T"], a=1, b=2)]
    assert told(changes([], there[0], **T)) == {ONE: (["attributeCreated", "entityCreated"], True)}
    assert told(changes(there, put(ONE, a=2), **T)) == {ONE: (["attributeUpdated"], True)}
    assert told(changes(there, put(ONE, a=1), **T)) == {}, "nothing changes"
    assert told(changes(there, put(ONE, c=1), **T)) == {ONE: (["attributeCreated"], True)}
    observed = {"value": 1, "observedAt": "2026-01-01T00:00:00Z"}
    assert told(changes(there, put(ONE, a=observed), **T)) == {ONE: (["attributeUpdated"], True)}
    assert told(changes(there, put(ONE, a={"object": "urn:x:y"}), **T)) == {ONE: (["attributeUpdated"], True)}
    removed = put(ONE, a="urn:ngsi-ld:null")
    assert told(changes(there, removed, **T)) == {ONE: (["attributeDeleted"], True)}
    deleted = changes(there, EntityUpdates(GRAPHS, ONE).delete(), **T)
    assert told(deleted) == {ONE: (["attributeDeleted", "entityDeleted"], True)}
    assert deleted[ONE].types == {iri(DEFAULT + "T")}
    assert told(changes(there, put(ONE, "U"), **T))[ONE][0] == [], "a further type is no change of an attribute"
    both = T | {"entities": [{"type": "T"}, {"type": "U"}]}
    assert told(changes(there, put(ONE, "U"), **both))[ONE][0] == []
    assert told(changes([create(ONE, ["O"], a=1)], put(ONE, "T"), **T)) == {
        ONE: (["attributeCreated", "entityCreated"], True)
    }, "it enters what is subscribed"


def test_the_condition_is_that_of_the_commit() -> None:
    there = [create(ONE, ["T"], a=1, b=2)]
    assert told(changes(there, put(ONE, a=5), q="a>3", **T)) == {ONE: (["attributeUpdated"], True)}
    assert told(changes([put(ONE, a=5)], put(ONE, a=1), q="a>3", **T)) == {}
    assert told(changes([create(ONE, ["T"], a=5)], put(ONE, a=1), q="a>3", **T)) == {ONE: (["attributeUpdated"], False)}
    watched = T | {"watchedAttributes": ["a"]}
    assert told(changes(there, put(ONE, b=9), q="b>3", **watched)) == {ONE: ([], True)}, "b is not watched"
    deleted = EntityUpdates(GRAPHS, ONE).delete()
    assert (
        told(changes(there, deleted, q="a==1", **T))[ONE][1] and not told(changes(there, deleted, q="a>1", **T))[ONE][1]
    )


def test_entities_of_one_commit_are_told_apart() -> None:
    there = [create(ONE, ["T"], a=1), create(TWO, ["T"], a=1)]
    text = f"{put(ONE, a=2)} ; {EntityUpdates(GRAPHS, TWO).delete()}"
    assert told(changes(there, text, **T)) == {
        ONE: (["attributeUpdated"], True),
        TWO: (["attributeDeleted", "entityDeleted"], True),
    }
