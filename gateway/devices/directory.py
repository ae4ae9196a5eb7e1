"""Names that people gave, and what they name: one resolver for commands and requests.

A name is an IRI, a path below the gateway's base IRI, the identity of a device, or a label, in this order; case and
accents of labels do not matter unless two differ in nothing else. A device's name means its only part that fits.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lamplighter.engine.errors import UnknownResourceError
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.texts import comparable, did_you_mean, nearest, printable
from lamplighter.ontology.vocabulary import (
    ACTUATOR,
    AREA,
    COAP_RESOURCE,
    CONTROLS,
    DESIRED_STATE,
    DEVICE,
    GATEWAY,
    HAS_FEATURE_OF_INTEREST,
    HOSTS,
    IN_AREA,
    MADE_BY_SENSOR,
    OBSERVED_PROPERTY,
    OBSERVES,
    RDF_TYPE,
    RDFS_LABEL,
    SENSOR,
)

Kind = Literal["device", "actuator", "sensor", "room"]
KINDS: Sequence[Kind] = ("device", "actuator", "sensor", "room")
CANDIDATES_MAX = 5
SWITCHED = ("cover", "fan", "light", "lock", "siren", "switch", "valve")
"""What is switched of a device that has further actuators, such as brightness."""
_TYPES: dict[str, Kind] = {DEVICE: "device", ACTUATOR: "actuator", SENSOR: "sensor", AREA: "room"}
_FOLDERS = {"device": "device/", "actuator": "actuator/", "sensor": "sensor/", "room": "area/"}
_CAPTURE = re.compile(r"\{[^{}]*\}")
_PATH = re.compile(r"[A-Za-z0-9._~%/-]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^ ]*")

QUERY = f"""\
SELECT ?thing ?type ?label ?property ?host ?hostLabel ?room WHERE {{
  {{ VALUES ?type {{ <{DEVICE}> <{SENSOR}> <{ACTUATOR}> <{AREA}> }} ?thing <{RDF_TYPE}> ?type }}
  UNION {{ ?thing <{COAP_RESOURCE}>|<{DESIRED_STATE}> ?any BIND(<{ACTUATOR}> AS ?type) }}
  OPTIONAL {{ ?thing <{RDFS_LABEL}> ?label }}
  OPTIONAL {{ ?thing <{OBSERVES}>|<{CONTROLS}>|(^<{MADE_BY_SENSOR}>/<{OBSERVED_PROPERTY}>) ?property }}
  OPTIONAL {{ ?host <{HOSTS}> ?thing ; <{RDFS_LABEL}> ?hostLabel }}
  OPTIONAL {{ ?thing <{IN_AREA}>|(^<{HOSTS}>/<{IN_AREA}>)|(^<{MADE_BY_SENSOR}>/<{HAS_FEATURE_OF_INTEREST}>) ?place .
    ?place <{RDF_TYPE}> <{AREA}> ; <{RDFS_LABEL}> ?room }}
}}"""
"""What the dataset names. A row is read by `NameDirectory.of`."""
VALUELESS = (f"<{DESIRED_STATE}>",)
"""Predicates of which it takes the subjects only."""


@dataclass(frozen=True)
class NamedThing:
    """name: that people gave, else the id. id: the path below the base IRI, else the IRI; of a device its identity.
    room: name of its room. property: what it observes or controls. device: id of its device."""

    kind: Kind
    name: str
    id: str
    iri: str
    room: str | None = None
    property: str | None = None
    device: str | None = None
    device_name: str = ""

    def members(self) -> dict[str, Any]:
        members = asdict(self)
        del members["device_name"]
        return members


class UnknownNameError(UnknownResourceError):
    """A text names nothing, or several things, which is ambiguous. candidates: what it may mean."""

    def __init__(self, problem: str, candidates: Sequence[NamedThing], *, ambiguous: bool = False) -> None:
        super().__init__(problem)
        self.candidates = candidates
        self.ambiguous = ambiguous


class NameDirectory:
    """What can be named. things: by kind and name. base: the base IRI. patterns: of what rules with captures name."""

    def __init__(
        self, things: Iterable[NamedThing], base: str, patterns: Sequence[tuple[Kind, re.Pattern[str]]] = ()
    ) -> None:
        self._base = base
        self._patterns = patterns
        self._mention = rf'<{re.escape(base)}((?:actuator|area|device|sensor)/[^<>"{{}}|^`\\\s]+)>'
        self.things = sorted(
            dict.fromkeys(things), key=lambda one: (KINDS.index(one.kind), comparable(one.name), one.id)
        )
        self._by_iri = {one.iri: one for one in self.things}

    @classmethod
    def of(
        cls, rows: Iterable[Sequence[Term | None]], base: str, ruled: Iterable[tuple[Kind, str]] = ()
    ) -> NameDirectory:
        """rows: of `QUERY`. ruled: kind and IRI of what mapping rules name, which may not have reported yet; with
        captures such as ``{room}``."""
        found: dict[tuple[str, str], NamedThing] = {}
        for thing, type_, label, property_, host, host_label, room in rows:
            if thing is None or type_ is None:
                continue
            address, kind = lexical(thing), _TYPES[lexical(type_)]
            path = address.removeprefix(base)
            device = None if host is None else lexical(host).removeprefix(base).removeprefix("device/")
            named = NamedThing(
                kind,
                path if label is None else lexical(label),
                path.removeprefix("device/") if kind == "device" else path,
                address,
                None if room is None else lexical(room),
                None if property_ is None else _word(lexical(property_)),
                device,
                "" if host_label is None else lexical(host_label),
            )
            found.setdefault((kind, address), named)
        patterns = []
        for kind, address in dict.fromkeys(ruled):
            path = address.removeprefix(base)
            if _CAPTURE.search(path):
                patterns.append((kind, re.compile("[^/]+".join(map(re.escape, _CAPTURE.split(address))))))
            else:
                found.setdefault((kind, address), NamedThing(kind, path, path, address))
        return cls(found.values(), base, patterns)

    def select(
        self, kinds: Collection[str], properties: Collection[str] = (), room: str | None = None, search: str = ""
    ) -> list[NamedThing]:
        """Those of some kinds. properties: that fit; room: its name or IRI; search: a part of a name, id or room."""
        wanted, place = comparable(search), None if room is None else comparable(self._room_name(room))
        return [
            one
            for one in self.things
            if one.kind in kinds
            and (not properties or one.property in properties)
            and (place is None or comparable(one.room or "") == place)
            and (not wanted or any(wanted in comparable(text) for text in (one.name, one.id, one.room or "")))
        ]

    def _room_name(self, room: str) -> str:
        known = self._by_iri.get(room) or self._by_iri.get(self._base + room)
        return room if known is None else known.name

    def resolve(self, text: str, kind: Kind, properties: Collection[str] = (), *, existing: bool = False) -> NamedThing:
        """What a text names. properties: of those that fit, where a device has several. An IRI that is not known is
        taken as it is, unless existing. Raises UnknownNameError."""
        # An IRI may be of what is to come, such as the device of an update that has not been made.
        things = [one for one in self.things if one.kind == kind]
        folder = "" if text.startswith(_FOLDERS[kind]) else _FOLDERS[kind]
        for address in dict.fromkeys((text, self._base + text, f"{self._base}{folder}{text}")):
            if self._exists(kind, address):
                path = address.removeprefix(self._base)
                return self._by_iri.get(address) or NamedThing(kind, path, path, address)
        if not existing and _SCHEME.fullmatch(text):
            return NamedThing(kind, text, text.removeprefix(self._base), text)
        for found in self._ways(text, things, properties):
            if len(found) == 1:
                return found[0]
            if found:
                listed = ", ".join(f"{printable(one.name)} ({one.id})" for one in found[:CANDIDATES_MAX])
                more = f" and {len(found) - CANDIDATES_MAX} more" if len(found) > CANDIDATES_MAX else ""
                problem = f"it names {len(found)}: {listed}{more}; write an id"
                raise UnknownNameError(problem, found[:CANDIDATES_MAX], ambiguous=True)
        raise self._unknown(text, kind, things, properties)

    def warnings(self, name: str, texts: Iterable[str], new: Collection[str] = ()) -> list[str]:
        """What the texts of an application name that does not exist, with the nearest names. Only whole IRIs below the
        base IRI are looked at. new: IRIs of what comes with the application."""
        found = []
        for path in dict.fromkeys(path for text in texts for path in re.findall(self._mention, text)):
            kind = next(kind for kind, folder in _FOLDERS.items() if path.startswith(folder))
            if self._base + path not in new and not self._exists(kind, self._base + path):
                known = [one.id for one in self.things if one.kind == kind]
                found.append(f"{name}: there is no {printable(path)}{did_you_mean(nearest(path, known))}")
        return found

    def _exists(self, kind: str, address: str) -> bool:
        known = self._by_iri.get(address)
        return (known is not None and known.kind == kind) or any(
            of == kind and pattern.fullmatch(address) for of, pattern in self._patterns
        )

    def find_actuator(self, text: str) -> tuple[str | None, str]:
        """The IRI of the actuator that a text names, None for an IRI or a path that the dataset does not know; and the
        end of a message that nothing is known of such a path. Raises UnknownNameError for what cannot be a path."""
        if text[:1] in ("<", ":") or _SCHEME.fullmatch(text):
            return None, ""
        try:
            return self.resolve(text, "actuator", SWITCHED).iri, ""
        except UnknownNameError as error:
            if error.ambiguous or not _PATH.fullmatch(text):
                raise
            return None, did_you_mean(one.name for one in error.candidates) or "; `lamplighter names` lists all"

    def _ways(
        self, text: str, things: Sequence[NamedThing], properties: Collection[str]
    ) -> Iterable[Sequence[NamedThing]]:
        exact, loose = _exact(text), comparable(text)
        if not loose:
            return
        fitting = [one for one in things if not properties or one.property in properties] or things
        yield [one for one in things if _exact(one.name) == exact]
        yield [one for one in fitting if _exact(one.device_name) == exact or one.device == text]
        yield [one for one in things if comparable(one.name) == loose]
        yield [one for one in fitting if comparable(one.device_name) == loose]

    def _unknown(
        self, text: str, kind: Kind, things: Sequence[NamedThing], properties: Collection[str]
    ) -> UnknownNameError:
        if (bare := self._bare_device(text)) is not None:
            cure = f"`lamplighter devices adopt {bare.id}` adds what it has"
            return UnknownNameError(f"the device of this name has no {kind} yet; if it is proposed, {cure}", [bare])
        by_name: dict[str, list[NamedThing]] = defaultdict(list)
        for one in things:
            if not properties or one.property is None or one.property in properties:
                for name in dict.fromkeys((one.name, one.device_name, one.id)):
                    if name:
                        by_name[name].append(one)
        names = nearest(text.removeprefix(self._base), by_name)
        candidates = list(dict.fromkeys(one for name in names for one in by_name[name]))[:CANDIDATES_MAX]
        return UnknownNameError(f"no {kind} has this name{did_you_mean(names)}", candidates)

    def _bare_device(self, text: str) -> NamedThing | None:
        """The device that a text names, if nothing of it is known."""
        hosts = {one.device for one in self.things if one.device is not None}
        loose = comparable(text)
        for one in self.things:
            named = one.id == text or (loose and comparable(one.name) == loose)
            if one.kind == "device" and named and one.id not in hosts:
                return one
        return None


def _exact(name: str) -> str:
    """A name with one spelling of its accents and blanks."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def _word(property_: str) -> str:
    """A property without the gateway's prefix."""
    return property_.removeprefix(GATEWAY)
