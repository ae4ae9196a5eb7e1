"""Arguments of wrong types: each public call of the engine names the argument, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError

ALL = "SELECT * { ?s ?p ?o }"
QUAD = b"<urn:a> <urn:b> <urn:c> ."
WRONG = {
    "None": None,
    "int": 5,
    "float": 1.5,
    "bool": True,
    "bytes": b"x",
    "list": [1],
    "dict": {"a": 1},
    "object": object(),
    "class": Engine,
    "text": "x",
}

Call = Callable[[Engine, Any], object]
CALLS: dict[str, tuple[str, Call, tuple[str, ...]]] = {
    "update": ("request", lambda engine, value: engine.update(value), ("text",)),
    "prepare": ("request", lambda engine, value: engine.prepare(value), ("text",)),
    "prepare with access": ("access", lambda engine, value: engine.prepare("CLEAR ALL", access=value), ()),
    "prepare with now": ("now", lambda engine, value: engine.prepare("CLEAR ALL", now=value), ("None",)),
    "request": ("sparql", lambda engine, value: engine.request(value), ("text",)),
    "load": ("source", lambda engine, value: engine.load(value, "ttl"), ("bytes", "text")),
    "load a media type": ("media_type", lambda engine, value: engine.load(QUAD, value), ("None", "text")),
    "load into a graph": ("graph", lambda engine, value: engine.load(QUAD, graph=value), ("None", "text")),
    "load with a base": ("base", lambda engine, value: engine.load(QUAD, base=value), ("None", "text")),
    "load so much": ("bytes_max", lambda engine, value: engine.load(QUAD, bytes_max=value), ("int", "bool")),
    "prepare_write": ("write", lambda engine, value: engine.prepare_write(value), ()),
    "prepare_change": ("delta", lambda engine, value: engine.prepare_change(value), ()),
    "commit": ("delta", lambda engine, value: engine.commit(value), ()),
    "converge": ("delta", lambda engine, value: engine.converge(value), ()),
    "infer": ("graphs", lambda engine, value: engine.infer(value), ()),
    "infer with ontologies": ("ontologies", lambda engine, value: engine.infer([], value), ()),
    "validate": ("sources", lambda engine, value: engine.validate(value), ("None",)),
    "advance": ("now", lambda engine, value: engine.advance(value), ("None",)),
    "reach": ("now", lambda engine, value: engine.reach(value), ()),
    "changes_until": ("now", lambda engine, value: engine.changes_until(value), ()),
    "listen": ("listener", lambda engine, value: engine.listen(value), ("class",)),
    "subscribe": ("sparql", lambda engine, value: engine.subscribe(value), ("text",)),
    "subscribe to graphs": (
        "default_graphs",
        lambda engine, value: engine.subscribe(ALL, default_graphs=value),
        ("None",),
    ),
    "subscribe to named": ("named_graphs", lambda engine, value: engine.subscribe(ALL, named_graphs=value), ("None",)),
    "subscribe with access": ("access", lambda engine, value: engine.subscribe(ALL, access=value), ()),
    "evaluation": ("sparql", lambda engine, value: engine.evaluation_of_subscription(value), ("text",)),
    "unsubscribe": ("spuid", lambda engine, value: engine.unsubscribe(value), ("text",)),
    "describe": ("spuid", lambda engine, value: engine.describe(value), ("text",)),
    "subscribed": ("spuid", lambda engine, value: engine.subscribed(value), ("text",)),
    "query": ("sparql", lambda engine, value: engine.query(value), ("text",)),
    "query graphs": ("default_graphs", lambda engine, value: engine.query(ALL, default_graphs=value), ("None",)),
    "query named": ("named_graphs", lambda engine, value: engine.query(ALL, named_graphs=value), ("None",)),
    "query with access": ("access", lambda engine, value: engine.query(ALL, access=value), ()),
    "dump": ("media_type", lambda engine, value: engine.dump(value), ("text",)),
}
"""Each call with a wrong value, the argument that its error names, and which of `WRONG` have a right type."""


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_told_and_changes_nothing(name: str) -> None:
    argument, call, right = CALLS[name]
    with Engine() as engine:
        engine.update("INSERT DATA { <urn:s> <urn:p> 1 }")
        spuid = engine.subscribe(ALL).spuid
        before = engine.dump(), engine.subscription_count, engine.sequence
        for kind, value in WRONG.items():
            if kind in right:
                continue
            with pytest.raises(TypeError, match=rf"^{argument}\b.* instead of ") as refused:
                call(engine, value)
            assert isinstance(refused.value, GatewayError)
            assert (engine.dump(), engine.subscription_count, engine.sequence) == before
        assert engine.describe(spuid).spuid == spuid
        [notification] = engine.update("INSERT DATA { <urn:s> <urn:p> 2 }").notifications
        assert notification.sequence == 1
