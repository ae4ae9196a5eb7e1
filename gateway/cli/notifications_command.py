"""`lamplighter notifications`: what others sent to an inbox (Linked Data Notifications)."""

from __future__ import annotations

import argparse
import asyncio
import sys
from urllib.parse import urlsplit

from lamplighter.engine.client.contexts import ACTIVITY_STREAMS
from lamplighter.engine.client.inbox_reader import InboxReader
from lamplighter.engine.client.results import Triple
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import is_iri, lexical
from lamplighter.gateway.cli.command_table import Adder, ExitCode
from lamplighter.gateway.cli.console import print_json, shorten, table
from lamplighter.gateway.cli.endpoint import EndpointAddresses, add_credentials, file_option, tokens
from lamplighter.gateway.texts import printable

LIMIT = 100
_TITLES = ("NOTIFICATION", "TYPE", "ACTOR", "OBJECT", "TRIPLES")
_TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
_ACTOR, _OBJECT = (f"<{ACTIVITY_STREAMS}#{name}>" for name in ("actor", "object"))


def add_notifications_command(command: Adder) -> None:
    parser = command("notifications", _run, data=False)
    parser.add_argument("target", metavar="URL", help="the resource, which advertises its inbox")
    parser.add_argument("--inbox", action="store_true", help="URL is that of the inbox itself")
    parser.add_argument(
        "--limit", type=int, default=LIMIT, metavar="N", help=f"read N notifications (default: {LIMIT})"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="URL", help="origin that may be called, too; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per notification and line")
    add_credentials(parser)


def _run(options: argparse.Namespace) -> int:
    if options.limit < 1:
        raise ConfigurationError(f"--limit {options.limit}: it must be 1 or more")
    return asyncio.run(_read(options))


async def _read(options: argparse.Namespace) -> int:
    place = urlsplit(options.target)
    rows: list[tuple[str, ...]] = [_TITLES]
    failed = 0
    async with InboxReader(
        options.target,
        is_inbox=options.inbox,
        origins=options.allow,
        tokens=tokens(options, EndpointAddresses("", "", "", f"{place.scheme}://{place.netloc}/oauth/token")),
        ca=file_option(options, "ca"),
    ) as reader:
        inbox, urls = await reader.inbox(), await reader.urls()
        for url in urls[: options.limit]:
            try:
                triples = await reader.notification(url)
            except GatewayError as error:
                failed += 1
                print(f"lamplighter: {printable(str(error))}", file=sys.stderr)
                continue
            if options.json:
                print_json({"url": url, "triples": triples})
            else:
                rows.append(_row(inbox, url, triples))
    if not options.json:
        print(table(rows), end="")
    left = len(urls) - options.limit
    if left > 0:
        print(f"lamplighter: {count_text(left, 'further notification')}; see --limit", file=sys.stderr)
    return ExitCode.NEGATIVE if failed else ExitCode.GOOD


def _row(inbox: str, url: str, triples: list[Triple]) -> tuple[str, ...]:
    about = _subject(url, triples)

    def of(predicate: str) -> list[str]:
        return [o for s, p, o in triples if s == about and p == predicate]

    return (
        printable(url.removeprefix(inbox) or url),
        shorten(", ".join(_name(one) for one in of(_TYPE))),
        *(shorten(", ".join(map(_text, of(predicate)))) for predicate in (_ACTOR, _OBJECT)),
        str(len(triples)),
    )


def _subject(url: str, triples: list[Triple]) -> str:
    """What the notification is about: itself, else the first node that no triple has as its object."""
    objects = {o for _, _, o in triples}
    subjects = dict.fromkeys(s for s, _, _ in triples)
    if f"<{url}>" in subjects:
        return f"<{url}>"
    return next((s for s in subjects if s not in objects), next(iter(subjects), ""))


def _name(term: str) -> str:
    return term.rstrip(">").replace("#", "/").rpartition("/")[2] if is_iri(term) else _text(term)


def _text(term: str) -> str:
    return lexical(term) if is_iri(term) or term.startswith('"') else term
