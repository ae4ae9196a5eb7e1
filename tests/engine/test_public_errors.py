"""Public calls with values of the right type that mean nothing: each error is a GatewayError, or it is documented.

Documented are OSError of `Engine.load` for a file that cannot be opened, and ValueError of `change_log` for a line.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamplighter.engine import Engine, change_log, client, protocol
from lamplighter.engine.client.oauth import register
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol.jsap import parse
from tests.support.tables import each_row

TEXTS = (
    *(
        "",
        " ",
        "\ud800",
        "\0",
        "not } {",
        "a" * 100,
        "_:b",
        "?x",
        '"x',
        "<urn:x",
        "<urn:\ud800>",
        "a:b c",
        "5",
        "{}",
        "[]",
    ),
    *("http://[", "https://h/\ud800", "http://127.0.0.1:1/", "http://a:99999/", "ws://", "ws://[", "ws+unix:x"),
    *("file:///\0", "/missing/\udc80", "1/x"),
)
QUERY = "SELECT * { ?s ?p ?o }"
TRIPLE = b"<urn:a> <urn:b> <urn:c> ."
CREDENTIALS = client.Credentials("id", "secret")
FORMATS = ("ttl", "nt", "nq", "trig", "rdf", "jsonld")


def profile() -> client.Jsap:
    return parse(
        b'{"host": "127.0.0.1", "queries": {"Q": {"sparql": "ASK {}"}}, "updates": {"U": {"sparql": "CLEAR ALL"}}}'
    )


async def opened(text: str) -> None:
    async with client.EngineClient(text):
        pass


async def asked(text: str) -> None:
    async with client.SparqlEndpoint(text) as endpoint:
        await endpoint.query("ASK {}")


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


CALLS: dict[str, Callable[[str], Any]] = {
    **{
        f"Engine.{name}": lambda text, name=name: getattr(Engine(), name)(text)
        for name in (
            "update",
            "query",
            "subscribe",
            "unsubscribe",
            "describe",
            "subscribed",
            "prepare",
            "request",
            "dump",
        )
    },
    "Engine.load": lambda text: Engine().load(text),
    "Engine.load of a file": lambda text: Engine().load(f"{text}.ttl"),
    "Engine.load of a path": lambda text: Engine().load(Path(f"{text}.ttl")),
    "Engine.load media_type": lambda text: Engine().load(TRIPLE, text),
    "Engine.load graph": lambda text: Engine().load(TRIPLE, "ttl", graph=text),
    "Engine.load base": lambda text: Engine().load(b"<a> <urn:b> <urn:c> .", "ttl", base=text),
    **{f"Engine.load {kind}": lambda text, kind=kind: Engine().load(as_bytes(text), kind) for kind in FORMATS},
    "Engine.query default_graphs": lambda text: Engine().query(QUERY, default_graphs=[text]),
    "Engine.query named_graphs": lambda text: Engine().query(QUERY, named_graphs=[text]),
    "Engine.subscribe default_graphs": lambda text: Engine().subscribe(QUERY, default_graphs=[text]),
    "Engine.subscribe named_graphs": lambda text: Engine().subscribe(QUERY, named_graphs=[text]),
    "load_profile": client.load_profile,
    "load_profile settings": lambda text: client.load_profile("docs/examples/chat/chat.jsap", [text, f"{text}=1"]),
    "Credentials.load": client.Credentials.load,
    "Credentials.save": lambda text: CREDENTIALS.save(f"/missing/{text}"),
    "register": lambda text: register(text, "x"),
    "EngineClient": opened,
    "SparqlEndpoint": asked,
    "OAuth": lambda text: client.OAuth(text, CREDENTIALS),
    "InboxReader": client.InboxReader,
    "Producer": lambda text: client.Producer(profile(), text),
    "Consumer": lambda text: client.Consumer(profile(), text),
    "Jsap.update_text": lambda text: profile().update_text(text, {}),
    "Jsap.update_text values": lambda text: profile().update_text("U", {}, {text: 1}),
    "Jsap.query_text": lambda text: profile().query_text(text, {}),
    "Jsap.query_address": lambda text: profile().query_address(text),
    "Jsap.subscribe_url": lambda text: profile().subscribe_url(text),
    "protocol.requests": protocol.requests,
    "protocol.requests of bytes": lambda text: protocol.requests(as_bytes(text)),
    "protocol.graph_names": lambda text: protocol.graph_names([text]),
    "protocol.dataset": lambda text: protocol.dataset([text], None),
    "Priority.of": protocol.Priority.of,
    "change_log.check": lambda text: change_log.check(as_bytes(text)),
    "change_log.decode": lambda text: change_log.decode(as_bytes(text)),
    "change_log.place": lambda text: change_log.place(as_bytes(text)),
    "change_log.segment_name": change_log.segment_name,
}
DOCUMENTED: dict[str, type[Exception]] = {
    **dict.fromkeys(("Engine.load of a file", "Engine.load of a path", "Engine.load"), OSError),
    **dict.fromkeys(("change_log.check", "change_log.decode", "change_log.place"), ValueError),
}


async def _outcome(call: Callable[[str], Any], text: str) -> None:
    found = call(text)
    if inspect.isawaitable(found):
        await asyncio.wait_for(found, 20)


@each_row("name", CALLS)
def test_an_error_of_a_public_call_is_one_of_the_tree(name: str) -> None:
    refused = 0
    for text in TEXTS:
        try:
            asyncio.run(_outcome(CALLS[name], text))
        except GatewayError as error:
            assert str(error), text
            refused += 1
        except DOCUMENTED.get(name, GatewayError):
            refused += 1
    assert refused or name in TELLS, "nothing was refused"


TELLS = (
    *("Engine.subscribed", "Engine.request", "Engine.subscribe default_graphs"),
    *("protocol.requests", "protocol.requests of bytes", "change_log.segment_name"),
)
"""Calls that return what they found, or look at the value later, also for a text that means nothing."""
