"""Client commands: `query`, `update`, `subscribe` and `register`, for this machine's gateway or another endpoint."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from lamplighter.engine.client.files import read_text
from lamplighter.engine.client.messages import graph_members
from lamplighter.engine.client.results import GRAPH_MEDIA_TYPES
from lamplighter.engine.errors import ConfigurationError, RequestSyntaxError, UpstreamError
from lamplighter.engine.protocol import PriorityName
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Bag, Term, is_blank, is_literal, lexical
from lamplighter.gateway.addresses import local_url, plain_addresses, ports_here, socket_paths
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import print_result, table
from lamplighter.gateway.cli.endpoint import (
    EndpointAddresses,
    add_reach_options,
    addresses_at,
    file_option,
    tokens,
    url_option,
)
from lamplighter.gateway.cli.options import add_json, settings_and_data
from lamplighter.gateway.gates.local_call import require_gateway
from lamplighter.gateway.service.system_update import SUFFIX, install_bundle
from lamplighter.gateway.texts import printable

if TYPE_CHECKING:
    from lamplighter.engine.client import EngineClient, Notification, SparqlEndpoint
    from lamplighter.engine.protocol.jsap import Jsap

_JSON = "application/sparql-results+json"
# Requested media types; the second one is for queries that return graphs.
_FORMATS = {
    "table": f"{_JSON}, text/turtle;q=0.9",
    "json": f"{_JSON}, application/ld+json;q=0.9",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "turtle": "text/turtle",
}
_FILE_NAME = re.compile(r"[\w~/-]*[./][\w./~-]*")  # matches the name of a file; no SPARQL text looks like that
_QUERY = re.compile(r"\b(SELECT|ASK|CONSTRUCT|DESCRIBE)\b", re.IGNORECASE)
CONNECT_S = 30.0  # how long `subscribe` tries to make its first connection
_RED, _GREEN, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"


def add_client_commands(command: Adder) -> None:
    query = command("query", _query)
    _add_request(query, "query")
    query.add_argument(
        "--at", metavar="TIME", help="query a past dataset: of a record (17, 1/17) or a time (gateways only; operators)"
    )
    query.add_argument("--json", dest="format", action="store_const", const="json", help="like --format json")
    query.add_argument("--format", choices=_FORMATS, help="default: table on a terminal, otherwise json")
    update = command("update", _update)
    _add_request(update, "update")
    update.add_argument(
        "--json", action="store_true", help="print the record, or the id of the delayed update, as JSON"
    )
    update.add_argument("--delay", metavar="PT30S", help="run it after this time (delayed update; gateways only)")
    update.add_argument("--priority", choices=get_args(PriorityName), help="class of the request (gateways only)")
    subscribe = command("subscribe", _subscribe)
    _add_request(subscribe, "query")
    subscribe.add_argument("--json", action="store_true", help="print one JSON object per notification and line")
    subscribe.add_argument("--keep", metavar="PT10M", help="resume after a lost connection within this time")
    subscribe.add_argument("--count", type=int, metavar="N", help="stop after N notifications")
    register = command("register", _register)
    register.add_argument("identity", help="name of the client")
    register.add_argument("file", type=Path, help="file for the credentials; only its owner can read it")
    register.add_argument("--url", required=True, help="https://HOST:8443")
    register.add_argument("--code", help="one-time code of the gateway's operator")
    register.add_argument("--ca", type=Path, help="trusted certificates (default: the system's)")
    add_json(register, "the name of the client and its file")


def _add_request(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument("sparql", help=f"the {kind}: text, a file, or - for standard input; with --jsap its name")
    parser.add_argument("--jsap", metavar="FILE", help="application profile (file or address) with the text")
    parser.add_argument(
        "--bind", action="append", default=[], metavar="NAME=VALUE", help="a forced binding; repeatable"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="MEMBER=VALUE",
        help="override a member of the profile, such as sparql11protocol.port=8001",
    )
    add_reach_options(parser, "default: the profile's, or this machine")
    graphs = ("default-graph", "named-graph") if kind == "query" else ("using-graph", "using-named-graph")
    for name in graphs:
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="IRI", help="a graph of the dataset; repeatable"
        )


# --- addresses -----------------------------------------------------------------------------------------------


def _addresses(options: argparse.Namespace, profile: Jsap | None, kind: str) -> EndpointAddresses:
    """The addresses of --url, else the profile's, else those of the gateway with this configuration."""
    url = url_option(options)
    if url:
        return addresses_at(url)
    if profile is not None and profile.host and options.config is None:
        token = profile.oauth.token_url or ""
        if kind == "update":
            return EndpointAddresses("", profile.update_address(options.sparql).url, "", token)
        query = profile.query_address(options.sparql).url
        return EndpointAddresses(query, "", profile.subscribe_url(options.sparql), token)
    settings, data = settings_and_data(options)
    if kind == "query":
        require_gateway(settings, data)
    if settings.security.enabled:
        query, update = (f"http://localhost{path}" for path in (settings.http.query_path, settings.http.update_path))
        return EndpointAddresses(query, update, local_url(settings, data), unix=socket_paths(settings, data)[0])
    here = plain_addresses(settings, *ports_here(settings, data))
    return EndpointAddresses(here.query, here.update, here.subscribe)


