"""Mapping rules that read one value twice, or give one stream to two topics."""

import re
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.mapping import load_mapping
from lamplighter.adapters.mqtt.overlaps import _read, overlaps
from tests.support.tables import each_row

BASE = "http://gateway.example/"


def found(folder: Path, *rules: dict[str, str]) -> list[str]:
    """Overlaps of rules, each in a file of its own: 0.toml, 1.toml, ..."""
    for number, keys in enumerate(rules):
        keys = {"property": "lighting:temperature", "payload": "number"} | keys
        text = "# comment\n[[stream]]\n" + "".join(f"{key} = '{value}'\n" for key, value in keys.items())
        (folder / f"{number}.toml").write_text(text)
    return [text.replace(f"{folder}/", "") for text in overlaps(load_mapping(folder, BASE).rules)]


PLACES = "0.toml line 2: stream 1 and 1.toml line 2: stream 1: "


def test_a_topic_that_two_rules_read_is_reported_with_both_places(tmp_path: Path) -> None:
    rules = {"topic": "home/{room}/temperature", "feature": "room/{room}"}, {"topic": "home/kitchen/{what}"}
    assert found(tmp_path, *rules) == [
        PLACES + "both rules read topic home/kitchen/temperature, and each value becomes two readings; "
        "narrow one of the topics"
    ]


def test_a_topic_that_two_rules_give_the_same_stream_is_reported(tmp_path: Path) -> None:
    rules = {"topic": "home/{room}/temperature"}, {"topic": "home/kitchen/temperature"}
    assert found(tmp_path, *rules) == [
        PLACES + "both rules give topic home/kitchen/temperature the same stream; "
        "the first rule is used for such topics"
    ]


def test_two_members_as_one_stream_are_reported(tmp_path: Path) -> None:
    rules = {"topic": "{room}/climate", "member": "t"}, {"topic": "+/climate", "member": "h"}
    assert found(tmp_path, *rules) == [
        PLACES + "both rules give topic x/climate the same stream, and one of two readings is dropped; "
        "give each rule its own sensor"
    ]


@each_row(
    ("one", "other", "topics"),
    [
        ({"sensor": "s/{a}", "feature": "f"}, {"sensor": "s/{b}", "feature": "f"}, ("one/x", "other/x")),
        ({"sensor": "s/{a}", "feature": "r/{a}"}, {"sensor": "s/7", "feature": "r/{b}"}, ("one/7", "other/7")),
        ({"sensor": "s/t-{a}", "feature": "f"}, {"sensor": "s/t-7", "feature": "f"}, ("one/7", "other/x")),
        ({"sensor": "s/t-{a}", "feature": "f"}, {"sensor": "s/{b}", "feature": "f"}, ("one/x", "other/t-x")),
        ({"sensor": "s", "feature": "f"}, {"sensor": "s", "feature": f"{BASE}f"}, ("one/x", "other/x")),
        ({}, {"sensor": "sensor/one/{b}", "feature": "feature/one"}, ("one/x", "other/x")),
    ],
)
def test_topics_with_the_same_stream_are_reported(
    tmp_path: Path, one: dict[str, str], other: dict[str, str], topics: tuple[str, str]
) -> None:
    rules = {"topic": "one/{a}"} | one, {"topic": "other/{b}"} | other
    assert found(tmp_path, *rules) == [
        f"{PLACES}topics {topics[0]} and {topics[1]} have the same stream, and the readings of one are dropped; "
        "give each rule its own sensor"
    ]


@each_row(
    ("one", "other"),
    [
        ({"topic": "a/{x}"}, {"topic": "b/{x}"}),
        ({"topic": "a/{x}", "broker": "barn"}, {"topic": "a/{x}", "broker": "attic"}),
        ({"topic": "a/{x}"}, {"topic": "a/{x}/{y}"}),
        ({"topic": "+/b"}, {"topic": "$SYS/b"}),
        ({"topic": "a//{x}"}, {"topic": "a/{y}/b"}),
        ({"topic": "a/{x}", "property": "lighting:presence"}, {"topic": "a/{x}"}),
        ({"topic": "{x}/c", "member": "t", "sensor": "t/{x}"}, {"topic": "{x}/c", "member": "u", "sensor": "u/{x}"}),
        ({"topic": "a/{x}", "sensor": "s/{x}", "feature": "r/{x}"}, {"topic": "b", "sensor": "s/1", "feature": "r/2"}),
        ({"topic": "a/{x}", "sensor": "s/t-{x}"}, {"topic": "b/{x}", "sensor": "s/u-{x}"}),
    ],
)
def test_rules_that_do_not_overlap_are_not_reported(tmp_path: Path, one: dict[str, str], other: dict[str, str]) -> None:
    assert found(tmp_path, one, other) == []


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "", "-"]), min_size=2, max_size=5), st.text("ab-", min_size=1, max_size=9)
)
def test_levels_are_read_as_by_an_expression(parts: list[str], text: str) -> None:
    template = "".join(f"{part}{{{number}}}" for number, part in enumerate(parts[:-1])) + parts[-1]
    expression = "(.+)".join(map(re.escape, parts))
    expected = re.fullmatch(expression, text)
    found = _read(text, template)
    assert found == (None if expected is None else {f"{n}": group for n, group in enumerate(expected.groups())})


def test_many_levels_in_one_segment_are_read_fast() -> None:
    begun = time.thread_time()
    assert _read("-" * 900 + "!", "-".join(f"{{{number}}}" for number in range(60)) + "-x") is None
    assert _read("-" * 900, "".join(f"{{{number}}}" for number in range(60)) + "x") is None
    assert time.thread_time() - begun < 1
