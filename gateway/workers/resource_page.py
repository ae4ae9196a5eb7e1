"""The HTML page of a description. Pure.

The dataset is written by others, so each text is escaped, only http and https IRIs become links, and the page's policy
permits nothing but its own style.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias
from urllib.parse import quote, urlsplit

import pyoxigraph as ox

from lamplighter.ontology.vocabulary import PREFIXES, RDFS_LABEL

# Characters of a literal or of an IRI that the page shows. A longer IRI is no link.
_SHOWN_MAX = 2000
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0}"
    "th,td{border:1px solid #8888;padding:.2em .6em;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "small{opacity:.7}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# The Content-Security-Policy of the page: no scripts, no requests.
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

_Node: TypeAlias = ox.NamedNode | ox.BlankNode
_Term: TypeAlias = ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple


def page(
    about: ox.NamedNode,
    outgoing: Mapping[_Node, Sequence[ox.Triple]],
    incoming: Sequence[ox.Triple],
    base_iri: str,
    *,
    cut: bool,
) -> bytes:
    """The page about an IRI. outgoing: triples by subject; base_iri: IRIs below it link to their path, whatever the
    host of the request; cut: whether there are more triples."""
    return _Page(outgoing, base_iri).text(about, incoming, cut=cut).encode(errors="replace")


class _Page:
    def __init__(self, outgoing: Mapping[_Node, Sequence[ox.Triple]], base_iri: str) -> None:
        self._outgoing = outgoing
        self._base_iri = base_iri
        # Blank nodes whose table the page has. One for each path to a node would take a gigabyte for 1000 triples.
        self._shown: set[_Node] = set()

    def text(self, about: ox.NamedNode, incoming: Sequence[ox.Triple], *, cut: bool) -> str:
        title = escape(self._title(about))
        parts = [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p><code>{escape(about.value)}</code></p>",
            self._table(about),
        ]
        if incoming:
            rows = sorted(
                f"<tr><td>{self._link(triple.subject)}</td><td>{self._link(triple.predicate)}</td></tr>"
                for triple in incoming
            )
            parts.append(f"<h2>What refers to it</h2><table>{''.join(rows)}</table>")
        if cut:
            parts.append("<p>There is more; use a query to see all.</p>")
        parts.append("<p><small>Also as Turtle, N-Triples and JSON-LD, by the header Accept.</small></p></body></html>")
        return "".join(parts)

    def _title(self, about: ox.NamedNode) -> str:
        labels = [
            triple.object.value
            for triple in self._outgoing.get(about, ())
            if triple.predicate.value == RDFS_LABEL and isinstance(triple.object, ox.Literal)
        ]
        return min(labels)[:_SHOWN_MAX] if labels else self._short(about.value)

    def _table(self, subject: _Node) -> str:
        """A row for each predicate, in alphabetical order."""
        values: dict[str, list[str]] = {}
        for triple in self._outgoing.get(subject, ()):
            values.setdefault(self._link(triple.predicate), []).append(self._value(triple.object))
        rows = (f"<tr><th>{name}</th><td>{'<br>'.join(sorted(found))}</td></tr>" for name, found in values.items())
        return f"<table>{''.join(sorted(rows))}</table>" if values else ""

    def _value(self, term: _Term) -> str:
        if isinstance(term, ox.BlankNode) and term in self._outgoing and term not in self._shown:
            self._shown.add(term)
            return self._table(term)
        return self._link(term)

    def _link(self, term: _Term) -> str:
        if isinstance(term, ox.NamedNode):
            text, address = escape(_shorten(self._short(term.value))), self._address(term.value)
            return text if address is None else f'<a href="{escape(address)}" rel="noreferrer">{text}</a>'
        if isinstance(term, ox.Triple):
            return escape(f"<<( {term} )>>"[:_SHOWN_MAX])
        if isinstance(term, ox.BlankNode):
            return escape(str(term))
        kind = f"@{term.language}" if term.language else _shorten(self._short(term.datatype.value))
        return escape(_shorten(term.value)) + ("" if kind == "xsd:string" else f" <small>{escape(kind)}</small>")

    def _short(self, iri: str) -> str:
        for prefix, namespace in PREFIXES.items():
            if iri.startswith(namespace) and iri != namespace:
                return f"{prefix}:{iri.removeprefix(namespace)}"
        return iri.removeprefix(self._base_iri) or iri

    def _address(self, iri: str) -> str | None:
        """The target of the link to an IRI, None if it may not be a link."""
        if len(iri) > _SHOWN_MAX:
            return None
        try:
            parts = urlsplit(iri)
        except ValueError:
            return None
        if parts.scheme not in ("http", "https"):
            return None
        address = quote(iri, safe="%/:?#[]@!$&'()*+,;=~")
        if iri.startswith(self._base_iri) and not parts.path.startswith("//"):  # `//host` would lead to another host
            start = len(quote(f"{parts.scheme}://{parts.netloc}", safe="%/:[]@!$&'()*+,;=~"))
            return address[start:]
        return address


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
