"""What is wrong with a text that the store's parser refuses, in words that name it.

The parser tells which characters it expected where it could go no further. That is often behind the fault: at the end
of the text, for a rule about the whole of it, or at the next word, for a prefix that is not declared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lamplighter.engine.sparql.lexer import Token, line_and_column, tokens

# Characters of a list of what the parser expected.
EXPECTED_MAX = 300
# A sentence among what the parser expected: a rule of the language that the text breaks.
_RULE = re.compile(r"(?:^expected |^expected one of |, )((?:[A-Z][a-z]+|SELECT \*) [^,]+)")
_ANY_RULE = (
    "this does not belong here, or what is before it breaks a rule: a variable that AS assigns must not be in use in "
    "its group already, and the label of a blank node belongs to one group"
)
_UNTOLD = ("expected [_]", "expected <unreported>")


def readable(message: str, text: str, line: int, column: int) -> tuple[str, int, int]:
    """The parser's message and its place, or better ones. text: as the client wrote it."""
    found = list(tokens(text))
    place = _undeclared_prefix(found) or _blank_node(found)
    if place is not None:
        token, words = place
        return words, *line_and_column(text, token.start)
    rule = _RULE.search(message)
    if rule is not None:
        return _rule(rule[1], found), line, column
    if message in _UNTOLD:
        return _ANY_RULE, line, column
    if len(message) > EXPECTED_MAX:  # it lists all characters that would be valid
        message = message[:EXPECTED_MAX].rsplit(",", 1)[0] + ", ..."
    return message, line, column


def _undeclared_prefix(found: Sequence[Token]) -> tuple[Token, str] | None:
    """The first name whose prefix is not declared before it."""
    declared: set[str] = set()
    before: Token | None = None
    for token in found:
        if token.kind == "name":
            prefix = token.text.partition(":")[0]
            if before is not None and before.is_word("PREFIX"):
                declared.add(prefix)
            elif prefix not in declared:
                return (
                    token,
                    f"the prefix {prefix}: of {token.text[:100]} is not declared (PREFIX {prefix}: <...>)",
                )
        before = token
    return None


def _blank_node(found: Sequence[Token]) -> tuple[Token, str] | None:
    """The first blank node that is to be deleted."""
    depth = 0
    deleting = False
    for token in found:
        if token.is_word("DELETE"):
            deleting, depth = True, 0
        elif token.kind == "sign" and token.text in "{}":
            depth += 1 if token.text == "{" else -1
            deleting = deleting and depth > 0
        elif deleting and depth and (token.kind == "blank" or token.text == "["):
            return token, (
                f"{token.text[:100]}: a blank node cannot be deleted by its label, which means another one in each "
                "request; write DELETE with a variable, and a WHERE that finds it"
            )
        elif deleting and not depth and not token.is_word("DATA", "WHERE"):
            deleting = False
    return None


def _rule(rule: str, found: Sequence[Token]) -> str:
    if "SELECT contains a variable that is unbound" in rule:
        names = _ungrouped_variables(found)
        which = f"{', '.join(names)}: " if names else ""
        return (
            f"{which}with GROUP BY or an aggregate, SELECT takes variables of GROUP BY and aggregates only; group by "
            "it, or write an aggregate such as SAMPLE(?x)"
        )
    return rule


def _ungrouped_variables(found: Sequence[Token]) -> list[str]:
    """The variables that the first SELECT projects as they are, and GROUP BY does not name."""
    projected: list[str] = []
    depth = 0
    start = next((index for index, token in enumerate(found) if token.is_word("SELECT")), len(found))
    for token in found[start:]:
        if token.text == "{" or token.is_word("WHERE", "FROM"):
            break
        depth += (token.text == "(") - (token.text == ")")
        if token.kind == "variable" and not depth:
            projected.append(token.text)
    by = next((index for index, token in enumerate(found) if token.is_word("GROUP")), len(found))
    grouped = {token.text for token in found[by:] if token.kind == "variable"}
    return [name for name in projected if name not in grouped]
