"""The command ``lamplighter load``: an RDF file into the dataset of a running gateway, in many small updates.

Quads that a blank node connects go into one update, because each update makes blank nodes of its own. They go last: the
other quads can be sent again without effect.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lamplighter.engine.errors import ConfigurationError, GatewayError, LimitExceededError, RefusedError, UpstreamError
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.tables import count_text
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.engine.terms import Quad, Term, is_blank
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import ProgressBar, print_result
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway, sparql_paths
from lamplighter.gateway.texts import printable

SLICE_QUADS = 1000
# Of the quads of one update, so that no limit of the gateway is reached and other requests do not wait.
SLICE_CHARACTERS = 128 * 1024
_TRIES = 6
_BACK_OFF_S = (0.5, 16.0)  # before the second try, and at most


def add_load_command(command: Adder) -> None:
    load = command("load", _load)
    load.add_argument(
        "file", type=Path, help="Turtle, N-Triples, N-Quads, TriG, RDF/XML or JSON-LD; .gz if it is compressed"
    )
    load.add_argument("--graph", metavar="IRI", help="the graph for the triples (default: the default graph)")
    load.add_argument("--format", metavar="NAME", help="ttl, nt, nq, trig, rdf or jsonld (default: by the file's name)")
    load.add_argument("--base", metavar="IRI", help="what relative IRIs are resolved with")
    load.add_argument("--json", action="store_true", help="print the counts as JSON")
    add_reach_options(load)


def _load(options: argparse.Namespace) -> int:
    from lamplighter.engine.updating.documents import DOCUMENT_BYTES_MAX, opened, quads_of  # loads the store's library

    graph = None if options.graph is None else f"<{options.graph.removeprefix('<').removesuffix('>')}>"
    try:
        document = opened(options.file, options.format, DOCUMENT_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"{options.file}: {error.strerror}; name an RDF file") from error
    quads = quads_of(document, graph, options.base, TERM_BYTES_MAX, DOCUMENT_BYTES_MAX)
    portions = list(slices(quads))
    check_sizes(portions, str(options.file))
    sent = _send(options, quads, portions)
    place = "the default graph and the graphs of the file" if graph is None else graph
    loaded = f"{count_text(len(quads), 'quad', ',')} of {printable(str(options.file))}"
    line = f"loaded {loaded} into {printable(place)}, in {count_text(sent, 'update')}"
    print_result(options, {"file": str(options.file), "quads": len(quads), "updates": sent}, line)
    return 0


def check_sizes(portions: Iterable[Sequence[Quad]], name: str) -> None:
    """Raises LimitExceededError if an update would be larger than a request. name: of the file."""
    from lamplighter.engine.sparql.requests import REQUEST_BYTES_MAX  # loads the store's library

    for one in portions:
        if sum(map(_characters, one)) > SLICE_CHARACTERS and len(update_text(one).encode()) > REQUEST_BYTES_MAX:
            raise LimitExceededError(
                f"{name}: blank nodes connect {count_text(len(one), 'quad', ',')}, which need one update of more than "
                f"{REQUEST_BYTES_MAX} bytes; nothing was loaded; give the nodes IRIs"
            )


def _send(options: argparse.Namespace, quads: Sequence[Quad], portions: Iterable[Sequence[Quad]]) -> int:
    """Sends all quads; returns the number of updates. portions: the quads of each update."""
    run, sent, anonymous = secrets.token_hex(8), 0, 0
    with ProgressBar(f"load {printable(options.file.name)}", "quads", len(quads)) as bar:
        try:
            for one in portions:
                _send_one(options, update_text(one), f"load-{run}-{sent}", reached=sent > 0)
                sent += 1
                anonymous += sum(map(_has_blank, one))
                bar.advance(len(one))
        except (GatewayError, KeyboardInterrupt):
            again = (
                f"another run would add the {count_text(anonymous, 'quad', ',')} with blank nodes a second time"
                if anonymous
                else "run the command again: quads that are there stay as they are"
            )
            told = f"{bar.done:,} of {count_text(len(quads), 'quad', ',')} are loaded; {again}"
            print(f"lamplighter: {printable(str(options.file))}: {told}", file=sys.stderr)
            raise
    return sent


def _send_one(options: argparse.Namespace, text: str, request_id: str, *, reached: bool) -> None:
    """Sends an update; again after a passing error. The request id gives it one effect. reached: whether the gateway
    has answered before: it may restart."""
    # A first failure to connect is not a passing one: there is no gateway.
    path = f"{sparql_paths(options)[1]}?{urlencode({'request_id': request_id, 'priority': 'bulk'})}"
    for attempt in range(_TRIES):
        try:
            headers = {"Content-Type": "application/sparql-update"}
            with call_gateway(options, "POST", path, text.encode(), headers) as answer:
                answer.read()
            return
        except (RefusedError, UpstreamError) as error:
            missing = isinstance(error, UpstreamError) and not attempt and not reached
            if not error.retriable or attempt == _TRIES - 1 or missing:
                raise
            time.sleep(back_off_s(attempt + 1, *_BACK_OFF_S))


# --- slices --------------------------------------------------------------------------------------------------


def slices(quads: Iterable[Quad]) -> Iterator[list[Quad]]:
    """All quads, in lists of bounded size; those that a blank node connects are in one list."""
    plain, connected = _by_blank_nodes(quads)
    for groups in ([[quad] for quad in plain], connected):
        taken: list[Quad] = []
        characters = 0
        for group in groups:
            size = sum(map(_characters, group))
            if taken and (len(taken) + len(group) > SLICE_QUADS or characters + size > SLICE_CHARACTERS):
                yield taken
                taken, characters = [], 0
            taken.extend(group)
            characters += size
        if taken:
            yield taken


def _by_blank_nodes(quads: Iterable[Quad]) -> tuple[list[Quad], list[list[Quad]]]:
    """The quads without blank nodes, and groups of those that blank nodes connect."""
    plain: list[Quad] = []
    rest: list[tuple[Quad, list[Term]]] = []
    above: dict[Term, Term] = {}

    def top(node: Term) -> Term:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for quad in quads:
        nodes = [node for term in quad if term is not None for node in _blank_nodes(term)]
        if not nodes:
            plain.append(quad)
            continue
        for node in nodes:
            above.setdefault(node, node)
            above[top(node)] = top(nodes[0])
        rest.append((quad, nodes))
    groups: dict[Term, list[Quad]] = {}
    for quad, nodes in rest:
        groups.setdefault(top(nodes[0]), []).append(quad)
    return plain, list(groups.values())


def _blank_nodes(term: Term) -> Iterator[Term]:
    if is_blank(term):
        yield term
    elif term.startswith("<<"):
        yield from (word for word in term.split() if is_blank(word))


def _has_blank(quad: Quad) -> bool:
    return any(True for term in quad if term is not None for _ in _blank_nodes(term))


def _characters(quad: Quad) -> int:
    return sum(len(term) + 1 for term in quad if term is not None)


def update_text(quads: Sequence[Quad]) -> str:
    """INSERT DATA with the quads, each graph once."""
    graphs: dict[Any, list[str]] = {}
    for s, p, o, g in quads:
        graphs.setdefault(g, []).append(f"{s} {p} {o} .")
    blocks = [
        "\n".join(lines) if graph is None else f"GRAPH {graph} {{\n" + "\n".join(lines) + "\n}"
        for graph, lines in graphs.items()
    ]
    return "INSERT DATA {\n" + "\n".join(blocks) + "\n}"
