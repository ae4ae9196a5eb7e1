"""The Brick and SAREF queries of docs/examples: none is re-evaluated, and all follow updates as the oracle says."""

from __future__ import annotations

from pathlib import Path

import pyoxigraph as ox
import pytest

from lamplighter.engine.protocol.jsap import Jsap, parse
from tests.properties.comparison import Comparison, Tally
from tests.support.places import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SETS = {"brick": ("building.jsap", "building.ttl"), "saref": ("home.jsap", "home.ttl")}
SEEDED = {
    "brick": {
        *("ZONES_WITHOUT_SUPPLY", "AHUS_WITHOUT_ZONES", "ZONE_AND_SETPOINT", "SENSORS_PER_FLOOR"),
        *("KINDS_OF_EQUIPMENT", "OCCUPIED_FLOORS", "ALARMS", "HIGHEST_TEMPERATURE"),
    },
    "saref": {
        *("DARK_SPACES", "SPACES_WITHOUT_SENSOR", "DEVICES_AND_STATES", "DEVICES_PER_SPACE", "KINDS"),
        "WARMEST_SPACE",
    },
}
"""The queries of the class seeded; SENSOR_COUNT is counted, the others are telescoped."""


def files(name: str) -> tuple[Jsap, Path]:
    profile, data = SETS[name]
    return parse((EXAMPLES / name / profile).read_bytes()), EXAMPLES / name / data


@pytest.mark.parametrize("name", SETS)
def test_queries_follow_updates_and_none_is_re_evaluated(name: str) -> None:
    profile, data = files(name)
    comparison = Comparison(Tally())
    quads = b"".join(
        f"{quad.subject} {quad.predicate} {quad.object} .\n".encode()
        for quad in ox.parse(data.read_bytes(), ox.RdfFormat.TURTLE)
    )
    comparison.change(
        data.name,
        lambda: comparison.oracle.load(quads, "application/n-quads"),
        lambda: comparison.engine.load(quads, media_type="application/n-quads"),
    )
    followers = {query: comparison.subscribe(profile.query_text(query, {})) for query in profile.queries}
    seeded = {query for query, one in followers.items() if one.spu_class == "seeded"}
    assert seeded == SEEDED[name]
    assert {one.spu_class for query, one in followers.items() if query not in seeded} == {"telescoped", "counted"}
    assert followers["SENSOR_COUNT"].spu_class == "counted"
    changed = set()
    for update in profile.updates:
        before = {query: one.sequence for query, one in followers.items()}
        comparison.update(profile.update_text(update, {}))
        told = {query for query, one in followers.items() if one.sequence > before[query]}
        assert told, f"{update} changes no result"
        changed |= told
    assert changed == set(followers), "no update changes their result"
