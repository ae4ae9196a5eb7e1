"""What the benchmarks compute and print around the measurements."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest

from benchmarks import paper, plot, report
from benchmarks import street_lighting as street
from benchmarks.measuring import race, target


class Recorder:
    """A side that notes what it was given, on a list shared with the other."""

    def __init__(self, name: str, seen: list[tuple[str, tuple[str, ...]]]) -> None:
        self.name, self.seen = name, seen

    def run(self, texts: Sequence[str]) -> None:
        self.seen.append((self.name, tuple(texts)))

    def finish(self) -> None:
        self.seen.append((self.name, ("finish",)))


def test_race_gives_both_sides_their_texts_in_turns() -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []
    costs = race({"a": (Recorder("a", seen), ["1", "2", "3"]), "b": (Recorder("b", seen), ["x", "y", "z"])}, chunk=2)
    assert seen == [
        ("a", ("1", "2")),
        ("b", ("x", "y")),
        ("b", ("z",)),
        ("a", ("3",)),
        ("a", ("finish",)),
        ("b", ("finish",)),
    ]
    assert costs.keys() == {"a", "b"}
    assert all(cost.wall > 0 for cost in costs.values())


def test_target_says_whether_it_is_met_and_by_how_much_not() -> None:
    limits = [
        target("E2E", -0.5, -0.4),
        target("ROAD", 0.25, 0.0),
        target("Ups", 30_000.0, 38_000.0, "/s", at_least=True),
        target("memory", 300.0, 300.0, " B"),
    ]
    lines = report.summary({"lamp": {"targets": limits}}).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == [
        "met",
        "missed by 0.250",
        "missed by 8,000/s",
        "met",
    ]


def test_part_that_could_not_be_measured_says_why() -> None:
    assert "no timings here" in report.summary({"timings": {"unavailable": "no timings here"}})


def test_lutt_hits_count_each_pair_of_update_and_subscription_once() -> None:
    profile = [
        street.ProfileEntry("", ((street.lamp_iri(1, 1), street.DIMMING),)),
        street.ProfileEntry("", ((None, street.HAS_LAMP), (None, street.DIMMING))),
    ]
    lamp, other = street.lamp_iri(1, 1), street.lamp_iri(1, 2)
    updates = [
        [(lamp, street.DIMMING), (lamp, street.DIMMING), (lamp, street.HAS_LAMP)],
        [(other, street.DIMMING)],
        [(other, street.CONNECTED)],
    ]
    assert street.lutt_hits(profile, updates) == 3


@pytest.mark.parametrize(("experiment", "most"), [("lamp", 514), ("road", 7.26)])
def test_paper_model_of_one_core_tends_to_the_rate_of_its_spus(experiment: str, most: float) -> None:
    assert paper.all_hit_notifications_per_second(experiment, 1_000_000) == pytest.approx(most, rel=0.01)
    assert paper.all_hit_notifications_per_second(experiment, 1) < most / 2


def test_plot_is_xml_with_a_point_for_each_value_inside_the_frame() -> None:
    text = plot.svg("a < b", "triples", "us", {"ours": [(10, 1e-6), (100, 2e-3)], "theirs": [(10, 0.5)]}, scale=1e6)
    root = ElementTree.fromstring(text)
    points = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(points) == 3
    for point in points:
        assert plot.LEFT <= float(point.attrib["cx"]) <= plot.WIDTH - plot.RIGHT
        assert plot.TOP <= float(point.attrib["cy"]) <= plot.HEIGHT - plot.BOTTOM
    # A greater value stands higher.
    assert float(points[1].attrib["cy"]) < float(points[0].attrib["cy"])
