"""The command ``lamplighter status``: the components of a running gateway that are not ok, and its figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import print_result, table
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway
from lamplighter.gateway.monitoring.health.components import span
from lamplighter.gateway.texts import printable

_SHOWN_MAX = 8  # components that are not ok, so that the output stays on one screen
_TITLES = ("COMPONENT", "STATE", "FOR", "REASON AND CURE")


def add_status_command(command: Adder) -> None:
    status = command("status", _status)
    status.add_argument("--json", action="store_true", help="print the JSON of GET /figures")
    add_reach_options(status)


def _status(options: argparse.Namespace) -> int:
    with call_gateway(options, "GET", "/figures") as answer:
        figures = json.load(answer)
    print_result(options, figures, status_lines(figures, datetime.now(UTC)))
    return 0


def status_lines(found: dict[str, Any], now: datetime) -> Iterator[str]:
    """The figures of a gateway for people."""
    # It may be older or newer than this command: a member that it does not send is shown as absent.
    engine = found.get("engine", {})
    version, name, status = (engine.get(key, ABSENT) for key in ("version", "gateway", "status"))
    yield f"Lamplighter {version}, {name}: {status}"
    if "components" in found:
        yield from _components(found["components"], now)
    else:
        yield from (f"PROBLEM    {printable(problem)}" for problem in engine.get("problems", ()))
    for name, value in _STATUS.items():
        try:
            yield f"{name:<20}{value(found)}"
        except KeyError:
            yield f"{name:<20}{ABSENT}"
    if found.get("shacl"):
        shapes, violations = found["shacl"]["shapes"], found["shacl"]["violations"]
        yield f"{'SHACL':<20}{count_text(shapes, 'shape')}, {count_text(violations, 'violation')}"
    for application, counts in found.get("applications", {}).items():
        yield f"{f'app {printable(application)}':<19} {_counts_text(counts)}"
    for broker in found.get("brokers", ()):
        yield f"{'mqtt':<20}{printable(broker.get('text', ABSENT))}"
    if found.get("coap"):
        yield f"{'coap':<20}{printable(found['coap'].get('text', ABSENT))}"
    for kind, one in found.get("polled", {}).items():
        yield f"{printable(kind):<20}{printable(one.get('text', ABSENT))}"
    for kind, counts in found.get("adapters", {}).items():
        yield f"{kind:<20}{_counts_text(counts)}"


def _components(components: list[dict[str, Any]], now: datetime) -> Iterator[str]:
    """The components that are not ok as a table, with the cure below the reason; the others in one line."""
    well = [printable(one["name"]) for one in components if one["state"] == "ok"]
    bad = [one for one in components if one["state"] != "ok"]
    if not bad:
        yield f"all {len(components)} components are ok: {', '.join(well)}"
        yield ""
        return
    rows: list[tuple[str, ...]] = [_TITLES]
    for one in bad[:_SHOWN_MAX]:
        reason, cure = one["reason"], one["cure"]
        rows.append((printable(one["name"]), one["state"], _age(one["since"], now), printable(reason)))
        if cure:
            rows.append(("", "", "", f"-> {printable(cure)}"))
    yield from table(rows).splitlines()
    more = len(bad) - _SHOWN_MAX
    if more > 0:
        yield f"and {count_text(more, 'more component')}; `lamplighter status --json` has all"
    yield f"ok: {', '.join(well) or 'none'}"
    yield ""


def _age(since: str | None, now: datetime) -> str:
    with suppress(TypeError, ValueError):
        return span(now - datetime.fromisoformat(since or ""))
    return ""


def _clients(found: dict[str, Any]) -> str:
    manager = found["spu_manager"]
    return (
        f"{manager['subscribers']:,} of clients (at most {manager['max_subscribers']:,}), "
        f"{manager['application_subscriptions']:,} of applications"
    )


def _quotas(found: dict[str, Any]) -> str:
    used = [(name, most) for name, most in found["quotas"].items() if most]
    return ", ".join(f"{name} {most:,}" for name, most in used) or "none used"


def _waiting(found: dict[str, Any]) -> str:
    scheduler = found["scheduler"]
    by_class = ", ".join(f"{name} {count:,}" for name, count in scheduler["pending_by_class"].items())
    return f"{scheduler['pending']:,} ({by_class}), at most {scheduler['max_pending']:,}"


def _up_time(seconds: float) -> str:
    days, clock = divmod(int(seconds), 86_400)
    return f"{days} days {clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"


def _counts_text(counts: dict[str, int]) -> str:
    """Counters that are not 0: ``messages 12, readings 10, problems 2``."""
    told = [f"{printable(name).replace('_', ' ')} {count:,}" for name, count in counts.items() if count]
    return ", ".join(told) or "nothing yet"


def _average(timing: dict[str, Any]) -> str:
    if not timing["count"]:
        return "none yet"
    return f"{timing['average']:.3f} ms on average, {timing['min']:.3f} to {timing['max']:.3f} ms"


ABSENT = "absent: the gateway has another version"
# The seven lines of the paper's table 1 (Roffia 2018, 6), the queue, how long the loop is blocked, quotas.
_STATUS: dict[str, Callable[[dict[str, Any]], str]] = {
    "up-time": lambda found: _up_time(found["engine"]["up_time_s"]),
    "processed requests": lambda found: f"{found['scheduler']['requests']:,}",
    "waiting requests": _waiting,
    "subscriptions": _clients,
    "store query": lambda found: _average(found["queries"]["store_ms"]),
    "store update": lambda found: _average(found["updates"]["store_ms"]),
    "update processing": lambda found: _average(found["updates"]["processing_ms"]),
    "SPU manager": lambda found: _average(found["spu_manager"]["processing_ms"]),
    "loop held": lambda found: _average(found["engine"]["loop_held_ms"]),
    "most of a quota": _quotas,
}
