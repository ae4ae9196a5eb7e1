"""Limits on request texts, checked before they are parsed.

Oxigraph's parser and planner are recursive: some thousand nested groups or chained operators overflow the stack and end
the process. Ordering the joins of n triple patterns takes time in O(n^4): 100 patterns 0.5 s, 200 patterns 7 s. Real
requests are far below the limits.

The data of INSERT DATA, DELETE DATA and VALUES, and templates, are not limited here. The constants of a subscription
are, because each of them is analysed.
"""

from collections.abc import Iterable, Iterator

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.terms import TERM_DEPTH_MAX

NESTING_MAX = 200
"""Nested brackets of any kind. Nested triples are limited by `TERM_DEPTH_MAX`."""
NEGATIONS_MAX = 10
"""Consecutive signs ``!``."""
PATTERNS_MAX = 128
"""Triple patterns, path steps and groups in one operation or query, counted by their separators."""
TOKENS_MAX = 10_000
"""Tokens outside of data and templates."""
CONSTANTS_MAX = 10_000
"""Constants of a subscription, those of VALUES included. Analysing one takes 25 us."""

_OPENING = {"{": "}", "[": "]", "(": ")"}
_SEPARATORS = frozenset(".;,/|")


def outside_data(found: Iterable[Token]) -> Iterator[Token]:
    """The tokens without those inside of data, which may be large. The braces of data are included.

    Raises LimitExceededError at the first token that exceeds a limit; the text must then not be parsed.
    """
    stack: list[str] = []  # the content of each open bracket: "data", "patterns" or "expression"
    counted = patterns = negations = triples = 0
    values = pair = False
    before: Token | None = None
    for token in found:
        place = stack[-1] if stack else "patterns"
        kept = place != "data"
        if kept:
            counted += 1
            if place == "patterns" and token.text in _SEPARATORS:
                patterns += 1
        if token.kind == "sign" and token.text in _OPENING:
            opened = _opened(token, before, place, values)
            if opened != "data" and token.text in "{[":
                patterns += 1
            stack.append(opened)
        elif token.kind == "sign" and token.text in _OPENING.values() and stack:
            stack.pop()
            kept = kept or not stack or stack[-1] != "data"
        elif token.kind == "sign" and token.text in "<>" and before is not None:
            # Two signs are a bracket of triples; a third begins the next bracket.
            pair = not pair and before.text == token.text and before.end == token.start
            if pair and token.text == "<":
                stack.append(place)
                triples += 1
            elif pair and stack:
                stack.pop()
                triples -= 1
        elif token.text == ";" and not stack:
            patterns = 0  # the next operation of an update
        negations = negations + 1 if token.text == "!" else 0
        if negations > NEGATIONS_MAX:
            raise LimitExceededError(f"there are more than {NEGATIONS_MAX} negations in a row")
        if triples > TERM_DEPTH_MAX:
            raise LimitExceededError(f"triples are nested more than {TERM_DEPTH_MAX} deep")
        if len(stack) > NESTING_MAX:
            raise LimitExceededError(f"brackets are nested more than {NESTING_MAX} deep")
        if patterns > PATTERNS_MAX:
            raise LimitExceededError(
                f"there are more than {PATTERNS_MAX} triple patterns, path steps or groups; ask in several requests"
            )
        if counted > TOKENS_MAX:
            raise LimitExceededError(
                f"there are more than {TOKENS_MAX} tokens outside of data; ask in several requests"
            )
        # Only its variables and a brace may follow VALUES.
        values = token.is_word("VALUES") or (values and (token.kind == "variable" or token.text in ("(", ")")))
        before = token
        if kept:
            yield token


def _opened(token: Token, before: Token | None, place: str, values: bool) -> str:
    """The content of a bracket. In patterns, a list or a path follows a term; an expression does not."""
    if place == "data":
        return "data"
    if token.text == "{":
        return "data" if values or (before is not None and before.is_word("DATA", "INSERT", "DELETE")) else "patterns"
    if token.text == "[":
        return "patterns"
    follows_term = before is not None and (before.kind in ("iri", "name", "variable", "blank") or before.text == "a")
    nested = place == "patterns" and before is not None and before.text in ("(", "/", "|", "^", "!", ",", ".", ";", "{")
    return "patterns" if place == "patterns" and (follows_term or nested) and not values else "expression"
