"""The commands ``lamplighter history`` and ``lamplighter logbook``: what a running gateway tells of the past."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import plain_line, shorten, table
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway
from lamplighter.gateway.clock import moment
from lamplighter.gateway.history.logbook import ENTRIES_MAX, KIND_NAMES
from lamplighter.gateway.history.names import plain, short_iri

ROWS_MAX = 40  # rows of a table on the terminal; --json and --csv have all
SPARK_MAX = 60
_BARS = "▁▂▃▄▅▆▇█"


def add_history_command(command: Adder) -> None:
    history = command("history", _history)
    history.add_argument(
        "name",
        nargs="+",
        metavar="NAME",
        help="words of the reading or actuator, such as kitchen temperature, or its IRI",
    )
    history.add_argument(
        "--since", default="24h", metavar="SPAN", help="such as 90min, 24h, 7d, or a time (default: 24h)"
    )
    history.add_argument("--until", metavar="TIME", help="such as 2026-11-21T10:00:00Z (default: now)")
    history.add_argument("--points", type=int, metavar="N", help="most points or intervals (default: 1500)")
    form = history.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the answer of the gateway as JSON")
    form.add_argument("--csv", action="store_true", help="print the points or intervals as CSV")
    add_reach_options(history)
    logbook = command("logbook", _logbook)
    logbook.add_argument("--since", metavar="SPAN", help="such as 24h, 7d, or a time (default: all that is kept)")
    logbook.add_argument("--until", metavar="TIME", help="such as 2026-11-21T10:00:00Z (default: now)")
    for option, text in (
        ("--device", "only of this device, feature, reading or actuator: its name or IRI"),
        ("--room", "only of this area: its name or IRI"),
        ("--application", "only what this application did"),
        ("--person", "only what this client did"),
        ("--before", "only entries before this record, such as 1/17"),
    ):
        logbook.add_argument(option, metavar="NAME", help=text)
    logbook.add_argument(
        "--kind", action="append", choices=KIND_NAMES, help="only entries of this kind; may be repeated"
    )
    logbook.add_argument("--last", type=int, metavar="N", help=f"most entries, up to {ENTRIES_MAX} (default: 50)")
    logbook.add_argument("--json", action="store_true", help="print the answer of the gateway as JSON")
    add_reach_options(logbook)


# --- history ----------------------------------------------------------------------------------------------------


def _history(options: argparse.Namespace) -> int:
    asked = {"name": " ".join(options.name), **_parameters(options, ("since", "until", "points"))}
    accept = "text/csv" if options.csv else "application/json"
    with call_gateway(options, "GET", f"/history?{urlencode(asked)}", headers={"Accept": accept}) as answer:
        content = answer.read()
    if options.csv:
        sys.stdout.write(content.decode().replace("\r\n", "\n"))
        return 0
    chart = _document(content, "points")
    if options.json:
        print(json.dumps(chart, indent=2, ensure_ascii=False))
    else:
        print("\n".join(history_lines(chart)))
    return 0


def history_lines(chart: dict[str, Any]) -> Iterator[str]:
    """The label, a line of bars, the last rows of a table, and what is not known. Raises UpstreamError."""
    try:
        label, name, unit = chart["label"], chart["name"] or "", short_iri(chart["unit"] or "")
        title = label if label.startswith(name) else f"{name} {label}"
        yield ", ".join(plain(text) for text in (title, chart["area"], unit) if text)
        if chart["kind"] == "number":
            yield from _number_lines(chart)
        else:
            yield from _state_lines(chart["states"])
            if chart["reported"]:
                yield "reported:"
                yield from _state_lines(chart["reported"])
        for gap in chart["gaps"]:
            text = f" ({plain(gap['text'])})" if gap.get("text") else ""
            yield f"{_clock(gap['from'])} to {_clock(gap['to'])}: {plain(gap['reason'])}{text}"
        since = chart["complete_since"]
        yield f"the log has everything since {_clock(since)}" if since else "the log is empty"
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UpstreamError(f"the gateway's answer is not a history: {error!r}") from error


def _number_lines(chart: dict[str, Any]) -> Iterator[str]:
    points = chart["points"]
    if not points:
        yield "no values in this time"
        return
    means = [mean for _, mean, *_ in points]
    yield f"{sparkline(means)}  {min(low for _, _, low, *_ in points):g} to {max(high for *_, high, _ in points):g}"
    rows = [("TIME", "MEAN", "MIN", "MAX", "COUNT")]
    if len(points) > ROWS_MAX:
        yield f"the last {ROWS_MAX} of {len(points)} points; --json and --csv have all"
    rows += [
        (_clock(time), f"{mean:.6g}", f"{low:g}", f"{high:g}", str(count))
        for time, mean, low, high, count in points[-ROWS_MAX:]
    ]
    yield from table(rows).splitlines()


def _state_lines(states: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not states:
        yield "no state is known in this time"
        return
    if len(states) > ROWS_MAX:
        yield f"the last {ROWS_MAX} of {len(states)}; --json and --csv have all"
    rows = [("FROM", "TO", "STATE")]
    for one in states[-ROWS_MAX:]:
        more = f" ({one['changes']} changes)" if one.get("changes", 1) > 1 else ""
        rows.append((_clock(one["from"]), _clock(one["to"]), shorten(one["value"]) + more))
    yield from table(rows).splitlines()


def sparkline(values: Sequence[float]) -> str:
    """Values as bars, `SPARK_MAX` of them at most: each the mean of some."""
    count = min(len(values), SPARK_MAX)
    parts = [values[len(values) * n // count : len(values) * (n + 1) // count] for n in range(count)]
    means = [sum(part) / len(part) for part in parts]
    least, most = min(means), max(means)
    scale = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((mean - least) * scale)] for mean in means)


# --- logbook ----------------------------------------------------------------------------------------------------


def _logbook(options: argparse.Namespace) -> int:
    names = ("since", "until", "device", "room", "application", "person", "before", "last")
    asked = [*_parameters(options, names).items(), *(("kind", kind) for kind in options.kind or ())]
    with call_gateway(options, "GET", f"/logbook?{urlencode(asked)}") as answer:
        page = _document(answer.read(), "entries")
    if options.json:
        print(json.dumps(page, indent=2, ensure_ascii=False))
        return 0
    try:
        rows = [(_clock(one["time"]), one["kind"], one["record"], plain_line(one["text"])) for one in page["entries"]]
        following = page["next"]
    except (KeyError, TypeError, ValueError) as error:
        raise UpstreamError(f"the gateway's answer is not a logbook: {error!r}") from error
    print(table([("TIME", "KIND", "RECORD", "WHAT"), *rows]) if rows else "nothing happened here\n", end="")
    if following:
        print(f"older entries: --before {following}")
    return 0


# --- both -------------------------------------------------------------------------------------------------------


def _parameters(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    found = {name: getattr(options, name) for name in names}
    for name in ("points", "last"):
        if found.get(name) is not None and found[name] < 1:
            raise ConfigurationError(f"--{name} {found[name]}: write a number from 1 on")
    return {name: value for name, value in found.items() if value is not None}


def _document(content: bytes, member: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
        found[member]
    except (ValueError, KeyError, TypeError) as error:
        raise UpstreamError(f"the gateway's answer has no {member}: {error!r}") from error
    return dict(found)


def _clock(time: str) -> str:
    return moment(time).astimezone().replace(tzinfo=None).isoformat(" ", "seconds")
