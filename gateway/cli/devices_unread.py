"""The subcommand ``lamplighter devices unread``: topics that arrive and that no rule reads.

The adapters have them in memory, so the command needs a running gateway.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from lamplighter.engine.errors import UnknownResourceError, UpstreamError
from lamplighter.gateway.cli.console import print_json, shorten, table
from lamplighter.gateway.cli.endpoint import call_gateway
from lamplighter.gateway.texts import printable


def add_unread_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", help="print only the proposed rule for this topic, for a file of mapping/"
    )
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print GET /messages/unread")


def list_unread(options: argparse.Namespace) -> int:
    """Raises UpstreamError, RefusedError, UnknownResourceError."""
    with call_gateway(options, "GET", "/messages/unread") as response:
        text = response.read()
    try:
        answer = json.loads(text)
        found = list(answer["unread"])
        more, sources, silent = int(answer["more"]), int(answer["answered"]), int(answer["silent"])
        rows = [_row(one) for one in found]
    except (ValueError, KeyError, TypeError) as error:
        raise UpstreamError(f"the gateway's answer is not a list of messages: {error!r}") from error
    if options.topic is not None:
        print(_rule_of(options.topic, found), end="")
        return 0
    if options.json:
        print_json(answer)
        return 0
    if not sources:
        print(
            f"{'no adapter answered in time' if silent else 'no adapter is connected'}; `lamplighter status` says why"
        )
        return 1
    if not found:
        print("no topic without a rule was noticed; asking begins to listen to all topics for 20 s, so ask again then")
        return 0
    print(table([("LAST SEEN", "COUNT", "TOPIC", "PAYLOAD", "READABLE AS"), *rows]), end="")
    if more:
        print(f"and {more} more")
    print("a proposed rule: lamplighter devices unread TOPIC")
    return 0


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    payload = one.get("payload", "(not text)") + ("…" if one.get("cut") else "")
    return (
        str(one["received"])[:19],
        str(one["count"]),
        shorten(one["place"]),
        shorten(payload),
        shorten(one.get("readable_as", "-")),
    )


def _rule_of(topic: str, found: list[dict[str, Any]]) -> str:
    message = next((one for one in found if one["place"] == topic), None)
    if message is None:
        raise UnknownResourceError(f"{topic!r} is none of the topics without a rule; `devices unread` lists them")
    if "rule" not in message:
        reason = "it is longer than what is kept" if message.get("cut") else "it has no number and no boolean"
        raise UnknownResourceError(
            f"no rule is proposed for {topic!r}: of its last message, {reason}; see docs/mqtt-devices.md"
        )
    return "".join(printable(line) + "\n" for line in str(message["rule"]).splitlines())
