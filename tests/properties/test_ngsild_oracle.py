"""Generated NGSI-LD queries against a plain evaluation in Python over the same entities."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.amounts import Amounts
from tests.support.running_gateway import http, running_gateway

pytestmark = pytest.mark.faults

CASES = 30
ENTITIES = 30
NAMES = "abcd"
TYPES = ("T", "U")
TIMES = ("2026-11-26T10:00:00Z", "2026-11-26T11:30:00Z", "2026-11-26T12:00:00Z")
LINKS = ("urn:x:1", "urn:x:2")
TEXTS = ("a", "ab", "b;c", 'q"(', "Ä", "urn:x:1")
VALUES: tuple[Any, ...] = (0, 1, -3, 2.5, 1e3, True, False, *TEXTS, [1], {"x": 1})
PATTERNS = ("^a", "b$", "a|b", "x:[12]", "^.$")
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Entity = dict[str, Any]
Holds = Callable[[Entity], bool]


def entity(random: Random, number: int) -> Entity:
    found: Entity = {"id": f"urn:e:{number:03}", "type": random.choice((*TYPES, list(TYPES)))}
    for name in random.sample(NAMES, random.randrange(len(NAMES) + 1)):
        kind = random.random()
        if kind < 0.15:
            found[name] = {"type": "Relationship", "object": random.choice(LINKS)}
        elif kind < 0.3:
            found[name] = {"type": "Property", "value": {"@type": "DateTime", "@value": random.choice(TIMES)}}
        else:
            found[name] = {"type": "Property", "value": random.choice(VALUES)}
        if random.random() < 0.4:
            found[name]["observedAt"] = random.choice(TIMES)
        if "value" in found[name] and random.random() < 0.2:
            found[name]["unitCode"] = random.choice(("CEL", "a"))
    return found


def kinds(value: Any) -> str:
    """The kind of a value, of which all are comparable."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, dict) and value.get("@type") == "DateTime":
        return "time"
    return "text" if isinstance(value, str) else "other"


def bare(value: Any) -> Any:
    return value["@value"] if kinds(value) == "time" else value


def target(one: Entity, name: str, member: str) -> tuple[Any, bool] | None:
    """The value that a condition is about, and whether it is an IRI."""
    found = one.get(name)
    if found is None or (member and member not in found):
        return None
    if member:
        return ({"@type": "DateTime", "@value": found[member]} if member == "observedAt" else found[member]), False
    return (found["object"], True) if "object" in found else (found["value"], False)


def literal(random: Random) -> tuple[str, Any]:
    """A value as ``q`` writes it."""
    value = random.choice((*VALUES[:-2], {"@type": "DateTime", "@value": random.choice(TIMES)}, *LINKS))
    if isinstance(value, bool):
        return str(value).lower(), value
    if isinstance(value, str):
        if value in LINKS and random.random() < 0.5:
            return value, value
        return json.dumps(value, ensure_ascii=False), value
    return str(bare(value)), value


def equal(value: Any, wanted: Any) -> bool:
    return kinds(value) == kinds(wanted) and kinds(value) != "other" and bool(bare(value) == bare(wanted))


