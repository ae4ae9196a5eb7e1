"""Pairs of mapping rules that read one value twice, that give one stream to two topics, or that feed themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple
from urllib.parse import unquote

from lamplighter.adapters.mapping import CommandRule, PublishRule, StreamRule
from lamplighter.adapters.mapping.patterns import meet
from lamplighter.adapters.mapping.reads import Read
from lamplighter.adapters.mqtt.settings import FIRST_BROKER
from lamplighter.engine.errors import PayloadError

_EXAMPLE = "x"
"""Stands for any text of a captured level."""
_CURE = "give each rule its own sensor"
_LEVEL = re.compile(r"\{(\d+)\}")


class _RuleValue(NamedTuple):
    """One value of a rule."""

    rule: StreamRule
    read: Read


def overlaps(rules: Sequence[StreamRule]) -> list[str]:
    """One line for each pair that overlaps, with the places of both rules and topics as an example."""
    groups: dict[str, list[_RuleValue]] = {}
    for rule in rules:
        for read in rule.reads:
            if not read.many:
                groups.setdefault(read.property, []).append(_RuleValue(rule, read))
    return [
        f"{one.read.place} and {other.read.place}: {text}"
        for group in groups.values()
        for one, other in combinations(group, 2)
        if (text := _overlap(one, other)) is not None
    ]


def loops(
    publishes: Sequence[PublishRule], streams: Sequence[StreamRule], commands: Sequence[CommandRule]
) -> list[str]:
    """One line for each rule that publishes to topics that another one reads, with the places of both."""
    states = [one.state for one in commands if one.state is not None]
    return [
        f"{rule.place} and {reader.place}: the first publishes to {rule.table.topic}, and the second reads it; "
        "a message that changes the result of the query causes another one"
        for rule in publishes
        for reader in [*streams, *states]
        if reader.broker in (None, rule.table.broker or FIRST_BROKER) and meet(rule.filter, reader.filter)
    ]


def _overlap(one: _RuleValue, other: _RuleValue) -> str | None:
    brokers = {one.rule.broker, other.rule.broker}
    if len(brokers) == 2 and None not in brokers:
        return None
    first, second = _topics_of_one_stream(one, other) or ("", "")
    topic = _common_topic(one, other)
    if topic is not None and one.read.value_place == other.read.value_place:
        if _gives_one_stream(one, topic, other, topic):
            return f"both rules give topic {topic} the same stream; the first rule is used for such topics"
        return f"both rules read topic {topic}, and each value becomes two readings; narrow one of the topics"
    if topic is not None and not first and _gives_one_stream(one, topic, other, topic):
        first = second = topic
    if first and first == second:
        return f"both rules give topic {first} the same stream, and one of two readings is dropped; {_CURE}"
    if first:
        return f"topics {first} and {second} have the same stream, and the readings of one are dropped; {_CURE}"
    return None


def _common_topic(one: _RuleValue, other: _RuleValue) -> str | None:
    """A topic that both rules cover."""
    levels: list[str] = []
    mine, theirs = one.rule.pattern, other.rule.pattern
    for at in range(max(len(mine.levels), len(theirs.levels))):
        level = None
        for pattern in (mine, theirs):
            if at >= len(pattern.levels) and not pattern.rest:
                return None
            wanted = pattern.levels[at] if at < len(pattern.levels) else None
            if None not in (level, wanted) and level != wanted:
                return None
            level = wanted if level is None else level
        levels.append(_EXAMPLE if level is None else level)
    if all(pattern.rest for pattern in (mine, theirs)):
        levels.append(_EXAMPLE)
    topic = "/".join(levels)
    return topic if _stream_iri(one, topic) and _stream_iri(other, topic) else None


def _topics_of_one_stream(one: _RuleValue, other: _RuleValue) -> tuple[str, str] | None:
    """A topic of each rule, such that both have the same stream."""
    pairs: list[tuple[str, str]] = []
    if "{" in one.read.property or one.rule.pattern.rest or other.rule.pattern.rest:
        return None
    for key in ("sensor", "feature"):
        mine, theirs = one.read.template(key), other.read.template(key)
        if mine is None or theirs is None:
            return None
        segments = mine.split("/"), theirs.split("/")
        if len(segments[0]) != len(segments[1]):
            return None
        pairs += zip(*segments, strict=True)
    levels: tuple[dict[str, str], dict[str, str]] = {}, {}
    while pairs:
        # A pair with one segment known determines levels of the other.
        pairs = [(_filled(mine, levels[0]), _filled(theirs, levels[1])) for mine, theirs in pairs]
        pairs.sort(key=lambda pair: _is_open(pair[0]) and _is_open(pair[1]))
        mine, theirs = pairs.pop(0)
        if _is_open(mine) and _is_open(theirs):
            levels[0].update(dict.fromkeys(_LEVEL.findall(mine), _EXAMPLE))
            mine = _filled(mine, levels[0])
        found = _read(mine, theirs) if _is_open(theirs) else _read(theirs, mine)
        if found is None:
            return None
        levels[1 if _is_open(theirs) else 0].update(found)
    topics = tuple(
        "/".join(
            unquote(known.get(f"{position}", _EXAMPLE)) if level is None else level
            for position, level in enumerate(reader.rule.pattern.levels)
        )
        for reader, known in zip((one, other), levels, strict=True)
    )
    return (topics[0], topics[1]) if _gives_one_stream(one, topics[0], other, topics[1]) else None


def _is_open(segment: str) -> bool:
    """Whether it has a level that is not known yet."""
    return _LEVEL.search(segment) is not None


def _filled(template: str, levels: dict[str, str]) -> str:
    return _LEVEL.sub(lambda found: levels.get(found[1], found[0]), template)


def _read(text: str, template: str) -> dict[str, str] | None:
    """The levels that make a template this text, or None."""
    parts = _LEVEL.split(template)  # text, level, text, level, ..., text
    names = parts[1::2]
    if len(set(names)) < len(names):
        return None
    if not names:
        return {} if text == template else None
    # Each text between two levels is looked for once, from the end: expressions would try all ways to divide the text.
    first, end = parts[0], len(text) - len(parts[-1])
    found: dict[str, str] = {}
    if not text.startswith(first) or not text.endswith(parts[-1]) or end < len(first):
        return None
    for name, before in zip(reversed(names), reversed(parts[2:-1:2]), strict=False):
        at = text.rfind(before, len(first), max(0, end - 1))
        if at < 0:
            return None
        found[name] = text[at + len(before) : end]
        end = at
    if end <= len(first):
        return None
    return found | {names[0]: text[len(first) : end]}


def _gives_one_stream(one: _RuleValue, topic: str, other: _RuleValue, other_topic: str) -> bool:
    mine = _stream_iri(one, topic)
    return mine is not None and mine == _stream_iri(other, other_topic)


def _stream_iri(reader: _RuleValue, topic: str) -> str | None:
    captures = reader.rule.pattern.captures(topic)
    try:
        return None if captures is None else reader.read.stream(topic, captures).iri
    except PayloadError:
        return None
