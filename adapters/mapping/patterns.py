"""Topic patterns: what a rule matches, what it captures, and the filter to subscribe to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from lamplighter.adapters.mapping.expressions import EXPRESSION_TEXT_CHARS_MAX, STEPS_MAX, compile_expression, steps

TOPIC_BYTES_MAX = 1_024
LEVELS_MAX = 64
"""Levels of a pattern."""
COVERING_STEPS_MAX = 200
"""Levels of other filters that are looked at, to find one that covers a filter."""
OWN_TOPICS = "lamplighter"
"""The first level of the topics that the adapter keeps for itself."""
_RESERVED = ("$", f"{OWN_TOPICS}/")
OWN_PATHS = frozenset((".well-known", "queries", "rd", "rd-lookup"))
"""The first levels of the paths that the CoAP server keeps for itself."""


def own_topics(session: str) -> str:
    """What the topics of an adapter begin with. session: its client id."""
    return f"{OWN_TOPICS}/{quote(session, safe='')}/"


def is_reserved(topic: str) -> bool:
    """Whether no rule may publish to the topic: it is one of the broker, or of an adapter."""
    return topic.startswith("$") or topic.partition("/")[0] == OWN_TOPICS


NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_CAPTURE = re.compile(rf"\{{({NAME})(?:(?P<rest>\#)|:(?P<expression>.+))?\}}")


Item = TypeVar("Item")


class _Level(NamedTuple):
    """text: the level itself, None if it varies; expression: what it has to match; names: captures of the level, or of
    the groups of the expression."""

    text: str | None
    name: str | None
    expression: re.Pattern[str] | None


class TopicPattern:
    """A pattern of topics.

    filter: the MQTT filter of its topics; names: of all captures; rest: whether it ends in ``#`` or ``{name#}``;
    rest_name: of the latter; steps: bound of the steps of its expressions on a topic.
    """

    def __init__(self, pattern: str) -> None:
        """Raises ValueError, which says what to write instead."""
        if not pattern or len(pattern.encode()) > TOPIC_BYTES_MAX:
            raise ValueError(f"write 1 to {TOPIC_BYTES_MAX} bytes")
        levels = pattern.split("/")
        if len(levels) > LEVELS_MAX:
            raise ValueError(f"write at most {LEVELS_MAX} levels")
        if levels[0] == "$share":
            raise ValueError("shared subscriptions would split the readings of a sensor; leave out '$share/<group>/'")
        self.pattern = pattern
        self.rest = False
        self.rest_name: str | None = None
        last = _CAPTURE.fullmatch(levels[-1])
        if levels[-1] == "#" or (last and last["rest"]):
            self.rest = True
            self.rest_name = last[1] if last else None
            del levels[-1]
        self._levels = tuple(map(_level, levels))
        self.steps = sum(steps(level.expression.pattern, search=False) for level in self._levels if level.expression)
        if self.steps > STEPS_MAX:
            raise ValueError("the expressions of its levels can take too many steps together")
        names = [name for level in self._levels for name in _names(level)]
        if self.rest_name:
            names.append(self.rest_name)
        if len(set(names)) < len(names):
            raise ValueError("captures a name twice; give each level a name of its own")
        self.names = frozenset(names)
        self.levels = tuple(level.text for level in self._levels)
        """The text of each level, None where it varies; without the rest."""
        self._begins_open = not self.levels or self.levels[0] is None
        """Whether topics may begin with any level; the reserved ones are for rules that name them."""
        self.positions = {level.name: at for at, level in enumerate(self._levels) if level.name is not None}
        """The level that a capture takes whole."""
        self.filter = "/".join([*("+" if text is None else text for text in self.levels), *["#"] * self.rest])

    @staticmethod
    def _is_reserved(topic: str) -> bool:
        return topic.startswith(_RESERVED)

    def captures(self, topic: str) -> dict[str, str] | None:
        """The captures of a topic, or None if the pattern does not match it. A rest has slashes, or is empty."""
        levels = topic.split("/")
        count = len(self._levels)
        if len(levels) < count or (len(levels) > count and not self.rest):
            return None
        if self._begins_open and self._is_reserved(topic):
            return None
        captures: dict[str, str] = {}
        for wanted, level in zip(self._levels, levels, strict=False):
            if wanted.text is not None:
                if wanted.text != level:
                    return None
                continue
            if wanted.expression is not None:
                found = wanted.expression.fullmatch(level) if len(level) <= EXPRESSION_TEXT_CHARS_MAX else None
                if found is None:
                    return None
                captures.update((name, text or "") for name, text in found.groupdict().items())
            if wanted.name is not None:
                captures[wanted.name] = level
        if self.rest_name is not None:
            captures[self.rest_name] = "/".join(levels[count:])
        return captures


class PathPattern(TopicPattern):
    """A pattern of paths of the gateway's CoAP server, written without the first slash."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError, which says what to write instead."""
        super().__init__(pattern)
        if self.levels and self.levels[0] is not None and self._is_reserved(self.levels[0]):
            raise ValueError("the server itself has the paths .well-known, queries, rd and rd-lookup; choose another")
        if "" in self.levels:
            raise ValueError("write a path without a slash at the start or the end, and without empty levels")

    @staticmethod
    def _is_reserved(topic: str) -> bool:
        return topic.partition("/")[0] in OWN_PATHS


