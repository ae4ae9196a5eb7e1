"""The paper's algorithms, which `make bench ARGS=paper` compares the engine with, are right and are the paper's."""

from collections import Counter

import pytest

from benchmarks import street_lighting as street
from benchmarks.reference import BasicQuery, NaiveSpu, RawEndpoint, RowDelta, Spu

TEXTS = (street.lamp_subscription(6, 1), street.lamp_subscription(7, 1), street.road_subscription(6))
UPDATES = (
    street.lamp_update(6, 1, "100"),
    street.lamp_update(6, 1, "100"),
    street.lamp_update(8, 1, "100"),
    street.road_iri_update(6, "0"),
    street.road_iri_update(7, "100"),
    street.road_filter_update(6, "7"),
)


@pytest.fixture(scope="module")
def knowledge_base() -> bytes:
    return street.document(bare=True)


def test_lutt_of_a_subscription_is_that_of_table_4() -> None:
    for entry in (*street.subscription_profile()[:3], *street.subscription_profile()[-4:]):
        patterns = BasicQuery(entry.text).patterns
        assert {(None if s.startswith("?") else s[1:-1], p[1:-1]) for s, p, _ in patterns} == set(entry.lutt)
        assert all(o.startswith("?") for _, _, o in patterns)


def test_cts_has_the_size_of_table_4(knowledge_base: bytes) -> None:
    endpoint = RawEndpoint(knowledge_base)
    assert len(Spu(street.lamp_subscription(1, 1), endpoint).cts) == 1
    assert len(Spu(street.road_subscription(308), endpoint).cts) == 2 * street.POSTS + 100


def test_endpoint_returns_what_an_update_changes(knowledge_base: bytes) -> None:
    endpoint = RawEndpoint(knowledge_base)
    before = set(endpoint.store)
    for text, count in ((street.lamp_update(6, 1, "100"), 1), (street.lamp_update(6, 1, "100"), 0)):
        removed, added = endpoint.update(text)
        assert (len(removed), len(added)) == (count, count)
        after = set(endpoint.store)
        assert {triple.quad for triple in removed} == before - after
        assert {triple.quad for triple in added} == after - before
        before = after


@pytest.mark.parametrize("lutt", [True, False])
def test_notifications_are_the_differences_of_fresh_results(knowledge_base: bytes, lutt: bool) -> None:
    endpoint = RawEndpoint(knowledge_base)
    spus = [Spu(text, endpoint, lutt=lutt) for text in TEXTS]
    naive = [NaiveSpu(text, endpoint) for text in TEXTS]
    told = 0
    for text in UPDATES:
        before = [Counter(spu.rows) for spu in naive]
        removed, added = endpoint.update(text)
        for spu, other, rows in zip(spus, naive, before, strict=True):
            change = spu.boosted(spu.passed(removed), spu.passed(added))
            fresh = Counter(other.queried())
            assert Counter(change.removed) == rows - fresh
            assert Counter(change.added) == fresh - rows
            by_comparison = other.compared(other.queried())
            assert sorted(by_comparison.removed) == sorted(change.removed)
            assert sorted(by_comparison.added) == sorted(change.added)
            told += change != RowDelta([], [])
    assert told == 7


def test_lutt_stops_triples_of_other_lamps(knowledge_base: bytes) -> None:
    endpoint = RawEndpoint(knowledge_base)
    mine, other, road = (Spu(text, endpoint) for text in TEXTS)
    _, added = endpoint.update(street.lamp_update(6, 1, "100"))
    assert [len(spu.passed(added)) for spu in (mine, other, road)] == [1, 0, 1]
    assert len(Spu(TEXTS[1], endpoint, lutt=False).passed(added)) == 1
