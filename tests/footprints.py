"""The footprint of a query text, as subscribing to it would put it into the LUTT."""

from engine.access import Dataset
from engine.cts import Cts
from engine.grammar import constant_spans
from engine.lutt import Footprint
from engine.shapes import Shape, read_spelling
from engine.sparql import canonical, declarations_and_body, subscribable
from engine.work import Work


def footprint(text: str, dataset: Dataset | None = None) -> Footprint:
    columns = subscribable(text).columns
    prologue, body = declarations_and_body(text)
    raws = ["".join(token.text for token in body[start:end]) for start, end in constant_spans(body)]
    terms = [canonical(prologue, raw) for raw in raws]
    spelling = read_spelling(body, columns, lambda raw: canonical("", raw))
    shape = Shape(spelling, terms, Cts(lambda predicate: ()), dataset, Work())
    return shape.footprint(shape.constants(terms))