class TopicIndex(Generic[Item]):
    """Items by topic pattern: finds those that may match a topic without trying all of them."""

    def __init__(self, items: Iterable[tuple[TopicPattern, Item]] = ()) -> None:
        self._root: dict[str, Any] = {}
        for pattern, item in items:
            self.add(pattern, item)

    def add(self, pattern: TopicPattern, item: Item) -> None:
        node = self._root
        for text in pattern.levels:
            node = node.setdefault("+" if text is None else text, {})
        node.setdefault("#" if pattern.rest else "/", []).append((pattern, item))

    def remove(self, pattern: TopicPattern, item: Item) -> None:
        """Removes what was added with the same two objects. Raises KeyError if it is not there."""
        path = [("+" if text is None else text) for text in pattern.levels]
        nodes = [self._root]
        for step in path:
            nodes.append(nodes[-1][step])
        end = "#" if pattern.rest else "/"
        items = nodes[-1][end]
        items[:] = [one for one in items if one[1] is not item or one[0] is not pattern]
        if not items:
            del nodes[-1][end]
        while path and not nodes.pop():
            del nodes[-1][path.pop()]

    def of(self, topic: str) -> list[tuple[dict[str, str], Item]]:
        """Captures and item of each pattern that matches the topic, in no order."""
        found: list[tuple[dict[str, str], Item]] = []
        nodes = [self._root]
        levels = topic.split("/")
        for place in range(len(levels) + 1):
            ends = ("#", "/") if place == len(levels) else ("#",)
            for node in nodes:
                for end in ends:
                    for pattern, item in node.get(end, ()):
                        captures = pattern.captures(topic)
                        if captures is not None:
                            found.append((captures, item))
            if place < len(levels):
                steps = {"+"} if levels[place] == "#" else {levels[place], "+"}  # node["#"] is a list of items
                nodes = [node[step] for node in nodes for step in steps if step in node]
        return found


def covers(wide: str, narrow: str) -> bool:
    """Whether all topics of the second filter are topics of the first."""
    wide_levels, narrow_levels = wide.split("/"), narrow.split("/")
    if wide_levels[0] in ("+", "#") and narrow.startswith("$"):
        return False
    if wide_levels[-1] == "#":
        wide_levels.pop()
        if len(narrow_levels) < len(wide_levels):
            return False
        return all(w in ("+", n) and n != "#" for w, n in zip(wide_levels, narrow_levels, strict=False))
    return len(wide_levels) == len(narrow_levels) and all(
        w == n or (w == "+" and n != "#") for w, n in zip(wide_levels, narrow_levels, strict=True)
    )


def meet(one: str, other: str) -> bool:
    """Whether a topic has both filters."""
    mine, theirs = one.split("/"), other.split("/")
    if {mine[0], theirs[0]} & {"+", "#"} and "$" in {mine[0][:1], theirs[0][:1]}:
        return False
    for at in range(max(len(mine), len(theirs))):
        if "#" in (mine[at : at + 1] + theirs[at : at + 1]):
            return True
        if at >= len(mine) or at >= len(theirs):
            return False
        if mine[at] != theirs[at] and "+" not in (mine[at], theirs[at]):
            return False
    return True


def minimal_filters(filters: Iterable[str]) -> list[str]:
    """The filters without those that another one covers, so that the broker sends each message once.

    Clients may add thousands of filters. Where finding out would take too long, a filter stays.
    """
    return MinimalFilters().of(filters)


class MinimalFilters:
    """`minimal_filters` of filters that change: what covers a filter is looked for once, as long as those with
    wildcards stay."""

    def __init__(self) -> None:
        self._wide: list[str] = []
        self._root: dict[str | None, Any] = {}
        self._covered: dict[str, bool] = {}

    def of(self, filters: Iterable[str]) -> list[str]:
        distinct = dict.fromkeys(filters)
        wide = [one for one in distinct if "+" in one or "#" in one]
        if wide != self._wide:
            self._wide, self._root, self._covered = wide, {}, {}
            for one in wide:
                node = self._root
                for level in one.split("/"):
                    node = node.setdefault(level, {})
                node[None] = one
        before = self._covered
        self._covered = {one: before[one] if one in before else _is_covered(one, self._root) for one in distinct}
        return [one for one, covered in self._covered.items() if not covered]


def _is_covered(one: str, root: dict[str | None, Any]) -> bool:
    """Whether a filter other than this one covers it. root: all filters with wildcards, as a tree of levels."""
    levels = one.split("/")
    branches = [(root, 0)]
    for _ in range(COVERING_STEPS_MAX):
        if not branches:
            return False
        node, at = branches.pop()
        may_vary = at > 0 or not one.startswith("$")
        if may_vary and node.get("#", {}).get(None, one) != one:
            return True
        if at == len(levels):
            if node.get(None, one) != one:
                return True
        elif levels[at] != "#":
            steps = dict.fromkeys((levels[at], "+") if may_vary else (levels[at],))
            branches += [(node[step], at + 1) for step in steps if step in node]
    return False


def _level(text: str) -> _Level:
    if text == "+":
        return _Level(None, None, None)
    capture = _CAPTURE.fullmatch(text)
    if capture is None:
        if re.search(r"[+#{}\x00]", text):
            raise ValueError(
                f"level {text!r}: write a name, +, {{name}} or {{name:EXPRESSION}} for a whole level; "
                "# and {name#} only at the end"
            )
        return _Level(text, None, None)
    if capture["rest"]:
        raise ValueError(f"level {text!r}: the rest of a topic can only be captured at the end")
    expression = None
    if capture["expression"] is not None:
        try:
            expression = compile_expression(capture["expression"], search=False)
        except ValueError as error:
            raise ValueError(f"level {text!r}: {error}") from error
    return _Level(None, capture[1], expression)


def _names(level: _Level) -> Sequence[str]:
    groups = () if level.expression is None else tuple(level.expression.groupindex)
    return groups if level.name is None else (level.name, *groups)
