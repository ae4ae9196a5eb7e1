"""What `make bench ARGS=paper` computes from its measurements."""

import pytest

from benchmarks import paper
from benchmarks import street_lighting as street
from benchmarks.reproduction_kpis import N, kpis, row_of, sample, spread, whole, without_lutt


def test_sample_has_each_size_of_road_and_the_coarse_ones() -> None:
    found = sample(2)
    assert {row_of(index) for index in found} == set(range(4))
    assert {road - 1 for road in street.COARSE_ROADS} <= set(found)
    assert len(sample(1000)) == N


def test_sample_is_extrapolated_by_size_of_road() -> None:
    def cost(index: int) -> float:
        return float(street.lamps_of(index + 1))

    some = sample(3)
    assert whole(some, [cost(index) for index in some]) == pytest.approx(street.POSTS)
    assert whole(range(N), [cost(index) for index in range(N)]) == pytest.approx(street.POSTS)


def test_spread_is_that_of_a_sample() -> None:
    assert spread([1.0, 2.0, 3.0, 6.0]) == {
        "mean": 3.0,
        "deviation": pytest.approx(2.1602469),
        "least": 1.0,
        "most": 6.0,
        "count": 4,
    }
    assert spread([5.0]) == {"mean": 5.0, "deviation": 0.0, "least": 5.0, "most": 5.0, "count": 1}
    assert spread([]) is None


def test_kpis_are_those_of_table_1() -> None:
    parts = {"update": [0.1] * N, "lutt": [0.02] * N, "booster": [0.07] * N, "notify": [0.01] * N}
    found = kpis(range(N), parts, [(0.03, 0.1), (0.01, 0.05)], triples=31)
    assert found["total"] == pytest.approx(0.2 * N)
    assert found["Ups"] == pytest.approx(5)
    assert found["Sps"] == pytest.approx(5020)
    assert found["Tps"] == pytest.approx(31 * 5020)
    assert found["E2E"] == pytest.approx(1.0)
    assert (found["NLmin"], found["NLmax"]) == (0.01, 0.1)


def test_model_gives_the_rates_that_the_paper_reads_from_its_figures() -> None:
    lamp, road = paper.ALL_HIT["lamp"], paper.ALL_HIT["road"]
    assert paper.model_notifications_per_second(lamp, 16) == pytest.approx(8_000, rel=0.05)  # fig. 12: up to 8K
    assert 100 < paper.model_notifications_per_second(road, 16) < 120  # fig. 14: more than 100
    assert paper.model_updates_per_second(lamp, 1) == pytest.approx(1 / 7.303e-3)  # fig. 13
    assert paper.model_updates_per_second(road, 1) == pytest.approx(1 / 252.828e-3)  # fig. 15


@pytest.mark.parametrize("experiment", ["LAMP", "ROAD"])
def test_estimate_without_lutt_is_the_papers(experiment: str) -> None:
    """From the paper's tables 13 and 10 follow about the values of its table 9."""
    lengths = [len(roads) for _, roads, _ in street.ROAD_TYPES]
    hits = [
        row._asdict() | {"count": count} for row, count in zip(paper.BOOSTER[experiment]["fine"], lengths, strict=True)
    ]
    update = sum(row.mean * count for row, count in zip(paper.UPDATE[experiment], lengths, strict=True))
    triples, most = {"LAMP": (1, 1), "ROAD": (street.POSTS / N, 100)}[experiment]
    found = without_lutt({"update": update, "notify": 0.0}, hits, triples, most)
    published = paper.LUTT[experiment]["off"]
    for kpi in ("booster", "total", "NLmax", "Ups", "E2E"):
        assert found[kpi] == pytest.approx(published[kpi], rel=0.2), kpi
