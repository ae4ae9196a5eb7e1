"""A replica of a gateway's dataset: what the change feed says, applied to a pyoxigraph store.

It shares no code with the gateway, and fails where a change is not exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyoxigraph as ox

from lamplighter.engine.client import DatasetChange
from tests.support.oracle import QuadTexts, quad_texts, term_text

_JENA_BLANK = re.compile(r'"(?:[^"\\]|\\.)*"|<(_:[^<>]*)>')
"""A literal, which is left as it is, or a blank node as Jena writes it."""


class Replica:
    """Quads and named graphs, also empty ones. position: behind what was applied."""

    def __init__(self) -> None:
        self.store = ox.Store()
        self.position = ""

    @property
    def content(self) -> tuple[set[QuadTexts], set[str]]:
        return {quad_texts(quad) for quad in self.store}, {term_text(name) for name in self.store.named_graphs()}

    def clear(self) -> None:
        self.store.clear()
        self.position = ""

    def ndjson(self, body: bytes) -> int:
        """Applies lines. Returns how many have a position."""
        count = 0
        for line in body.splitlines():
            found = json.loads(line)
            self.line(found)
            count += "position" in found
        return count

    def line(self, found: dict[str, Any]) -> None:
        """Applies one line."""
        graphs = found.get("graphs", {})
        self._apply(
            graphs.get("dropped", ()),
            map(_row, found.get("d", ())),
            graphs.get("created", ()),
            map(_row, found.get("a", ())),
        )
        self.position = found.get("position", self.position)

    def change(self, change: DatasetChange) -> None:
        """Applies what the client library says."""
        if change.reset is not None:
            self.clear()
        self._apply(change.dropped, map(_row, change.removed), change.created, map(_row, change.added))
        self.position = change.position or self.position

    def patches(self, text: str) -> int:
        """Applies RDF Patches. Returns how many there were."""
        count, within = 0, False
        header: dict[str, str] = {}
        before: str | None = None
        for row in text.splitlines():
            word, _, rest = row.removesuffix(" .").partition(" ")
            if word == "H":
                assert not within
                key, _, value = rest.partition(" ")
                header[key] = value
            elif word == "TX":
                assert re.fullmatch(r"<urn:uuid:[0-9a-f-]{36}>", header["id"])
                assert header.get("prev") == before
                within = True
            elif word == "TC":
                count, within, before = count + 1, False, header["id"]
                self.position, header = header["position"].strip('"'), {}
            else:
                assert within, row
                parts: dict[str, list[Any]] = {"graph dropped": [], "D": [], "graph created": [], "A": []}
                if word == "#":
                    kind, _, name = rest.partition(": ")
                    parts[kind].append(name)
                else:
                    parts[word].append(_JENA_BLANK.sub(lambda found: found[1] or found[0], rest))
                self._apply(*parts.values())
        assert not within and not header
        return count

    def quads(self, text: bytes) -> None:
        """Replaces everything by N-Quads, whose comments name the graphs."""
        self.clear()
        for name in re.findall(r"^# graph created: (<.*>)$", text.decode(), re.M):
            self.store.add_graph(ox.NamedNode(name[1:-1]))
        for quad in ox.parse(text, ox.RdfFormat.N_QUADS):
            self.store.add(quad)

    def _apply(
        self, dropped: Iterable[str], removed: Iterable[str], created: Iterable[str], added: Iterable[str]
    ) -> None:
        dropped = [*dropped]
        for quad in _parsed(removed):
            assert quad in self.store, f"{quad} is not there"
            self.store.remove(quad)
        for name in dropped:
            graph = ox.NamedNode(name[1:-1])
            assert self.store.contains_named_graph(graph), f"{name} is not there"
            self.store.remove_graph(graph)
        for name in created:
            assert not self.store.contains_named_graph(ox.NamedNode(name[1:-1])), f"{name} is there"
            self.store.add_graph(ox.NamedNode(name[1:-1]))
        for quad in _parsed(added):
            assert quad not in self.store, f"{quad} is there"
            if not isinstance(quad.graph_name, ox.DefaultGraph):
                assert self.store.contains_named_graph(quad.graph_name), f"{quad.graph_name} was not created"
            self.store.add(quad)


def events(text: str) -> Iterator[dict[str, str]]:
    """The fields of whole events (HTML Living Standard, 9.2.6); `id` also of those without data."""
    for block in text.split("\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
        yield fields


def _row(quad: Sequence[str | None]) -> str:
    return " ".join(term for term in quad if term is not None)


def _parsed(rows: Iterable[str]) -> Iterator[ox.Quad]:
    for row in rows:
        [quad] = ox.parse(f"{row} .", ox.RdfFormat.N_QUADS)
        yield quad
