"""What people do to the street: keys, and wishes in the dataset of a running gateway."""

from __future__ import annotations

from pathlib import Path

from lamplighter.demo.street.controls import CLEAR, DEMO, Controls
from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical
from tests.support.event_loops import beside, until
from tests.support.running_gateway import running_gateway

BASE = "http://lamplighter.local/"
PERSON, LAMP = f"{BASE}demo/p", f"{BASE}demo/x"
OFFERS = f"SELECT ?action ?text {{ ?action <{DEMO}offers> ?text }}"
WISHES = f"SELECT ?action {{ ?wish <{DEMO}asks> ?action }}"


async def rows(client: EngineClient, query: str) -> set[tuple[str, ...]]:
    """The values of each row, in the order of the variables."""
    found = (await client.query(query)).bindings()
    return {tuple(lexical(row[name]) for name in ("action", "text") if name in row) for row in found}


def wish(*actions: str) -> str:
    return f"INSERT DATA {{ {' '.join(f'[] <{DEMO}asks> <{action}> .' for action in actions)} }}"


async def test_wishes_and_keys_do_the_same_and_the_offer_follows(tmp_path: Path) -> None:
    done: list[str] = []

    async def add() -> str:
        done.append("p")
        return f'add "person" {len(done) + 1}'

    async with running_gateway(tmp_path) as addresses, EngineClient(addresses.subscribe) as client:
        controls = Controls({"p": add}, {"p": "add a person"}, BASE)
        assert controls.line == "p add a person"
        await client.update(wish(PERSON))  # of an earlier demo
        await controls.offer(client)
        assert await rows(client, OFFERS) == {(PERSON, "add a person")}
        async with beside(controls.take_wishes(client)), beside(controls.act(client)):
            await client.update(wish(PERSON, LAMP))
            await until(lambda: len(done) == 1)
            while await rows(client, OFFERS) != {(PERSON, 'add "person" 2')}:
                pass
            assert await rows(client, WISHES) == {(LAMP,)}
            controls.press("x")
            controls.press("p")
            await until(lambda: len(done) == 2)
            await client.update(wish(PERSON))
            await until(lambda: len(done) == 3)
        await client.update(CLEAR)
        assert await rows(client, OFFERS) == await rows(client, WISHES) == set()
