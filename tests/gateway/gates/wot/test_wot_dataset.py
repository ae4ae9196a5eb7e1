"""What the dataset says about things, of a dataset that is only its rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.terms import literal
from lamplighter.gateway.gates.wot.things import (
    PROPERTIES_MAX,
    ROWS_FEW,
    THINGS_MAX,
    Row,
    described_node,
    read_things,
    thing_nodes,
)
from lamplighter.ontology.vocabulary import DESIRED_STATE, THING_ID

BASE = "http://gateway.example/"
THING = "<urn:thing>"


class Noted(list[Row]):
    """Rows. threads: those that have read them."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(rows)
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[Row]:
        self.threads.add(threading.get_ident())
        return super().__iter__()


class OnlyRows:
    def __init__(self, rows: list[Row]) -> None:
        self.noted = Noted(rows)

    async def rows(self, query: str) -> list[Row]:
        return self.noted


def states(count: int) -> OnlyRows:
    """A thing with so many actuators."""
    return OnlyRows([(THING, f"<urn:part/{n:05}>", f"<{DESIRED_STATE}>", literal("on")) for n in range(count)])


async def test_many_rows_are_read_beside_the_loop() -> None:
    own = {threading.get_ident()}
    for count, here in ((1, True), (ROWS_FEW + 1, False)):
        dataset = states(count)
        [thing] = await read_things(dataset, [THING], BASE)
        assert len(thing.properties) == count
        assert (dataset.noted.threads == own) == here
        listed = OnlyRows([(f"<urn:{n}>", None) for n in range(count)])
        assert len(await thing_nodes(listed, BASE)) == count
        assert (listed.noted.threads == own) == here


async def test_the_size_of_descriptions_and_directories_is_bounded() -> None:
    [thing] = await read_things(states(PROPERTIES_MAX + 5), [THING], BASE)
    assert len(thing.properties) == PROPERTIES_MAX
    with pytest.raises(LimitExceededError, match="does not list"):
        await thing_nodes(OnlyRows([(f"<urn:{n}>", None) for n in range(THINGS_MAX + 1)]), BASE)


async def test_only_the_node_of_a_description_has_its_id() -> None:
    """The id of a thing is what any client may write."""
    own = described_node("urn:mine", BASE)
    assert own is not None
    rows: list[Row] = [
        (node, node, f"<{key}>", literal(text))
        for node in (own, THING)
        for key, text in ((THING_ID, "urn:mine"), (DESIRED_STATE, "on"))
    ]
    assert [one.id for one in await read_things(OnlyRows(rows), [own, THING], BASE)] == ["urn:mine", "urn:thing"]