def term(random: Random) -> tuple[str, Holds]:
    name, member = random.choice(NAMES + "e"), random.choice(("", "", "", "observedAt", "unitCode"))
    path = f"{name}.{member}" if member else name
    kind = random.randrange(5)
    if kind == 0:
        return path, lambda one: target(one, name, member) is not None
    if kind == 1:
        sign, pattern = random.choice(("~=", "!~=")), random.choice(PATTERNS)

        def matches(one: Entity) -> bool:
            found = target(one, name, member)
            if found is None:
                return False
            return (kinds(found[0]) == "text" and bool(re.search(pattern, found[0]))) == (sign == "~=")

        return f'{path}{sign}"{pattern}"', matches
    if kind == 2:
        sign = random.choice(list(ORDERS))
        text, wanted = literal(random)
        while kinds(wanted) == "boolean" or wanted in LINKS:
            text, wanted = literal(random)

        def ordered(one: Entity) -> bool:
            found = target(one, name, member)
            if found is None or found[1] or kinds(found[0]) != kinds(wanted):
                return False
            return ORDERS[sign](bare(found[0]), bare(wanted))

        return f"{path}{sign}{text}", ordered
    sign = random.choice(("==", "!="))
    if kind == 3:
        least, most = sorted(random.choices((-3, 0, 1, 2.5, 1000), k=2))

        def within(one: Entity) -> bool:
            found = target(one, name, member)
            if found is None:
                return False
            return (kinds(found[0]) == "number" and least <= found[0] <= most) == (sign == "==")

        return f"{path}{sign}{least}..{most}", within
    wanted_values = [literal(random) for _ in range(random.choice((1, 1, 3)))]

    def listed(one: Entity) -> bool:
        found = target(one, name, member)
        return found is not None and any(equal(found[0], wanted) for _, wanted in wanted_values) == (sign == "==")

    return f"{path}{sign}{','.join(text for text, _ in wanted_values)}", listed


def condition(random: Random, depth: int = 0) -> tuple[str, Holds]:
    """A text and what it means. Without parentheses, ``;`` binds closer than ``|``."""
    if depth == 2 or random.random() < 0.4:
        return term(random)
    parts = [condition(random, depth + 1) for _ in range(random.choice((2, 3)))]
    if random.random() < 0.5:
        return ";".join(f"({text})" for text, _ in parts), lambda one: all(holds(one) for _, holds in parts)
    if random.random() < 0.5:
        return "|".join(f"({text})" for text, _ in parts), lambda one: any(holds(one) for _, holds in parts)
    a, b, c = (term(random) for _ in range(3))
    return f"({a[0]}|{b[0]};{c[0]})", lambda one: a[1](one) or (b[1](one) and c[1](one))


def types(one: Entity) -> list[str]:
    return one["type"] if isinstance(one["type"], list) else [one["type"]]


async def test_answers_are_those_of_a_plain_evaluation(tmp_path: Path, amounts: Amounts) -> None:
    cases = amounts.of(CASES)
    random = Random(7)
    made = [entity(random, number) for number in range(ENTITIES)]
    some = 0
    async with running_gateway(tmp_path, ngsild={"enabled": True}) as at:
        root = at.query.removesuffix("/query") + "/ngsi-ld/v1/entities"
        for one in made:
            answer = await http(root, "POST", json.dumps(one).encode(), {"Content-Type": "application/json"})
            assert answer.status == 201, answer.body
        for _ in range(cases):
            asked: dict[str, str] = {"local": "true", "count": "true"}
            found = made
            if random.random() < 0.85:
                asked["q"], holds = condition(random)
                found = [one for one in found if holds(one)]
            if random.random() < 0.3:
                asked["type"] = random.choice(TYPES)
                found = [one for one in found if asked["type"] in types(one)]
            shown: list[str] = []
            if random.random() < 0.3:
                shown = random.sample(NAMES, random.randrange(1, 3))
                asked["attrs"] = ",".join(shown)
                found = [one for one in found if any(name in one for name in shown)]
            limit, offset = random.choice((3, 1000)), random.choice((0, 0, 2))
            asked |= {"limit": str(limit), "offset": str(offset)}
            answer = await http(f"{root}?{urlencode(asked)}")
            assert answer.status == 200, f"{asked}\n{answer.body.decode()}"
            wanted = [
                {name: value for name, value in one.items() if not shown or name in (*shown, "id", "type")}
                for one in found[offset : offset + limit]
            ]
            assert answer.json == wanted, asked
            assert answer.headers["ngsild-results-count"] == str(len(found)), asked
            assert ('rel="next"' in answer.headers["link"]) == (len(found) > offset + limit), asked
            some += 0 < len(found) < ENTITIES
    assert some > cases / 3, "conditions that tell entities apart"
