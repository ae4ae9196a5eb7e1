"""The signature of a query text, as subscribing to it would put it into the LUTT."""

from lamplighter.engine.access import Dataset
from lamplighter.engine.matching.clock_index import ClockIndex
from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.matching.lutt import PatternSignature
from lamplighter.engine.matching.query_texts import parse_tokens
from lamplighter.engine.matching.shapes import PlanContext, Shape
from lamplighter.engine.sparql.cursor import constant_spans
from lamplighter.engine.sparql.requests import canonical, declarations_and_body, subscribable
from lamplighter.engine.work import Work


def signature(text: str, dataset: Dataset | None = None) -> PatternSignature:
    columns = subscribable(text).columns
    prologue, body = declarations_and_body(text)
    raws = ["".join(token.text for token in body[start:end]) for start, end in constant_spans(body)]
    terms = [canonical(prologue, raw) for raw in raws]
    parsed = parse_tokens(body, columns, lambda raw: canonical("", raw))
    shape = Shape(parsed, terms, PlanContext(Cts(lambda predicate: ()), Work(), ClockIndex(lambda: 0)), dataset)
    return shape.signature(shape.constants(terms))