def _endpoint(options: argparse.Namespace, addresses: EndpointAddresses) -> SparqlEndpoint:
    from lamplighter.engine.client import SparqlEndpoint

    return SparqlEndpoint(
        query_url=addresses.query,
        update_url=addresses.update,
        unix=addresses.unix,
        tokens=tokens(options, addresses),
        ca=file_option(options, "ca"),
    )


# --- texts ---------------------------------------------------------------------------------------------------


def _request(options: argparse.Namespace, kind: str) -> tuple[Jsap | None, str]:
    """The profile, if one is used, and the text. Raises JsapError, ForcedBindingError, ConfigurationError."""
    if options.jsap is None:
        if options.bind or options.set:
            raise ConfigurationError("--bind and --set need an application profile; name it with --jsap")
        return None, _text(options.sparql)
    from lamplighter.engine.client import load_profile

    profile = load_profile(options.jsap, options.set, ca=file_option(options, "ca"))
    values: dict[str, Any] = {}
    for binding in options.bind:
        name, sign, value = binding.partition("=")
        if not sign:
            raise ConfigurationError(f"--bind: {binding!r} is not a binding; write name=value")
        values[name] = (
            [*values[name], value]
            if isinstance(values.get(name), list)
            else ([values[name], value] if name in values else value)
        )
    text = (profile.update_text if kind == "update" else profile.query_text)(options.sparql, {}, values)
    return profile, text


def _text(given: str) -> str:
    try:
        if given == "-":
            return sys.stdin.read()
        if "\n" not in given and "{" not in given and Path(given).is_file():
            return read_text(given)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{given}: {error}; name a file with SPARQL text") from error
    if _FILE_NAME.fullmatch(given):
        raise ConfigurationError(f"{given} is neither an existing file nor SPARQL text")
    return given


def _graphs(options: argparse.Namespace, profile: Jsap | None) -> tuple[list[str], list[str]]:
    if profile is None or options.default_graph or options.named_graph:
        return options.default_graph, options.named_graph
    graphs = profile.graphs_of(profile.query(options.sparql))
    return list(graphs.default), list(graphs.named)


# --- query ---------------------------------------------------------------------------------------------------


def _query(options: argparse.Namespace) -> int:
    profile, text = _request(options, "query")
    addresses = _addresses(options, profile, "query")
    shape = options.format or ("table" if sys.stdout.isatty() else "json")

    async def ask() -> None:
        graphs = graph_members(*_graphs(options, profile))
        async with _endpoint(options, addresses) as endpoint:
            if shape == "table":
                media_type, data = await endpoint.answer(text, _FORMATS[shape], graphs, options.at)
                _tell_record(endpoint)
                _write(_answer_text(media_type, data).encode())
                return
            async with endpoint.stream(text, _FORMATS[shape], graphs, options.at) as (_, chunks):
                _tell_record(endpoint)
                async for chunk in chunks:
                    _write(chunk)
            if shape == "json":
                _write(b"\n")

    asyncio.run(ask())
    return 0


def _tell_record(endpoint: SparqlEndpoint) -> None:
    """Says on standard error of which record the queried dataset is, if it is a past one."""
    if endpoint.as_of:
        print(f"lamplighter: dataset as of record {printable(endpoint.as_of)}", file=sys.stderr)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _answer_text(media_type: str, data: bytes) -> str:
    if media_type in GRAPH_MEDIA_TYPES:
        return "".join(sign if sign in "\n\t" or sign.isprintable() else printable(sign) for sign in data.decode())
    try:
        document = msgspec.json.decode(data)
        if "boolean" in document:
            return f"{'yes' if document['boolean'] else 'no'}\n"
        return _shown_bag(Bag.from_json(document))
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise UpstreamError(f"the endpoint answered with {media_type}, which cannot be shown: {error}") from error


def _shown_bag(bag: Bag) -> str:
    """Columns under their names, and the number of rows."""
    names = bag.variables
    rows = [tuple(cell(term) for term in row) for row in bag]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    ruled = table([names, tuple("-" * width for width in widths), *rows])
    return f"{ruled}({count_text(len(rows), 'row')})\n"


def cell(term: Term | None) -> str:
    """A term in short form, without control sequences."""
    if term is None:
        return ""
    if is_blank(term):
        return printable(term)
    text = lexical(term) if term[:2] != "<<" else term
    if is_literal(term):
        after = term.rpartition('"')[2]
        if after.startswith("@"):
            text += after
    return printable(text)


# --- update --------------------------------------------------------------------------------------------------


