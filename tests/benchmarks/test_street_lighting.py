"""The benchmark's data, subscriptions and updates are the paper's: its counts come out (Roffia 2016, V)."""

from collections.abc import Iterator

import pyoxigraph as ox
import pytest

from benchmarks import street_lighting as street
from lamplighter.engine import Commit, Engine


@pytest.fixture(scope="module")
def knowledge_base() -> bytes:
    return street.document()


@pytest.fixture(scope="module")
def city(knowledge_base: bytes) -> Iterator[tuple[Engine, ox.Store]]:
    """An engine with the 1,004 subscriptions and a raw store, both with the whole knowledge base."""
    raw = ox.Store()
    raw.bulk_load(knowledge_base, format=ox.RdfFormat.N_TRIPLES)
    with Engine() as engine:
        engine.load(knowledge_base)
        for entry in street.subscription_profile():
            engine.subscribe(entry.text)
        yield engine, raw


def test_knowledge_base_has_the_size_of_table_2(knowledge_base: bytes) -> None:
    triples = knowledge_base.splitlines()
    assert len(triples) == len(set(triples))
    assert abs(len(triples) - street.PAPER_TRIPLES) < 0.01 * street.PAPER_TRIPLES
    store = ox.Store()
    store.bulk_load(knowledge_base, format=ox.RdfFormat.N_TRIPLES)
    for predicate, count in ((street.CONNECTED, 9500), (street.HAS_LAMP, 9500), (street.DIMMING, 9500)):
        assert sum(1 for _ in store.quads_for_pattern(None, ox.NamedNode(predicate), None)) == count
    roads = {quad.subject for quad in store.quads_for_pattern(None, ox.NamedNode(street.CONNECTED), None)}
    assert len(roads) == 310
    for kind, count in (("Class", 27), ("ObjectProperty", 16), ("DatatypeProperty", 8)):
        declared = store.quads_for_pattern(None, ox.NamedNode(street.RDF_TYPE), ox.NamedNode(street.OWL + kind))
        assert sum(1 for _ in declared) == count


def test_every_post_has_35_triples(knowledge_base: bytes) -> None:
    of_post = [line for line in knowledge_base.splitlines() if b"_308_77>" in line]
    assert len(of_post) == street.TRIPLES_PER_POST


def test_bare_knowledge_base_is_part_of_the_whole(knowledge_base: bytes) -> None:
    bare = street.document(bare=True).splitlines()
    assert len(bare) == 3 * street.POSTS
    assert set(bare) < set(knowledge_base.splitlines())


def test_subscription_profile_has_1000_fine_and_4_coarse() -> None:
    profile = street.subscription_profile()
    assert len({entry.text for entry in profile}) == 1004
    assert sum(len(entry.lutt) == 1 for entry in profile) == 1000
    assert "LAMP_307_100>" in profile[999].text
    assert "ROAD_308>" in profile[1003].text


def test_update_profiles_have_310_updates() -> None:
    for updates in (street.lamp_profile(), street.road_filter_profile(), street.road_iri_profile()):
        assert len(set(updates)) == 310
    assert len(set(street.every_lamp_profile())) == street.POSTS


def hit_ratio(commits: list[Commit]) -> float:
    """LUTT hit ratio of the 1,004 subscriptions in percent."""
    changed = [[(quad.s[1:-1], quad.p[1:-1]) for quad in commit.added + commit.removed] for commit in commits]
    return 100 * street.lutt_hits(street.subscription_profile(), changed) / (len(commits) * 1004)


def run(city: tuple[Engine, ox.Store], updates: list[str]) -> list[Commit]:
    engine, raw = city
    commits = [engine.update(text) for text in updates]
    for text in updates:
        raw.update(text)
    return commits


@pytest.mark.faults  # it takes long
def test_lamp_and_road_notify_as_often_as_in_the_paper(city: tuple[Engine, ox.Store]) -> None:
    # One test, since the second experiment begins where the first one ends.
    lamp = run(city, street.lamp_profile())
    assert sum(len(commit.notifications) for commit in lamp) == 23
    assert all(len(commit.added) == 1 for commit in lamp)
    assert round(hit_ratio(lamp), 2) == 0.40

    road = run(city, street.road_filter_profile("0"))
    assert sum(len(commit.notifications) for commit in road) == 1004
    assert sum(len(commit.added) for commit in road) == street.POSTS
    assert round(hit_ratio(road), 2) == 0.72

    # The same changes from the other text; the value is one that no lamp has yet.
    assert sum(len(commit.notifications) for commit in run(city, street.road_iri_profile("50"))) == 1004

    engine, raw = city
    expected = raw.dump(format=ox.RdfFormat.N_QUADS)
    assert expected is not None
    assert sorted(engine.dump("application/n-quads").splitlines()) == sorted(expected.splitlines())
