"""The command ``lamplighter explain``: why an actuator was switched, from the change log.

It reads the data folder, with or without a running gateway, and changes nothing in it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path

from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.cli.commands import Adder, Names, config_file, opened_history, plain, table
from lamplighter.gateway.clock import moment
from lamplighter.gateway.history.explanation import (
    ADAPTERS,
    ChainLink,
    Explainer,
    Explanation,
    as_json,
    differences,
    full_iri,
    query_texts,
)
from lamplighter.gateway.state.applications import load_applications
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT

_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
_AGAIN = {
    "client": ", since the device had another state or came back",
    "timer": ", again at its interval, after attempts without an answer",
}
_UNSYNCHRONISED = "clock not synchronised"
_DECLARATIONS = re.compile(r"\b(?:PREFIX\s*[^\s:]*:|BASE)\s*<[^>]*>\s*", re.IGNORECASE)
_RESULT = f"<{HAS_SIMPLE_RESULT}>"
_GATES = {"http": "over HTTP", "ws": "over WebSocket"}


def add_explain_command(command: Adder) -> None:
    """Declares the command. command: as in `gateway.__main__`."""
    explain = command("explain", "show why an actuator was switched: from the reading to the acknowledgement", _explain)
    explain.add_argument(
        "name", metavar="ACTUATOR", help="of an actuator or actuation: an IRI, or a path such as actuator/kitchen"
    )
    explain.add_argument(
        "--at", metavar="TIME", help="the newest one at that time, such as 21:03 or 2026-11-21T21:03:00Z (default: now)"
    )
    explain.add_argument("--json", action="store_true", help="print the links as JSON")


def _explain(options: argparse.Namespace) -> int:
    history, settings = opened_history(options)
    base = settings.gateway.base_iri
    until = None if options.at is None else end_of(options.at, datetime.now(UTC))
    config = config_file(options)
    texts = cache(lambda: texts_of((config.parent if config else Path()) / "apps"))
    explainer = Explainer(history, lambda application, aggregator: texts().get((application, aggregator), ""))
    explanation = explainer.explain(full_iri(options.name, base), until)
    if options.json:
        print(json.dumps(as_json(explanation), indent=2))
    else:
        print("\n".join(lines(explanation, Names(base))))
    return 0


def texts_of(folder: Path) -> dict[tuple[str, str], str]:
    """As `query_texts`, of the applications of a folder; empty if their files have faults."""
    try:
        return query_texts(load_applications(folder))
    except GatewayError:
        return {}


def end_of(text: str, now: datetime) -> datetime:
    """The end of the day, minute or second that a text names. Without a time zone it is of the machine's; without a day
    it is of today, or of yesterday if it is still to come today. Raises ConfigurationError."""
    try:
        if _CLOCK.fullmatch(text):
            parsed = datetime.fromisoformat(f"{now.astimezone().date()}T{text.zfill(len(text) + (text[1] == ':'))}")
            if parsed.astimezone() > now:
                parsed -= timedelta(days=1)
        elif len(text) == len("2026-11-21"):
            parsed = datetime.combine(date.fromisoformat(text), datetime.max.time())
        else:
            parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"--at {text}: write a time such as 21:03, 2026-11-21T21:03 or 2026-11-21T21:03:00Z"
        ) from error
    clock = _CLOCK.search(text)
    if clock is not None and clock[1] is None:
        parsed += timedelta(seconds=59)
    if not parsed.microsecond:
        parsed += timedelta(microseconds=999_999)
    return parsed.astimezone(UTC)


# --- lines --------------------------------------------------------------------------------------------------


def lines(explanation: Explanation, names: Names) -> Iterator[str]:
    """The actuator with its state, then a line for each link: its time, the time since the link before, the record."""
    links = explanation.links
    times = [moment(link.time).astimezone() for link in links if link.time is not None]
    doubtful = bool(links) and not any(link.trusted for link in links if link.time is not None)
    parts = [names.term(explanation.actuator) + (f": {_state(explanation.state, names)}" if explanation.state else "")]
    if times:
        parts += [f"{times[-1].date()}", f"times of UTC{times[-1].isoformat()[-6:]}"]
    if times and doubtful:
        parts.append(_UNSYNCHRONISED)
    yield ", ".join(parts)
    whole = len({time.date() for time in times}) > 1
    rows = [
        (
            "" if link.time is None else _clock(moment(link.time), whole=whole),
            "" if seconds is None else _since(seconds),
            link.link,
            link.record or "",
            _described(link, names, explanation.cause, doubtful=doubtful),
        )
        for link, seconds in zip(links, differences(links), strict=True)
    ]
    yield from table(rows).splitlines()


def _clock(time: datetime, *, whole: bool) -> str:
    text = time.astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds")
    return text if whole else text.partition(" ")[2]


def _since(seconds: float) -> str:
    """``+0.4 ms``, ``+12.5 s``, ``+2 h 5 min``; with a minus if the clock was set back."""
    sign, left = ("-" if seconds < 0 else "+"), abs(seconds)
    if left < 1:
        return f"{sign}{left * 1000:.1f} ms"
    if left < 60:
        return f"{sign}{left:.1f} s"
    for unit, length, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if left >= length:
            return f"{sign}{int(left // length)} {unit} {int(left % length // part)} {smaller}"
    raise AssertionError(seconds)


def _described(link: ChainLink, names: Names, cause: str, *, doubtful: bool) -> str:
    """doubtful: the doubt about all times is told elsewhere."""
    said = _TEXTS[link.link](link, names)
    if link.link == "request":
        said += _AGAIN.get(cause, "")
    doubts = [one for one in (link.doubt, "" if link.trusted or doubtful else _UNSYNCHRONISED) if one]
    return " ".join(part for part in (said, f"[{'; '.join(doubts)}]" if doubts else "") if part)


def _by(link: ChainLink) -> str:
    kind, name = link.by or ("", "")
    if kind in _GATES:
        client = f"client {link.client} at {name.rpartition('@')[2]}" if link.client else f"client {name}"
        return plain(f"{client} {_GATES[kind]}")
    if kind == "application":
        application, begun, _ = name.partition("@")
        return plain(f"start of application {application}" if begun else f"application {name.partition('/')[0]}")
    return plain({"timer": "delayed update"}.get(kind, f"{kind} {name}"))


def _origin(link: ChainLink, names: Names) -> str:
    """Who made a reading or an update, and what it did: to the state of the actuator, or at least to some quads."""
    if link.state is not None:
        before = "" if link.before is None else f", was {names.term(link.before)}"
        done = f"desired state {names.term(link.state)}{before}"
    else:
        more = f"; and {link.more} more" if link.more else ""
        done = "; ".join(_asserted(quad, names) for quad in link.quads) + more
    return ": ".join(part for part in (_by(link), done) if part)


def _asserted(quad: Quad, names: Names) -> str:
    return f"{names.term(quad.o)} of {names.term(quad.s)}" if quad.p == _RESULT else names.quad(quad)


def _query(link: ChainLink, names: Names) -> str:
    text = plain(_DECLARATIONS.sub("", link.text)) if link.text else "its text is not in apps/ any more"
    return f"{plain(link.application)}, {plain(link.aggregator)} {link.member}: {text}"


def _request(link: ChainLink, names: Names) -> str:
    adapter = link.by[0] if link.by is not None and link.by[0] in ADAPTERS else ""
    return f"{adapter} {plain(link.text)}: {_state(link.state, names)}".strip()


def _report(link: ChainLink, names: Names) -> str:
    return "" if link.state is None else f"the device reported {_state(link.state, names)}"


def _state(state: Term | None, names: Names) -> str:
    return "an unknown state" if state is None else names.term(state)


_TEXTS: dict[str, Callable[[ChainLink, Names], str]] = {
    "reading": _origin,
    "update": _origin,
    "query": _query,
    "delay": lambda link, names: f"{_by(link)}: {plain(link.text)}" if link.by is not None else "",
    "notification": lambda link, names: f"desired state {_state(link.state, names)}",
    "report": _report,
    "rule": lambda link, names: plain(link.text),
    "request": _request,
    "acknowledgement": lambda link, names: plain(link.text),
    "refusal": lambda link, names: plain(link.text),
    "waiting": lambda link, names: f"desired state {_state(link.state, names)} is not acknowledged",
}
