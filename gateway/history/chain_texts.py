"""The links of an explanation in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from lamplighter.adapters.specs import KINDS
from lamplighter.engine.terms import Quad, Term, lexical
from lamplighter.gateway.history.explanation import ChainLink, Explanation, differences
from lamplighter.gateway.history.names import Names, plain
from lamplighter.ontology.vocabulary import ACTIVE, HAS_SIMPLE_RESULT

_AGAIN = {
    "client": ", since the device had another state or came back",
    "timer": ", again at its interval, after attempts without an answer",
}
UNSYNCHRONISED = "clock not synchronised"
_DECLARATIONS = re.compile(r"\b(?:PREFIX\s*[^\s:]*:|BASE)\s*<[^>]*>\s*", re.IGNORECASE)
_PREFIX = re.compile(r"\bPREFIX\s+([\w-]*):\s*<([^>]*)>", re.IGNORECASE)
_PERIOD = re.compile(r"\b([\w-]+):(period-[0-9a-f]{8})\b")
_RESULT, _ACTIVE = f"<{HAS_SIMPLE_RESULT}>", f"<{ACTIVE}>"
_GATES = {"http": "over HTTP", "ws": "over WebSocket"}


def doubtful(explanation: Explanation) -> bool:
    """Whether the clock was synchronised at none of the links."""
    return bool(explanation.links) and not any(link.trusted for link in explanation.links if link.time is not None)


def link_texts(explanation: Explanation, names: Names) -> list[str]:
    """A text for each link. It does not repeat the doubt about all times."""
    all_doubtful = doubtful(explanation)
    return [_link_text(link, names, explanation.cause, doubtful=all_doubtful) for link in explanation.links]


def as_json(explanation: Explanation, names: Names) -> dict[str, Any]:
    """For programs, in N-Triples syntax. label: what people call the actuator; said: the text of a link; after_s: since
    the last link with a time."""
    members: dict[str, Any] = msgspec.to_builtins(explanation)
    members["label"] = names.term(explanation.actuator)
    told = zip(members["links"], link_texts(explanation, names), differences(explanation.links), strict=True)
    for link, said, seconds in told:
        link["said"] = said
        if seconds is not None:
            link["after_s"] = seconds
    return members


def _link_text(link: ChainLink, names: Names, cause: str, *, doubtful: bool) -> str:
    """doubtful: the doubt about all times is told elsewhere."""
    said = _TEXTS[link.link](link, names)
    if link.link == "request":
        said += _AGAIN.get(cause, "")
    doubts = [one for one in (link.doubt, "" if link.trusted or doubtful else UNSYNCHRONISED) if one]
    return " ".join(part for part in (said, f"[{'; '.join(doubts)}]" if doubts else "") if part)


def by_text(link: ChainLink) -> str:
    kind, name = link.by or ("", "")
    if kind in _GATES:
        client = f"client {link.client} at {name.rpartition('@')[2]}" if link.client else f"client {name}"
        return plain(f"{client} {_GATES[kind]}")
    if kind == "application":
        application, begun, _ = name.partition("@")
        return plain(f"start of application {application}" if begun else f"application {name.partition('/')[0]}")
    return plain({"timer": "delayed update", "local-time": "local time"}.get(kind, f"{kind} {name}"))


def origin_text(link: ChainLink, names: Names) -> str:
    """Who made a reading or an update, and what it did: to the state of the actuator, or at least to some quads."""
    if link.state is not None:
        before = "" if link.before is None else f", was {names.term(link.before)}"
        done = f"desired state {names.term(link.state)}{before}"
    else:
        more = f"; and {link.more} more" if link.more else ""
        done = "; ".join(assertion_text(quad, names) for quad in link.quads) + more
    return ": ".join(part for part in (by_text(link), done) if part)


def assertion_text(quad: Quad, names: Names) -> str:
    if quad.p == _ACTIVE:
        return f"{names.term(quad.s)} is {'active' if lexical(quad.o) == 'true' else 'not active'}"
    return f"{names.term(quad.o)} of {names.term(quad.s)}" if quad.p == _RESULT else names.quad(quad)


def _query(link: ChainLink, names: Names) -> str:
    text = plain(_query_words(link.text, names)) if link.text else "its text is not in apps/ any more"
    return f"{plain(link.application)}, {plain(link.aggregator)} {link.member}: {text}"


def _query_words(text: str, names: Names) -> str:
    """A query without its declarations, and with the words for the periods of templates in place of their names."""
    namespaces = dict(_PREFIX.findall(text))

    def words(found: re.Match[str]) -> str:
        term = f"<{namespaces.get(found[1], '')}{found[2]}>"
        return found[0] if (said := names.term(term)) == Names("").term(term) else f"[{said}]"

    return _PERIOD.sub(words, _DECLARATIONS.sub("", text))


def _request(link: ChainLink, names: Names) -> str:
    adapter = link.by[0] if link.by is not None and link.by[0] in KINDS else ""
    return f"{adapter} {plain(link.text)}: {state_text(link.state, names)}".strip()


def _report(link: ChainLink, names: Names) -> str:
    return "" if link.state is None else f"the device reported {state_text(link.state, names)}"


def state_text(state: Term | None, names: Names) -> str:
    return "an unknown state" if state is None else names.term(state)


_TEXTS: dict[str, Callable[[ChainLink, Names], str]] = {
    "reading": origin_text,
    "update": origin_text,
    "query": _query,
    "delay": lambda link, names: f"{by_text(link)}: {plain(link.text)}" if link.by is not None else "",
    "notification": lambda link, names: f"desired state {state_text(link.state, names)}",
    "report": _report,
    "unconfirmed": _report,
    "rule": lambda link, names: plain(link.text),
    "request": _request,
    "acknowledgement": lambda link, names: plain(link.text),
    "refusal": lambda link, names: plain(link.text),
    "waiting": lambda link, names: f"desired state {state_text(link.state, names)} is not acknowledged",
}
