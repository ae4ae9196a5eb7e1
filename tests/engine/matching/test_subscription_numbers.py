"""Names of subscriptions."""

import uuid

from lamplighter.engine.matching.subscription_numbers import Spuids
from tests.support.tables import each_row


@each_row("number", [0, 1, 4711, 2**40])
def test_a_name_is_a_uuid_and_leads_back(number: int) -> None:
    spuids = Spuids()
    name = spuids.name(number)
    text = name.removeprefix("sepa://subscription/")
    assert str(uuid.UUID(text)) == text
    assert uuid.UUID(text).version == 4
    assert spuids.number(name) == number


def test_names_of_others_lead_nowhere() -> None:
    spuids = Spuids()
    name = spuids.name(5)
    assert len({Spuids().name(5) for _ in range(100)} | {spuids.name(number) for number in range(100)}) == 200
    for other in ("", "5", name.upper(), name + "0", name[:-1], f" {name}", name[:-1] + "g", Spuids().name(5)):
        assert spuids.number(other) is None, other
