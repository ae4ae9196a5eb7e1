"""What readings and actuators are called: the one that a person means, and the labels of all. Pure.

Names are compared as `devices.directory` does it, which knows devices, parts and rooms: readings have no label of their
own, and are meant by words of what they are about.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import msgspec

from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, UnknownResourceError
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.history.explanation import full_iri
from lamplighter.gateway.texts import comparable, cut, nearest, printable
from lamplighter.ontology import vocabulary as v

LISTED_MAX = 10
_FACTS = (
    v.MADE_BY_SENSOR,
    v.OBSERVED_PROPERTY,
    v.HAS_FEATURE_OF_INTEREST,
    v.LIVE_OBSERVATION,
    v.HAS_UNIT,
    v.UNKNOWN_UNIT,
    v.RECEIVED_FROM,
    v.HOSTS,
    v.IN_AREA,
    v.DESIRED_STATE,
    v.HAS_STATUS,
    v.REPORTED_STATE,
    v.BEGINS,
    v.ENDS,
    v.ON_WEEKDAY,
)
STATES = tuple(f"<{one}>" for one in (v.DESIRED_STATE, v.HAS_STATUS, v.REPORTED_STATE))
"""What makes a subject an actuator, whatever its value."""
_LABELLED = (
    f"?x <{v.HAS_FEATURE_OF_INTEREST}> ?s",
    f"?x <{v.OBSERVED_PROPERTY}> ?s",
    f"?x <{v.HOSTS}> ?s",
    f"?s <{v.HOSTS}> ?x",
    f"?x <{v.IN_AREA}> ?s",
    f"?s <{v.LIVE_OBSERVATION}> ?x",
    f"?s <{v.MADE_BY_SENSOR}> ?x",
    f"?x <{v.MADE_BY_SENSOR}> ?s",
)
# The readings of the model "latest" and the streams of the model "event" have sensor, property and feature.
QUERY = (
    # A branch for each predicate, so that commits without any of them are known not to matter.
    f"SELECT DISTINCT ?s ?p ?o WHERE {{ {' UNION '.join(f'{{ ?s <{one}> ?o BIND(<{one}> AS ?p) }}' for one in _FACTS)} "
    f"UNION {{ {' UNION '.join(f'{{ {one} }}' for one in _LABELLED)} ?s <{v.RDFS_LABEL}> ?o "
    f"BIND(<{v.RDFS_LABEL}> AS ?p) }} }}"
)
Row = Sequence[Term | None]


class Subject(msgspec.Struct, frozen=True):
    """A reading or an actuator. term: the subject of its values. label, name, area, property_name: for people, "" if
    unknown; iris: by which it can be named, too; sources: what its values come through."""

    term: Term
    is_actuator: bool
    label: str
    name: str = ""
    area: str = ""
    observed: Term | None = None
    property_name: str = ""
    unit: Term | None = None
    sensor: Term | None = None
    feature: Term | None = None
    host: Term | None = None
    area_term: Term | None = None
    stream: Term | None = None
    iris: tuple[Term, ...] = ()
    sources: tuple[Term, ...] = ()

    @property
    def iri(self) -> Term:
        """What names it towards others."""
        return self.stream or self.term


_NamedBy = Callable[[Subject], tuple[tuple[Term | None, ...], tuple[str, ...]]]
"""IRIs and texts by which a subject is found."""


class Subjects:
    """All of a dataset. rows: of `QUERY`; base_iri: of the gateway."""

    def __init__(self, rows: Iterable[Row], base_iri: str) -> None:
        self._base = base_iri
        facts: dict[str, dict[Term, list[Term]]] = defaultdict(lambda: defaultdict(list))
        for s, p, o in rows:
            if s is not None and p is not None and o is not None:
                facts[lexical(p)][s].append(o)
        self._facts = facts
        self.labels = {subject: printable(lexical(min(found))) for subject, found in facts[v.RDFS_LABEL].items()}
        self._periods = {
            period: text
            for period, begins in facts[v.BEGINS].items()
            if (text := _period_text(begins, facts[v.ENDS].get(period, ()), facts[v.ON_WEEKDAY].get(period, ())))
        }
        self._streams = {live: stream for stream, lives in facts[v.LIVE_OBSERVATION].items() for live in lives}
        self._hosts = {part: host for host, parts in facts[v.HOSTS].items() for part in parts}
        self.all = [*map(self._reading, facts[v.MADE_BY_SENSOR])]
        actuators = {**facts[v.DESIRED_STATE], **facts[v.HAS_STATUS], **facts[v.REPORTED_STATE]}
        self.all += map(self._actuator, actuators)
        facts.clear()  # of a large site, they have far more than what is kept

    def _reading(self, about: Term) -> Subject:
        sensor, property_ = self._one(v.MADE_BY_SENSOR, about), self._one(v.OBSERVED_PROPERTY, about)
        feature, stream = self._one(v.HAS_FEATURE_OF_INTEREST, about), self._streams.get(about)
        described = stream or about
        host = self._hosts.get(sensor) if sensor else None
        area = self._one(v.IN_AREA, feature) or self._one(v.IN_AREA, host)
        name = self._name(feature) or self._name(host)
        property_name = self._name(property_)
        label = self.labels.get(described) or self.labels.get(sensor or "") or f"{name} {property_name}".strip()
        label = label or self._name(described)
        return Subject(
            term=about,
            is_actuator=False,
            label=label,
            name=name,
            area=self._name(area),
            observed=property_,
            property_name=property_name,
            unit=self._one(v.HAS_UNIT, described) or self._one(v.UNKNOWN_UNIT, described),
            sensor=sensor,
            feature=feature,
            host=host,
            area_term=area,
            stream=stream,
            iris=tuple(one for one in (about, stream, sensor) if one),
            sources=tuple(sorted(self._facts[v.RECEIVED_FROM].get(described, []))),
        )

    def _actuator(self, actuator: Term) -> Subject:
        host = self._hosts.get(actuator)
        area = self._one(v.IN_AREA, host)
        return Subject(
            term=actuator,
            is_actuator=True,
            label=self._name(actuator),
            name=self._name(host),
            area=self._name(area),
            host=host,
            area_term=area,
            iris=(actuator,),
            sources=tuple(sorted(self._facts[v.RECEIVED_FROM].get(actuator, []))),
        )

    def _one(self, property_: str, subject: Term | None) -> Term | None:
        found = self._facts[property_].get(subject) if subject else None
        return min(found) if found else None

    def _name(self, subject: Term | None) -> str:
        """Its label, or the path of its IRI."""
        if subject is None:
            return ""
        path = lexical(subject).removeprefix(self._base).removeprefix("property/")
        for namespace in v.PREFIXES.values():
            path = path.removeprefix(namespace)
        return self.labels.get(subject) or printable(path)

    @cached_property
    def labels_of_all(self) -> dict[Term, str]:
        """What each IRI of a reading or actuator, its device and its feature is called, and each period of local time.
        A label such as "state" has the name of what it is a part of before it."""
        found = {term: one.name for one in self.all for term in (one.host, one.feature) if term and one.name}
        found |= {term: self._full_name(one) for one in self.all for term in one.iris}
        # A path is what is written anyway.
        return self._periods | self.labels | {term: text for term, text in found.items() if text not in lexical(term)}

    def _full_name(self, one: Subject) -> str:
        has_label = any(term in self.labels for term in one.iris)
        return f"{one.name} {one.label}" if has_label and not one.label.startswith(one.name) else one.label

    # --- who is meant ---

    def by_iri(self, text: str) -> Subject | None:
        """The one with an IRI, or with a path under the base IRI; also one that is not described any more. None for
        what is no IRI. Raises MalformedRequestError for one that names several."""
        try:
            term = f"<{full_iri(text, self._base)}>"
        except ConfigurationError:
            return None
        found = [one for one in self.all if term in one.iris]
        if not found:
            found = [one for one in self.all if term in (one.feature, one.host)]
        if len(found) > 1:
            raise self._several(text, found)
        return found[0] if found else None

    def by_name(self, text: str) -> Subject:
        """The one that a person means by the words of its label, name, area and property, or its path. Raises
        UnknownResourceError, MalformedRequestError where several are meant."""
        if (found := self.by_iri(text)) is not None:
            return found
        exact, wanted = " ".join(text.casefold().split()), comparable(text)
        some = [one for one in self.all if one.label.casefold() == exact]
        some = some or [one for one in self.all if comparable(one.label) == wanted]
        # A path has words of the format too, such as POWER for what is switched.
        for words in (self._words, self._words_and_path) if wanted else ():
            some = some or [one for one in self.all if _has_words(words(one), wanted)]
        if len(some) == 1:
            return some[0]
        if some:
            raise self._several(text, some)
        if wanted and any(comparable(label) == wanted for label in self.labels.values()):
            raise UnknownResourceError(f"{text[:100]!r} has reported nothing yet, and none of its actuators was set")
        labels = [self._full_name(one) for one in self.all]
        names = nearest(text, labels) or labels
        raise UnknownResourceError(f"no reading or actuator is called {text[:100]!r}; {_name_list(names)}")

    def _several(self, text: str, found: Sequence[Subject]) -> MalformedRequestError:
        names = Counter(map(self._full_name, found))
        listed = (
            name if names[name] == 1 else f"{name} (<{lexical(one.iri)}>)"
            for name, one in ((self._full_name(one), one) for one in found)
        )
        return MalformedRequestError(
            f"{text[:100]!r} names {len(found)} readings or actuators; add a word: {_name_list(listed)}"
        )

    def _words(self, one: Subject) -> str:
        return comparable(" ".join((one.label, one.name, one.area, one.property_name)))

    def _words_and_path(self, one: Subject) -> str:
        return f"{self._words(one)} {comparable(lexical(one.iri).removeprefix(self._base))}"

    def about(self, text: str) -> set[Term]:
        """All IRIs of the device, feature or part that a text names: of its readings, their streams, and actuators.
        Raises UnknownResourceError."""
        return self._terms_named(text, lambda one: ((one.host, one.feature, *one.iris), (one.name, one.label)))

    def in_room(self, text: str) -> set[Term]:
        """The same for an area."""
        return self._terms_named(text, lambda one: ((one.area_term,), (one.area,)))

    def _terms_named(self, text: str, named: _NamedBy) -> set[Term]:
        try:
            term = f"<{full_iri(text, self._base)}>"
        except ConfigurationError:
            term = ""
        wanted = comparable(text)
        found = []
        known: set[str] = set()
        for one in self.all:
            terms, names = named(one)
            known.update(filter(None, names))
            if term in terms or wanted in (comparable(name) for name in names if name):
                found.append(one)
        if not found:
            raise UnknownResourceError(f"nothing is called {text[:100]!r}; {_name_list(known)}")
        return {term for one in found for term in (*one.iris, one.host, one.feature) if term}


def _period_text(begins: Sequence[Term], ends: Sequence[Term], weekdays: Sequence[Term]) -> str:
    """A period of local time in words; empty if its declaration is not whole."""
    if len(begins) != 1 or len(ends) != 1:
        return ""
    days = sorted(map(lexical, weekdays), key=lambda day: (v.WEEKDAYS.index(day) if day in v.WEEKDAYS else 7, day))
    on = f" on {', '.join(days)}" if days else ""
    return printable(f"the time between {lexical(begins[0])} and {lexical(ends[0])}{on}")


def _has_words(words: str, wanted: str) -> bool:
    return all(word in words for word in wanted.split())


def _name_list(names: Iterable[str]) -> str:
    known = sorted({name for name in names if name})
    if not known:
        return "there are none yet"
    more = f" and {len(known) - LISTED_MAX} more" if len(known) > LISTED_MAX else ""
    return f"there are {', '.join(cut(name, 100) for name in known[:LISTED_MAX])}{more}"


def unit_text(unit: Term | None) -> str | None:
    """An IRI, or the code of an unknown unit."""
    return None if unit is None else lexical(unit)


def without_description(iri: str) -> Subject:
    """A subject of which the dataset says nothing any more."""
    term = f"<{iri}>"
    return Subject(term, is_actuator=False, label=iri, iris=(term,))
