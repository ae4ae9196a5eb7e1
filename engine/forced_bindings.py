"""Checked values -> SPARQL text: forced bindings (SEPA protocol 4.4).

A variable is replaced where it stands as a token: not in strings, comments or IRIs, and not as a part of a
longer name. Values are terms in N-Triples syntax, whose escapes are SPARQL's too, so no value can break
out of its place.
"""

from collections.abc import Mapping

from engine.errors import ForcedBindingError
from engine.lexer import tokens
from engine.terms import Term, is_blank


def bound(sparql: str, values: Mapping[str, Term]) -> str:
    """The text with each ``?name`` and ``$name`` of `values` replaced by its term.

    Raises ForcedBindingError for a blank node: in a request it would stand for anything.
    """
    for name, term in values.items():
        if is_blank(term):
            raise ForcedBindingError(
                f"?{name} is the blank node {term}, which cannot be named in a request; bind an IRI or a literal"
            )
    parts, position = [], 0
    for token in tokens(sparql):
        if token.kind == "variable" and token.text[1:] in values:
            # With blanks around it, since `?a<?b` must not become `<a><<b>`.
            parts += [sparql[position : token.start], " ", values[token.text[1:]], " "]
            position = token.end
    return "".join([*parts, sparql[position:]])
