"""Arguments of wrong types: each public call of the client library names the argument, before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lamplighter.engine import client
from lamplighter.engine.client.oauth import register
from lamplighter.engine.client.patterns import Options
from lamplighter.engine.errors import ArgumentTypeError, GatewayError
from lamplighter.engine.protocol import UpdateRequest
from lamplighter.engine.protocol.jsap import parse
from tests.engine.test_argument_types import WRONG

NOWHERE = "http://127.0.0.1:9"
PROFILE = parse(b'{"host":"127.0.0.1","queries":{"Q":{"sparql":"SELECT * {}"}},"updates":{"U":{"sparql":"CLEAR ALL"}}}')
CREDENTIALS = client.Credentials("a", "b")
MADE: dict[type, tuple[Any, ...]] = {
    client.EngineClient: ("ws://127.0.0.1:9/subscribe",),
    client.SparqlEndpoint: (NOWHERE,),
    client.GenericClient: (PROFILE,),
    client.Producer: (PROFILE, "U"),
    client.Consumer: (PROFILE, "Q"),
    client.Aggregator: (PROFILE, "Q", "U"),
    client.InboxReader: (NOWHERE,),
    client.OAuth: (f"{NOWHERE}/oauth/token", CREDENTIALS),
    client.Credentials: ("a", "b"),
}
"""The arguments that each class needs."""
FUNCTIONS: dict[Callable[..., Any], tuple[Any, ...]] = {client.load_profile: ("a",), register: (NOWHERE, "a")}
_TEXT, _FILE, _FLAG = ("text",), ("None", "text"), ("bool",)
RIGHT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("url", "name", "sparql", "base", "query_url", "update_url", "query_method", "update_method"), _TEXT
    ),
    **dict.fromkeys(("accept", "target", "client_id", "client_secret", "token_url", "provider", "token"), _TEXT),
    **dict.fromkeys(("update", "query", "profile", "place", "path", "identity"), _TEXT),
    **dict.fromkeys(("ca", "unix", "request_id", "delay", "at", "missed", "priority", "keep", "after", "code"), _FILE),
    **dict.fromkeys(("delta", "leave", "tell_commit", "is_inbox"), _FLAG),
    **dict.fromkeys(("tokens", "cause", "resume", "default_graphs", "named_graphs"), ("None",)),
    **dict.fromkeys(("requests", "using_graphs", "using_named_graphs", "origins", "settings", "credentials"), ()),
    **dict.fromkeys(("row", "values"), ("dict",)),
    **dict.fromkeys(("extensions", "graphs"), ("None", "dict")),
    **dict.fromkeys(("find", "find_unread", "handler", "clock"), ("class",)),
    "timeout_s": ("int", "float", "bool"),
}
"""Which of `WRONG` have a right type for an argument of that name."""
FILLED = {
    "find": list,
    "sparql": "CLEAR ALL",
    "name": "U",
    "accept": "*/*",
    "url": f"{NOWHERE}/n",
    "requests": [],
    "path": "a",
}
NEVER_REFUSED = {"expired"}
"""Calls that a connection makes, with what `token` has returned."""


def parameters(call: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(call).parameters.values():
        if parameter.name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            yield parameter


def calls() -> Iterator[tuple[str, Callable[[str, Any], Any], str]]:
    """(name, call with one argument replaced, the argument) of each argument of each public call."""
    for kind, needed in MADE.items():
        yield from of_one(kind.__name__, lambda kind=kind: kind, kind, needed)
        for name, member in inspect.getmembers(kind, inspect.isroutine):
            if name.startswith("_") or name in NEVER_REFUSED:
                continue
            found = inspect.getattr_static(kind, name)
            made = (lambda kind=kind: kind) if isinstance(found, classmethod) else lambda k=kind, n=needed: k(*n)
            yield from of_one(f"{kind.__name__}.{name}", lambda made=made, name=name: getattr(made(), name), member, ())
    for function, needed in FUNCTIONS.items():
        yield from of_one(function.__name__, lambda function=function: function, function, needed)


def of_one(
    name: str, made: Callable[[], Any], call: Callable[..., Any], needed: tuple[Any, ...]
) -> Iterator[tuple[str, Callable[[str, Any], Any], str]]:
    found = list(parameters(call))
    filled = dict(zip([one.name for one in found], needed, strict=False)) or {
        one.name: FILLED.get(one.name) for one in found if one.default is one.empty
    }

    def replaced(argument: str, value: Any) -> Any:
        given = {**filled, argument: value}
        first = [given.pop(one.name) for one in found if one.kind is one.POSITIONAL_ONLY and one.name in given]
        return made()(*first, **given)

    for parameter in found:
        yield f"{name}({parameter.name})", replaced, parameter.name


async def outcome(found: Any) -> None:
    if inspect.isawaitable(found):
        await found
    elif inspect.isasyncgen(found):
        await anext(found)
    elif hasattr(found, "gen"):  # of a context manager
        await found.__aenter__()


CALLS = {name: (call, argument) for name, call, argument in calls()}


def test_each_exported_class_with_methods_is_here() -> None:
    exported = {getattr(client, name) for name in client.__all__}
    values = {"DatasetChange", "DeclaredCause", "Jsap", "KeptMessage", "MessagePlace", "Notification", "UpdateAnswer"}
    others = values | {"UpdateDelta", "UpdateRequest", "Tokens"}
    classes = {one for one in exported if isinstance(one, type) and not issubclass(one, GatewayError)}
    assert {one.__name__ for one in classes} == {one.__name__ for one in MADE} | others


@pytest.mark.parametrize("name", CALLS)
async def test_a_wrong_type_is_told_before_anything_is_sent(name: str) -> None:
    call, argument = CALLS[name]
    for kind, value in WRONG.items():
        if kind not in RIGHT[argument]:
            with pytest.raises(ArgumentTypeError, match=rf"^{argument}\b.* instead of "):
                await outcome(call(argument, value))


@pytest.mark.parametrize("argument", Options.__annotations__)
def test_an_option_of_a_wrong_type_is_told(argument: str) -> None:
    right = {"credentials": ("None", "text")}.get(argument, RIGHT[argument])
    for kind, value in WRONG.items():
        if kind not in right:
            with pytest.raises(ArgumentTypeError, match=rf"^{argument}\b.* instead of "):
                client.GenericClient(PROFILE, **{argument: value})  # type: ignore[arg-type]


def test_an_unknown_option_is_told() -> None:
    with pytest.raises(ArgumentTypeError, match=r"^kepe: no option of a client; there are credentials, ca, keep"):
        client.GenericClient(PROFILE, kepe="PT1M")  # type: ignore[call-arg]


@pytest.mark.parametrize("member", ["sparql", "request_id", "delay", "at", "missed", "priority", "cause", "delta"])
async def test_a_member_of_one_of_several_updates_is_told(member: str) -> None:
    for kind, value in WRONG.items():
        if kind not in (*RIGHT[member], *(("None",) if member == "delta" else ())):
            request = UpdateRequest(**{"sparql": "CLEAR ALL", member: value})
            with pytest.raises(ArgumentTypeError, match=rf"^{member}\b.* instead of "):
                await client.EngineClient("ws://127.0.0.1:9/subscribe").updates([UpdateRequest("CLEAR ALL"), request])


@pytest.mark.parametrize("resume", [("a",), (1, 1), ("a", "1"), ("a", None)])
async def test_what_is_no_place_to_resume_at_is_told(resume: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^resume.* instead of "):
        await anext(client.EngineClient("ws://127.0.0.1:9/subscribe").subscribe("SELECT * {}", resume=resume))
