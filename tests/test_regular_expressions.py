"""Regular expressions that each supported Python reads alike.

Before 3.11.5, a possessive group continues at the position where its last alternative failed (CPython issue 106052).
That alternative must fail before it has taken a character: `(?!)` does.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import re._constants as kinds  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator, Sequence
from typing import Any

import lamplighter
from tests.support.tables import each_row

_REPEATS = (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT)
_TAKES_NOTHING = (kinds.AT, kinds.ASSERT, kinds.ASSERT_NOT, kinds.FAILURE)


def _may_fail(kind: Any, value: Any) -> bool:
    """Whether an item may fail. Any character is left out: it fails where the text ends, or the line."""
    if kind in _REPEATS:
        return bool(value[0] > 0)
    if kind is kinds.SUBPATTERN:
        return any(_may_fail(*item) for item in value[3])
    return kind is not kinds.ANY


def _fails_late(items: Sequence[tuple[Any, Any]]) -> bool:
    taken = False
    for kind, value in items:
        if taken and _may_fail(kind, value):
            return True
        taken = taken or kind not in _TAKES_NOTHING
    return False


def _last_alternative(body: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
    while len(body) == 1 and body[0][0] is kinds.SUBPATTERN:
        body = body[0][1][3]
    return body[0][1][1][-1] if len(body) == 1 and body[0][0] is kinds.BRANCH else body


def _groups(items: Sequence[tuple[Any, Any]]) -> Iterator[Sequence[tuple[Any, Any]]]:
    """The bodies of all possessive repetitions."""
    for kind, value in items:
        inner: Sequence[Any] = ()
        if kind in _REPEATS:
            inner = [value[2]]
            if kind is kinds.POSSESSIVE_REPEAT:
                yield value[2]
        elif kind is kinds.SUBPATTERN:
            inner = [value[3]]
        elif kind is kinds.BRANCH:
            inner = value[1]
        elif kind in (kinds.ASSERT, kinds.ASSERT_NOT):
            inner = [value[1]]
        elif kind is kinds.ATOMIC_GROUP:
            inner = [value]
        for each in inner:
            yield from _groups(each)


def _is_read_alike(pattern: str | bytes, flags: int = 0) -> bool:
    return not any(_fails_late(_last_alternative(list(body))) for body in _groups(list(parser.parse(pattern, flags))))


def _patterns(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 2 and isinstance(value, dict | list | tuple):
        for each in list(value.values()) if isinstance(value, dict) else value:
            yield from _patterns(each, depth + 1)


def test_possessive_groups_end_where_they_should() -> None:
    found = 0
    for module in pkgutil.walk_packages(lamplighter.__path__, "lamplighter."):
        if module.name.endswith("__main__"):
            continue
        for name, value in list(vars(importlib.import_module(module.name)).items()):
            for pattern in _patterns(value):
                found += 1
                assert _is_read_alike(pattern.pattern, pattern.flags), f"{module.name}.{name}: end the group with |(?!)"
    assert found > 250


@each_row(
    ("pattern", "expected"),
    [
        (r'"(?:[^"\\]++|\\.)*+"', True),
        (r'"""(?:[^"]++|"(?!""))*+"""', False),
        (r'"""(?:[^"]++|"(?!"")|(?!))*+"""', True),
        (r"(?:(?:ab)*+|c)x", False),
        (r"[ab]*+(?:a|b)++", True),
        (r"(?>(?:\[[0-9]\])*+)", False),
    ],
)
def test_which_groups_are_found(pattern: str, expected: bool) -> None:
    assert _is_read_alike(pattern) is expected