def _update(options: argparse.Namespace) -> int:
    if options.sparql.endswith(SUFFIX):  # no SPARQL text ends like that
        return install_bundle(Path(options.sparql))
    profile, text = _request(options, "update")
    addresses = _addresses(options, profile, "update")
    using, using_named = options.using_graph, options.using_named_graph
    told = {"delay": options.delay, "priority": options.priority}
    if profile is not None:
        from lamplighter.engine.sparql.clauses import parts

        entry = profile.update(options.sparql)
        told |= {
            "delay": options.delay or entry.delay,
            "at": entry.at,
            "missed": entry.missed,
            "priority": options.priority or entry.priority,
        }
        if not using and not using_named and not any(part.names_dataset() for part in parts(text)):
            graphs = profile.graphs_of(entry)
            using, using_named = list(graphs.using), list(graphs.using_named)

    extensions = {name: value for name, value in told.items() if value is not None}

    async def send() -> str:
        async with _endpoint(options, addresses) as endpoint:
            answer = await endpoint.update(
                text, using_graphs=using, using_named_graphs=using_named, extensions=extensions
            )
        if answer is None:
            return "{}" if options.json else "done"
        if options.json:
            return json.dumps({"record": answer.sequence, "delayed": answer.delayed})
        return f"record {answer.sequence}" if answer.delayed is None else f"delayed update {answer.delayed} is stored"

    print(asyncio.run(send()))
    return 0


# --- subscribe -----------------------------------------------------------------------------------------------


def _subscribe(options: argparse.Namespace) -> int:
    from lamplighter.engine.client import EngineClient

    profile, text = _request(options, "query")
    if not _QUERY.search(text):
        raise RequestSyntaxError(f"{printable(text[:60])!r} is no query; a subscription is one, such as SELECT")
    addresses = _addresses(options, profile, "subscribe")
    if url_option(options) and sys.stderr.isatty():  # the port is a guess from that of HTTP
        print(f"lamplighter: subscribing at {printable(addresses.subscribe)}", file=sys.stderr)
    printed = _Rows(colours=sys.stdout.isatty())
    lines = _json_lines if options.json else printed.lines

    async def follow() -> None:
        default, named = _graphs(options, profile)
        given = tokens(options, addresses)
        async with (
            EngineClient(addresses.subscribe, name="subscribe", tokens=given, ca=file_option(options, "ca")) as client,
            aclosing(
                client.subscribe(text, keep=options.keep, default_graphs=default, named_graphs=named)
            ) as notifications,
        ):
            told = 0
            notification = await _first(client, notifications, addresses.subscribe)
            while notification is not None:
                for line in lines(notification):
                    print(line)
                sys.stdout.flush()
                told += 1
                if options.count is not None and told >= options.count:
                    return
                notification = await anext(notifications, None)

    asyncio.run(follow())
    return 0


async def _first(
    client: EngineClient, notifications: AsyncGenerator[Notification, None], url: str
) -> Notification | None:
    """The first notification, None if there is none. Raises UpstreamError without a first connection."""
    waiting = asyncio.ensure_future(anext(notifications, None))
    try:
        await asyncio.wait([waiting], timeout=CONNECT_S)
        if not waiting.done() and not client.connected:
            raise UpstreamError(
                f"no answer from {url} within {CONNECT_S:g} s; if its WebSockets are elsewhere, --url takes ws:// or wss://"
            )
        return await waiting
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


def _json_lines(notification: Notification) -> Iterator[str]:
    told = {
        "spuid": notification.spuid,
        "sequence": notification.sequence,
        "addedResults": notification.added.to_json(),
        "removedResults": notification.removed.to_json(),
    }
    yield msgspec.json.encode(told).decode()


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip()


class _Rows:
    """Notifications as lines of columns, which grow when needed. A whole result has its names above it."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._widths: list[int] = []

    def lines(self, notification: Notification) -> Iterator[str]:
        added, removed = notification.added, notification.removed
        if notification.sequence == 0:
            self._widths = [len(name) for name in added.variables]
        rows = [("-", row) for row in removed] + [("+", row) for row in added]
        cells = [(sign, [cell(term) for term in row]) for sign, row in rows]
        for _, row in cells:
            self._widths = [max(width, len(text)) for width, text in zip(self._widths, row, strict=True)]
        if notification.sequence == 0:
            yield f"  {_line(added.variables, self._widths)}"
        for sign, row in cells:
            line = f"{sign} {_line(row, self._widths)}"
            colour = _GREEN if sign == "+" else _RED
            yield f"{colour}{line}{_PLAIN}" if self._colours else line


# --- register ------------------------------------------------------------------------------------------------


def _register(options: argparse.Namespace) -> int:
    from lamplighter.engine.client.oauth import register

    if options.file.exists():
        raise ConfigurationError(f"{options.file} already exists; name another file, or remove this one")
    url = f"{options.url.rstrip('/')}/oauth/register"
    credentials = asyncio.run(register(url, options.identity, code=options.code, ca=options.ca))
    credentials.save(options.file)
    value = {"registered": credentials.client_id, "file": str(options.file)}
    print_result(options, value, f"client {printable(value['registered'])}: its credentials are in {options.file}")
    return 0
