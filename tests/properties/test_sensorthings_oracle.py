"""Generated requests of the SensorThings API against a plain evaluation in Python over the same entities."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.amounts import Amounts
from tests.support.running_gateway import http, running_gateway, update
from tests.support.sensorthings_oracle import MANY, ONE, SETS, Entity, House, Made, Requests, house, ordered, selected

pytestmark = pytest.mark.faults

CASES = 80
HOUSES = 4
ORDERS = {
    "Observations": ("resultTime", "phenomenonTime", "Datastream/name", "Datastream/Thing/name"),
    "Datastreams": ("name", "unitOfMeasurement/name", "Sensor/name"),
}


class Case:
    """The options of one collection, and the entities that they select, in order."""

    def __init__(self, random: Random, kind: str, depth: int = 0) -> None:
        requests = Requests(random, kind)
        self.texts: dict[str, str] = {}
        self.condition: Made | None = None
        if random.random() < (0.8 if depth == 0 else 0.3):
            self.condition = requests.condition(depth)
            self.texts["$filter"] = self.condition.text
        self.many = sorted(requests.many)
        paths = random.sample(ORDERS.get(kind, ("name", "description")), random.randrange(3))
        self.keys = [(path, random.random() < 0.5) for path in paths]
        if self.keys:
            self.texts["$orderby"] = ",".join(path + (" desc" if down else "") for path, down in self.keys)
        self.top = random.choice((None, 1, 3, 20))
        self.skip = random.choice((0, 0, 2))
        if self.top is not None:
            self.texts["$top"] = str(self.top)
        if self.skip:
            self.texts["$skip"] = str(self.skip)
        self.count = random.random() < 0.4
        if self.count:
            self.texts["$count"] = "true"
        self.inner: dict[str, Case | None] = {}
        ways = [*ONE.get(kind, {}), *MANY.get(kind, {})]
        if depth < 2 and random.random() < 0.5 and ways:
            for name in random.sample(ways, random.randrange(1, min(3, len(ways) + 1))):
                one = name in ONE.get(kind, {})
                self.inner[name] = None if one else Case(random, MANY[kind][name], depth + 1)
            self.texts["$expand"] = ",".join(
                name + ("" if inner is None or not inner.texts else f"({inner.text()})")
                for name, inner in self.inner.items()
            )

    def text(self) -> str:
        return ";".join(f"{name}={text}" for name, text in self.texts.items())

    def page(self, entities: list[Entity]) -> tuple[list[Entity], int, bool]:
        """The entities of the page, how many there are, and whether more follow."""
        condition = self.condition
        found = entities if condition is None else [one for one in entities if selected(condition, self.many, one)]
        found = ordered(found, self.keys)
        end = self.skip + (100 if self.top is None else self.top)
        return found[self.skip : end], len(found), len(found) > end


def check(case: Case, answer: dict[str, Any], prefix: str, entities: list[Entity], told: str) -> None:
    """Whether a collection in an answer is the one that the case selects. prefix: of its annotations."""
    page, count, more = case.page(entities)
    got = answer[prefix or "value"]
    assert [one["@iot.id"] for one in got] == [one.id for one in page], told
    assert answer.get(f"{prefix}@iot.count") == (count if case.count else None), told
    assert (f"{prefix}@iot.nextLink" in answer) == more, told
    for members, entity in zip(got, page, strict=True):
        for name, value in entity.values.items():
            if "/" not in name and "Time" not in name:
                assert members[name] == value and type(members[name]) is not type(None), told
        for name, inner in case.inner.items():
            if inner is None:
                assert members[name]["@iot.id"] == entity.related[name].id, told
            else:
                check(inner, members, name, entity.related[name], told)


async def check_case(at: Addresses, made: House, random: Random) -> None:
    kind = random.choice(SETS)
    case = Case(random, kind)
    root = at.query.removesuffix("/query") + "/v1.1"
    path, entities = kind, made.entities[kind]
    if random.random() < 0.3:  # of one parent
        parent_kind = random.choice([name for name in MANY if kind in MANY[name].values()] or [""])
        if parent_kind:
            parent = random.choice(made.entities[parent_kind])
            path, entities = f"{parent_kind}('{parent.id}')/{kind}", parent.related[kind]
    told = f"{path}?{'&'.join(f'{name}={text}' for name, text in case.texts.items())}"
    answer = await http(f"{root}/{path}?{urlencode(case.texts)}")
    assert answer.status == 200, f"{told}\n{answer.body.decode()}"
    check(case, answer.json, "", entities, told)
    if "@iot.nextLink" in answer.json and case.top and not case.skip:
        pages = [answer.json]
        while "@iot.nextLink" in pages[-1]:
            pages.append((await http(pages[-1]["@iot.nextLink"])).json)
        whole = [one["@iot.id"] for page in pages for one in page["value"]]
        condition = case.condition
        kept = [one for one in entities if condition is None or selected(condition, case.many, one)]
        assert whole == [one.id for one in ordered(kept, case.keys)], told


@pytest.mark.parametrize("seed", range(HOUSES))
async def test_answers_are_those_of_a_plain_evaluation(tmp_path: Path, seed: int, amounts: Amounts) -> None:
    random = Random(seed)
    made = house(random)
    async with running_gateway(tmp_path, sensorthings={"enabled": True}) as at:
        assert (await update(at, made.update)).status == 200
        for _ in range(amounts.of(CASES // HOUSES)):
            await check_case(at, made, random)
