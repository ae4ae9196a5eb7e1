"""Descriptions of the streams of one gateway: facts -> the description of each subject over time. No Spark.

A subject is a stream, or the live observation of one. Its description has the triples of the default graph about the
stream, its live observation, the platform of its sensor and the position of its feature. Places are records in the
order of (epoch, sequence).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lamplighter.engine.terms import Term, iri
from lamplighter.ontology import vocabulary as v

# Epoch and sequence.
Place = tuple[int, int]
Triple = tuple[Term, Term, Term]
# After all records.
END: Place = ((1 << 31) - 1, 0)

_TYPE = iri(v.RDF_TYPE)
_LIVE = iri(v.LIVE_OBSERVATION)
_OBSERVED = (iri(v.MADE_BY_SENSOR), iri(v.OBSERVED_PROPERTY), iri(v.HAS_FEATURE_OF_INTEREST))
_OF_STREAM = {_LIVE, *_OBSERVED, *map(iri, (v.MQTT_TOPIC, v.RDFS_LABEL, v.HAS_UNIT))}
_OF_OBSERVATION = set(_OBSERVED)
_POSITION = {iri(f"{v.LIGHTING}hasLatitude"), iri(f"{v.LIGHTING}hasLongitude")}
_HOSTS = iri(v.HOSTS)


class ValidTime(NamedTuple):
    """From a record on, up to but without another one."""

    since: Place
    until: Place

    def within(self, other: ValidTime) -> ValidTime | None:
        """The part of it that is within another one."""
        since, until = max(self.since, other.since), min(self.until, other.until)
        return ValidTime(since, until) if since < until else None


class DescriptionVersion(NamedTuple):
    """What was said of a subject, and while it was so. Versions of one subject don't overlap."""

    valid: ValidTime
    triples: tuple[Triple, ...]


@dataclass(frozen=True)
class _Said:
    """A triple while it was in the default graph."""

    triple: Triple
    valid: ValidTime

    def within(self, valid: ValidTime) -> _Said | None:
        part = self.valid.within(valid)
        return None if part is None else _Said(self.triple, part)


class DescribedStreams:
    """The facts of one gateway, and its descriptions. Facts may come in any order, and more than once."""

    def __init__(self) -> None:
        self._changes: dict[tuple[Term, Term], set[tuple[Place, bool, Term]]] = defaultdict(set)
        self._snapshots: set[Place] = set()
        self._versions: dict[Term, list[DescriptionVersion]] | None = {}

    def learn(self, place: Place, added: bool, triple: Triple) -> None:
        """A record added or asserted a triple, or removed it."""
        s, p, o = triple
        self._changes[s, p].add((place, added, o))
        self._versions = None

    def learn_snapshot(self, place: Place) -> None:
        """The triples that are learned at this place are all that were there after it."""
        self._snapshots.add(place)
        self._versions = None

    def versions(self) -> dict[Term, list[DescriptionVersion]]:
        """By subject, in order."""
        if self._versions is None:
            self._versions = _versions(self._statements())
        return self._versions

    def _statements(self) -> Iterator[_Said]:
        snapshots = sorted(self._snapshots)
        for (s, p), changes in self._changes.items():
            for o, valid in _validities(changes, snapshots):
                yield _Said((s, p, o), valid)


def _validities(
    changes: Iterable[tuple[Place, bool, Term]], snapshots: list[Place]
) -> Iterator[tuple[Term, ValidTime]]:
    """While each object of one subject and predicate was there.

    A removal of an object that is not known to be there shows that records are missing. The objects that are known then
    end too: the missing records may have replaced them.
    """
    at: dict[Place, tuple[list[Term], set[Term]]] = defaultdict(lambda: ([], set()))
    for place, added, o in changes:
        if added:
            at[place][1].add(o)
        else:
            at[place][0].append(o)
    begin = bisect_left(snapshots, min(at))
    whole = set(snapshots[begin:])
    known: dict[Term, Place] = {}
    for place in sorted(at.keys() | whole):
        removed, added_here = at.get(place, ([], set()))
        ended = [o for o in removed if o in known]
        if len(ended) < len(removed):
            ended = list(known)
        if place in whole:
            ended = [o for o in known if o not in added_here]
        for o in ended:
            yield o, ValidTime(known.pop(o), place)
        for o in added_here:
            known.setdefault(o, place)
    for o, since in known.items():
        yield o, ValidTime(since, END)


def _versions(said: Iterable[_Said]) -> dict[Term, list[DescriptionVersion]]:
    by_subject: dict[Term, list[_Said]] = defaultdict(list)
    hosts: dict[Term, list[_Said]] = defaultdict(list)
    streams: list[_Said] = []
    for one in said:
        s, p, o = one.triple
        if p == _HOSTS:
            hosts[o].append(one)
            continue
        by_subject[s].append(one)
        if p == _TYPE and o == iri(v.STREAM):
            streams.append(one)
    found: dict[Term, list[_Said]] = defaultdict(list)
    for stream in streams:
        description = list(_of_stream(stream, by_subject, hosts))
        found[stream.triple[0]] += description
        for one in description:
            if one.triple[1] == _LIVE:
                found[one.triple[2]] += _parts(description, one.valid)
    return {subject: list(_cut_versions(description)) for subject, description in found.items()}


def _of_stream(stream: _Said, by_subject: dict[Term, list[_Said]], hosts: dict[Term, list[_Said]]) -> Iterator[_Said]:
    """The description of a stream. It may have a triple several times, as of several observations."""
    yield stream
    own = [one for one in _parts(by_subject[stream.triple[0]], stream.valid) if one.triple[1] in _OF_STREAM]
    observed = [
        one
        for link in own
        if link.triple[1] == _LIVE
        for one in _parts(by_subject.get(link.triple[2], ()), link.valid)
        if one.triple[1] in _OF_OBSERVATION or one.triple[1:] == (_TYPE, iri(v.OBSERVATION))
    ]
    sensor, _, feature = _OBSERVED
    for one in (*own, *observed):
        yield one
        if one.triple[1] == sensor:
            yield from _parts(hosts.get(one.triple[2], ()), one.valid)
        elif one.triple[1] == feature:
            of_feature = _parts(by_subject.get(one.triple[2], ()), one.valid)
            yield from (other for other in of_feature if other.triple[1] in _POSITION)


def _parts(said: Iterable[_Said], valid: ValidTime) -> Iterator[_Said]:
    """What was said within a time."""
    return (part for one in said if (part := one.within(valid)) is not None)


def _cut_versions(said: list[_Said]) -> Iterator[DescriptionVersion]:
    """Triples with times that overlap -> versions that don't."""
    places = sorted({place for one in said for place in one.valid})
    last: DescriptionVersion | None = None
    for since, until in pairwise(places):
        here = {one.triple: None for one in said if one.valid.since <= since and until <= one.valid.until}
        triples = tuple(sorted(here))
        if last is not None and last.triples == triples:
            last = DescriptionVersion(ValidTime(last.valid.since, until), triples)
            continue
        if last is not None and last.triples:
            yield last
        last = DescriptionVersion(ValidTime(since, until), triples)
    if last is not None and last.triples:
        yield last
