"""The generated code that the documentation shows."""

from textwrap import indent

from lamplighter.engine import Engine
from lamplighter.engine.matching import codegen

QUERY = "SELECT ?lamp ?level { ?lamp <urn:street> <urn:s7> ; <urn:level> ?level }"


def test_the_documented_example_is_what_is_generated() -> None:
    engine = Engine()
    engine.subscribe(QUERY)
    [shape] = engine._subscriptions._shapes.by_key.values()
    assert shape.plan is not None
    [function] = [matcher for predicate, matcher in shape.plan.matchers if predicate == "<urn:level>"]
    documented = codegen.__doc__ or ""
    assert f"``{QUERY}``" in documented
    assert f"::\n\n{indent(vars(function)['source'], '    ')}\n\n" in documented
