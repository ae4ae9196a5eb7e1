"""Records, terms and texts of others in short form for people: without control sequences, on one line."""

from __future__ import annotations

from collections.abc import Iterator

from lamplighter.engine.change_log import Record
from lamplighter.engine.terms import Quad, Term, is_iri, lexical
from lamplighter.gateway.log.snapshots import label, place_of
from lamplighter.gateway.state.resumption import public_spuid
from lamplighter.gateway.texts import cut, printable
from lamplighter.ontology.vocabulary import GATEWAY, PREFIXES, RDF_TYPE

_LINES_MAX = 20
_LITERAL_CHARACTERS_MAX = 120
_TEXT_CHARACTERS_MAX = 100


def plain(text: str) -> str:
    """An untrusted text, on one line."""
    return printable(cut(" ".join(text.split()), _TEXT_CHARACTERS_MAX))


def short_iri(iri: str) -> str:
    """An IRI with a known prefix; without one if it is of the gateway's vocabulary."""
    if iri.startswith(GATEWAY):
        return iri.removeprefix(GATEWAY)
    for prefix, namespace in PREFIXES.items():
        if iri.startswith(namespace) and iri != namespace:
            return f"{prefix}:{iri.removeprefix(namespace)}"
    return iri


class Names:
    """Writes records for people. base: the gateway's base IRI; an IRI below it is written ``:post/1``."""

    def __init__(self, base: str) -> None:
        self._prefixes = sorted([(iri, name) for name, iri in PREFIXES.items()] + [(base, "")], reverse=True)

    def record(self, record: Record) -> str:
        cause = record.cause
        parts = [
            label(place_of(record)),
            record.ts[:23].replace("T", " ") + ("" if record.trusted else " (clock not synchronised)"),
            record.type,
            *([] if cause is None else [plain(f"by {cause.kind} {cause.id}")]),
            *([] if cause is None or cause.seq is None else [f"after {cause.seq}"]),
            *([] if record.request is None else [plain(f"request {record.request}")]),
        ]
        return "".join(f"{line}\n" for line in ("  ".join(parts), *(f"    {line}" for line in self._details(record))))

    def _details(self, record: Record) -> Iterator[str]:
        delta = record.delta
        for name in delta.dropped:
            yield f"- graph {self.term(name)}"
        for sign, quads in (("-", delta.removed), ("+", delta.added), ("=", delta.kept)):
            for quad in quads[:_LINES_MAX]:
                yield f"{sign} {self.quad(quad)}"
            if len(quads) > _LINES_MAX:
                yield f"{sign} and {len(quads) - _LINES_MAX} more"
        for name in delta.created:
            yield f"+ graph {self.term(name)}"
        if record.timer is not None:
            timer = record.timer
            due = f"at {timer.at}" if timer.delay_us is None else f"in {timer.delay_us / 1e6:g} s"
            yield f"{timer.id} {due}: {plain(timer.update)}"
        if record.cancel is not None:
            yield record.cancel
        if record.subscribe is not None:
            yield f"{public_spuid(record.subscribe.spuid)}: {plain(record.subscribe.sparql)}"
        if record.unsubscribe is not None:
            yield public_spuid(record.unsubscribe)
        if record.gap is not None:
            gap = record.gap
            last = "on" if gap.last is None else f"to {gap.epoch}/{gap.last}"
            yield plain(f"the records from {gap.epoch}/{gap.first} {last} are lost: {gap.reason}")

    def quad(self, quad: Quad) -> str:
        text = f"{self.term(quad.s)} {'a' if quad.p == f'<{RDF_TYPE}>' else self.term(quad.p)} {self.term(quad.o)}"
        return text if quad.g is None else f"{text}  in {self.term(quad.g)}"

    def term(self, term: Term) -> str:
        """Short and printable."""
        if is_iri(term):
            return printable(self._iri(term[1:-1]))
        if not term.startswith('"'):
            return printable(term)
        value, _, datatype = term.rpartition("^^")
        if not value or not datatype.endswith(">"):
            return printable(cut(term, _LITERAL_CHARACTERS_MAX))
        name = self._iri(datatype[1:-1])
        if name in ("xsd:integer", "xsd:decimal", "xsd:boolean"):
            return printable(lexical(term))
        return printable(f"{cut(value, _LITERAL_CHARACTERS_MAX)}^^{name}")

    def _iri(self, iri: str) -> str:
        for prefix, name in self._prefixes:
            if iri.startswith(prefix) and iri != prefix:
                return f"{name}:{iri[len(prefix) :]}"
        return f"<{iri}>"
