"""Limits on request texts, checked before they are parsed.

Oxigraph's parser and planner are recursive: some thousand nested groups or chained operators overflow the stack and end
the process. Ordering the joins of n triple patterns takes time in O(n^4): 100 patterns 0.5 s, 200 patterns 7 s.
Simplifying n conditions takes O(n^2): 1,000 of them 1 s. Real requests are far below the limits.

The data of INSERT DATA, DELETE DATA and VALUES, and templates, are not limited here. The constants of a subscription
are, because each of them is analysed.
"""

from collections.abc import Iterable, Iterator

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sparql.lexer import Token
from lamplighter.engine.terms import TERM_DEPTH_MAX

# Nested brackets of any kind. Nested triples are limited by `TERM_DEPTH_MAX`.
NESTING_MAX = 200
# Consecutive signs ``!``.
NEGATIONS_MAX = 10
# Triple patterns, path steps and groups in one operation or query: their separators are counted, and two patterns for
# each member of a list.
PATTERNS_MAX = 128
# Filters, the operators ``&&`` and ``||``, and assignments by AS in one operation or query.
CONDITIONS_MAX = 256
# Tokens outside of data and templates.
TOKENS_MAX = 10_000
# Constants of a subscription, those of VALUES included. Analysing one takes 25 us.
CONSTANTS_MAX = 10_000

_OPENING = {"{": "}", "[": "]", "(": ")"}
_CLOSING = frozenset(_OPENING.values())
_SEPARATORS = frozenset(".;,/|")
_CONNECTIVES = frozenset(("&&", "||"))
_MEMBERS = frozenset(("iri", "name", "variable", "blank", "number", "string", "word"))


class _Counts:
    """What a text has outside of data: tokens; patterns and conditions of its present operation. Raises
    LimitExceededError at the first one too many."""

    def __init__(self) -> None:
        self.tokens = self.patterns = self.conditions = 0

    def add(self, token: Token, word: str, before: Token | None, place: str, having: bool) -> None:
        """Counts a token. word: it in upper case, if it is one. place: the content of the innermost bracket. having:
        whether it belongs to HAVING."""
        self.tokens += 1
        if self.tokens > TOKENS_MAX:
            raise LimitExceededError(
                f"there are more than {TOKENS_MAX} tokens outside of data; ask in several requests"
            )
        if place in _PATTERNS and token.text in _SEPARATORS:
            self._add_patterns(1)
        elif place == "members" and follows_member(token, before):
            self._add_patterns(2)
        elif word in ("FILTER", "AS") or token.text in _CONNECTIVES or (having and token.text == "("):
            self.conditions += 1
            if self.conditions > CONDITIONS_MAX:
                raise LimitExceededError(
                    f"there are more than {CONDITIONS_MAX} conditions and assignments; write alternatives of one value "
                    "as ?x IN (...), or ask in several requests"
                )

    def begin(self, token: Token, content: str) -> None:
        """Counts an opening bracket by its content."""
        if content == "members":
            self._add_patterns(2)
        elif content != "data" and token.text in "{[":
            self._add_patterns(1)

    def _add_patterns(self, count: int) -> None:
        self.patterns += count
        if self.patterns > PATTERNS_MAX:
            raise LimitExceededError(
                f"there are more than {PATTERNS_MAX} triple patterns, path steps or groups; ask in several requests"
            )


def outside_data(found: Iterable[Token]) -> Iterator[Token]:
    """The tokens without those inside of data, which may be large. The braces of data are included.

    Raises LimitExceededError at the first token that exceeds a limit; the text must then not be parsed.
    """
    stack: list[str] = []  # the content of each open bracket: "data", "patterns", "members" or "expression"
    counts = _Counts()
    negations = triples = 0
    values = pair = having = clause = False
    before: Token | None = None
    for token in found:
        if token.kind == "data":
            before, negations = token, 0
            continue
        kind, text = token.kind, token.text
        word = text.upper() if kind == "word" else ""
        place = stack[-1] if stack else "patterns"
        kept = place != "data"
        if kept:
            counts.add(token, word, before, place, having)
        if kind == "sign":
            if text in _OPENING:
                opened = bracket_content(token, before, place, values, clause)
                counts.begin(token, opened)
                stack.append(opened)
            elif text in _CLOSING and stack:
                stack.pop()
                kept = kept or not stack or stack[-1] != "data"
            elif text in "<>" and before is not None:
                # Two signs are a bracket of triples; a third begins the next bracket.
                pair = not pair and before.text == text and before.end == token.start
                if pair and text == "<":
                    stack.append(place)
                    triples += 1
                    if triples > TERM_DEPTH_MAX:
                        raise LimitExceededError(f"triples are nested more than {TERM_DEPTH_MAX} deep")
                elif pair and stack:
                    stack.pop()
                    triples -= 1
            elif text == ";" and not stack:
                counts.patterns = counts.conditions = 0  # the next operation of an update
            if len(stack) > NESTING_MAX:
                raise LimitExceededError(f"brackets are nested more than {NESTING_MAX} deep")
        negations = negations + 1 if text == "!" else 0
        if negations > NEGATIONS_MAX:
            raise LimitExceededError(f"there are more than {NEGATIONS_MAX} negations in a row")
        having = word == "HAVING" or (having and text != "}" and word not in ("ORDER", "LIMIT"))
        # Only its variables and a brace may follow VALUES.
        values = word == "VALUES" or (values and (kind == "variable" or text in ("(", ")")))
        if clause or kind == "word":
            clause = is_in_clause(token, clause)
        before = token
        if kept:
            yield token


def is_in_clause(token: Token, clause: bool) -> bool:
    """Whether round brackets behind a token are expressions, since they are those of a projection or of a modifier.
    clause: the same for the token before."""
    if token.kind == "word":
        return token.is_word("SELECT", "GROUP", "HAVING", "ORDER") or (clause and not token.is_word("WHERE"))
    return clause and token.text not in ("{", "}")


def bracket_content(token: Token, before: Token | None, place: str, values: bool, clause: bool) -> str:
    """The content of a bracket. In patterns, a list or a path follows a term, a path or the end of something else; an
    expression does not. values: whether it is of VALUES. clause: `is_in_clause` of the token before."""
    if place == "data":
        return "data"
    if token.text == "{":
        return "data" if values or (before is not None and before.is_word("DATA", "INSERT", "DELETE")) else "patterns"
    if token.text == "[":
        return "patterns"
    if place == "members":
        return "members"
    follows_term = before is not None and (before.kind in ("iri", "name", "variable", "blank") or before.text == "a")
    nested = before is not None and before.text in ("(", "/", "|", "^", "!", ",", ".", ";", "{")
    behind = before is not None and not clause and before.text in (")", "]", "}", "*", "+", "?")
    return "members" if place == "patterns" and (follows_term or nested or behind) and not values else "expression"


_PATTERNS = frozenset(("patterns", "members"))


def follows_member(token: Token, before: Token | None) -> bool:
    """Whether a token in round brackets among patterns begins the next member of a list. Steps of a path have a sign
    between them."""
    after_member = before is not None and (
        before.kind in _MEMBERS or before.kind == "language" or before.text in (")", "]", ">")
    )
    return after_member and (token.kind in _MEMBERS or token.text in ("(", "[", "<", "+", "-"))
