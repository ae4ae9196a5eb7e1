"""FeedPositions of the change feed: they are read back exactly, and nothing else is."""

from __future__ import annotations

import secrets
from random import Random

import pytest

from lamplighter.engine.access import Graphs
from lamplighter.engine.errors import MalformedRequestError
from lamplighter.gateway.gates.changes.positions import FeedPositions, PlainPositions, SealedPositions
from lamplighter.gateway.history.changes import LOST, PERMISSIONS, LogPosition, ResetError
from tests.support.tables import each_row

KEY = bytes(range(64))
SEEN = Graphs(frozenset({None, "<http://g/seen>"}))
PLACES = (LogPosition((1, 0)), LogPosition((1, 17), "07870d50"), LogPosition((999_999_999, 10**15 - 1), "ffffffff"))


def sealed(client: str = "anna", visible: Graphs = SEEN, key: bytes = KEY, gateway: str = "gw-1") -> SealedPositions:
    return SealedPositions(key, gateway, client, visible)


@each_row("at", PLACES)
@each_row("positions", [PlainPositions("gw-1"), sealed()])
def test_a_position_is_read_back(positions: FeedPositions, at: LogPosition) -> None:
    assert positions.read(positions.text(at)) == at
    assert positions.patch_id(at) == positions.patch_id(at) != positions.patch_id(LogPosition((2, 2), "00000001"))


def test_a_plain_position_is_the_record() -> None:
    assert PlainPositions("gw-1").text(PLACES[1]) == "gw-1/1/17/07870d50"


def test_encrypted_positions_differ_each_time_and_have_one_length() -> None:
    texts = [sealed().text(at) for at in PLACES for _ in range(100)]
    assert len({*texts}) == len(texts) and {len(text) for text in texts} == {75}
    assert {sealed().patch_id(at) for at in PLACES}.isdisjoint(PlainPositions("gw-1").patch_id(at) for at in PLACES)
    assert sealed().patch_id(PLACES[0]) != sealed("jo").patch_id(PLACES[0])


@each_row(
    ("other", "reason"),
    [
        (sealed("jo"), LOST),
        (sealed(gateway="gw-2"), LOST),
        (sealed(key=KEY[::-1]), LOST),
        (sealed(visible=Graphs(frozenset({None}))), PERMISSIONS),
        (sealed(visible=Graphs(frozenset())), PERMISSIONS),
        (PlainPositions("gw-1"), PERMISSIONS),
    ],
)
def test_a_position_of_another_client_key_or_permission_is_a_reset(other: FeedPositions, reason: str) -> None:
    with pytest.raises(ResetError) as told:
        other.read(sealed().text(PLACES[1]))
    assert told.value.reason == reason
    assert (told.value.code, told.value.status) == ("reset", 410)


def test_a_plain_position_is_a_reset_for_a_restricted_client_and_another_gateway() -> None:
    for other, reason in ((sealed(), PERMISSIONS), (PlainPositions("gw-2"), LOST)):
        with pytest.raises(ResetError) as told:
            other.read(PlainPositions("gw-1").text(PLACES[1]))
        assert told.value.reason == reason


def test_no_other_text_is_a_position() -> None:
    """20,000 texts, most of them near to good ones."""
    random = Random(secrets.randbelow(10**9))
    alphabet = "0123456789abcdefABCDEF-_/.gwz \n\0\u00e9\u0661"
    tally = {"refused": 0, "reset": 0, "same": 0}
    for positions in (PlainPositions("gw-1"), sealed()):
        for _ in range(10_000):
            characters = [*positions.text(random.choice(PLACES))]
            for _ in range(random.randrange(4)):
                where = random.randrange(len(characters))
                characters[where : where + random.randrange(2)] = random.choices(alphabet, k=random.randrange(3))
            text = "".join(characters)
            try:
                found = positions.read(text)
            except MalformedRequestError:
                tally["refused"] += 1
            except ResetError:
                tally["reset"] += 1
            else:
                tally["same"] += 1
                if isinstance(positions, SealedPositions):
                    assert found in PLACES
                elif found.place[1]:
                    assert [*positions.text(found).split("/")[2:]] == [str(int(text.split("/")[2])), text.split("/")[3]]
    assert min(tally.values()) > 1_000, tally
