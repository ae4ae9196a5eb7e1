"""The command ``lamplighter explain``: why an actuator was switched, from the change log.

It reads the data folder, with or without a running gateway, and changes nothing in it. With `--url` a gateway elsewhere
answers.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from lamplighter.engine.errors import ConfigurationError, GatewayError, UnknownResourceError, UpstreamError
from lamplighter.engine.terms import Term
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.commands import opened_history
from lamplighter.gateway.cli.console import plain_line, table
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway, url_option
from lamplighter.gateway.cli.names import past_directory
from lamplighter.gateway.cli.options import complete_names, config_folder, settings_and_data
from lamplighter.gateway.clock import moment
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.history.chain_texts import UNSYNCHRONISED, as_json, doubtful, link_texts, state_text
from lamplighter.gateway.history.explanation import Explainer, Explanation, differences, full_iri, query_texts
from lamplighter.gateway.history.logbook import LabelledNames
from lamplighter.gateway.history.names import Names
from lamplighter.gateway.state.applications import load_applications
from lamplighter.gateway.state.stored_applications import StoredApplications, readable

_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")


def add_explain_command(command: Adder) -> None:
    explain = command("explain", _explain)
    named = explain.add_argument(
        "name",
        metavar="ACTUATOR",
        help="an actuator or its device by the name that people gave it, an IRI, or a path such as actuator/kitchen",
    )
    complete_names(named, "device")
    explain.add_argument(
        "--at", metavar="TIME", help="the newest one at that time, such as 21:03 or 2026-11-21T21:03:00Z (default: now)"
    )
    explain.add_argument("--json", action="store_true", help="print the links as JSON")
    add_reach_options(explain, "default: the data folder of this machine")


def _explain(options: argparse.Namespace) -> int:
    until = None if options.at is None else end_of(options.at, datetime.now(UTC))
    if url_option(options) is not None:
        return _explain_there(options, until)
    history, settings = opened_history(options)
    base = settings.gateway.base_iri
    texts = cache(lambda: texts_of(config_folder(options) / "apps", history.data))
    explainer = Explainer(history, lambda application, aggregator: texts().get((application, aggregator), ""))
    iri, unknown = None, ""
    labels: dict[Term, str] = {}
    if not options.name.startswith(base):  # of an IRI, nothing is looked up
        directory, labels = past_directory(options, history)
        iri, unknown = directory.find_actuator(options.name)
    names = LabelledNames(base, labels)
    explanation = explainer.explain(iri or full_iri(options.name, base), until)
    if unknown and not explanation.links:
        raise UnknownResourceError(f"{options.name}: the log has nothing of it{unknown}")
    if options.json:
        print(json.dumps(as_json(explanation, names), indent=2))
    else:
        said = names.term(explanation.actuator), link_texts(explanation, names)
        print("\n".join(lines(explanation, names, *said)))
    return 0


def _explain_there(options: argparse.Namespace, until: datetime | None) -> int:
    """Raises UpstreamError, RefusedError."""
    asked = {"actuation": options.name} | ({} if until is None else {"at": until.isoformat().replace("+00:00", "Z")})
    with call_gateway(options, "GET", f"/explain?{urlencode(asked)}") as answer:
        text = answer.read()
    try:
        explanation = msgspec.json.decode(text, type=Explanation)
        said = msgspec.json.decode(text, type=_AnswerTexts)
    except msgspec.DecodeError as error:
        raise UpstreamError(f"the gateway's answer is not an explanation: {error}") from error
    if options.json:
        print(json.dumps(json.loads(text), indent=2))
    else:
        names = LabelledNames(settings_and_data(options)[0].gateway.base_iri, {})
        print(
            "\n".join(lines(explanation, names, plain_line(said.label), [plain_line(one.said) for one in said.links]))
        )
    return 0


class _LinkText(msgspec.Struct):
    said: str


class _AnswerTexts(msgspec.Struct):
    """The words of a gateway's answer."""

    label: str
    links: list[_LinkText]


def texts_of(folder: Path, data: Path) -> dict[tuple[str, str], str]:
    """As `query_texts`, of the applications of a folder and of those that are stored; empty if their files have
    faults."""
    found: dict[tuple[str, str], str] = {}
    with suppress(GatewayError):
        found |= query_texts(readable(StoredApplications(data, Disk()).applications)[0])
    with suppress(GatewayError):
        found |= query_texts(load_applications(folder))
    return found


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


def lines(explanation: Explanation, names: Names, label: str, texts: Sequence[str]) -> Iterator[str]:
    """The actuator with its state, then a line for each link: its time, the time since the link before, the record.
    label: of the actuator; texts: of the links."""
    links = explanation.links
    times = [moment(link.time).astimezone() for link in links if link.time is not None]
    state = f": {state_text(explanation.state, names)}" if explanation.state else ""
    parts = [label + state]
    if times:
        parts += [f"{times[-1].date()}", f"times of UTC{times[-1].isoformat()[-6:]}"]
    if times and doubtful(explanation):
        parts.append(UNSYNCHRONISED)
    yield ", ".join(parts)
    whole = len({time.date() for time in times}) > 1
    rows = [
        (
            "" if link.time is None else _clock(moment(link.time), whole=whole),
            "" if seconds is None else _since(seconds),
            link.link,
            link.record or "",
            said,
        )
        for link, seconds, said in zip(links, differences(links), texts, strict=True)
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
