"""Devices in the dataset: SPARQL updates that propose, adopt, ignore, rename, retire and remove them. Pure.

::

    announced ─▶ proposed ─▶ adopted ◀─▶ retired          graph <base>graph/proposed: one node a device, with its
                     └─▶ ignored                          announcement as JSON and the decision about it

An adopted device is described in the default graph, with its rules as `gateway:Mapping`. Each update is one operation
that changes nothing if the device is not any more as the caller saw it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lamplighter.adapters.devices.device import ASKS, Actuator, Device, Sensor, Table, place
from lamplighter.adapters.devices.draft import plain, segment
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mapping.modbus_rules import REGISTER_KEYS
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import (
    ACTUATABLE_PROPERTY,
    ACTUATOR,
    ADOPTION,
    ANNOUNCEMENT,
    AREA,
    BROKER,
    COMMAND,
    CONTROLS,
    DEVICE,
    FEATURE_OF_INTEREST,
    GATEWAY,
    GIVEN_AREA,
    GIVEN_NAME,
    HAS_RESULT,
    HOSTS,
    IN_AREA,
    LAST_SEEN,
    LIVE_OBSERVATION,
    MADE_BY_ACTUATOR,
    MADE_BY_SENSOR,
    MANUFACTURER,
    MAPPING,
    MAXIMUM,
    MINIMUM,
    MODEL,
    OBSERVABLE_PROPERTY,
    OBSERVES,
    OF_DEVICE,
    ONLINE,
    PLATFORM,
    RDF_TYPE,
    RDFS_LABEL,
    REVISION,
    RULE,
    SENSOR,
    SOURCE,
    SUBSCRIBED,
    THING_ID,
)

Adoption = Literal["proposed", "adopted", "ignored", "retired"]
# The setting: whether a person decides about proposed devices.
Adopt = Literal["ask", "all"]

# Values in one stream rule; a topic or resource with more has further rules.
READS_MAX = 100
# Of a stored name that a person gave; it is shown cut.
GIVEN_CHARS_MAX = 4096
# Of a sensor's table: those that all values of a message share. Registers that are read in two ways are two resources.
_STREAM_KEYS = ("topic", "broker", "resource", "accept", "poll_s", "feature", "platform", *REGISTER_KEYS)

_LIVE = f"?thing <{LIVE_OBSERVATION}> ?made"
_Triple = tuple[Term, str, Term]


@dataclass(frozen=True, slots=True)
class Entry:
    """What the dataset says of a device. given_name, given_area: from a person, instead of the announced ones; as
    they are stored, which may be by an update of any client. stored: the record of the device in the dataset, if it is
    not `Device.to_json`: it was written by another version."""

    device: Device
    adoption: Adoption
    given_name: str = ""
    given_area: str = ""
    stored: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        return plain(self.given_name) or self.device.name

    @property
    def area(self) -> str:
        return plain(self.given_area) or self.device.area

    @property
    def identity(self) -> str:
        return self.device.identity

    @property
    def record(self) -> str:
        """The record of the device."""
        return self.stored or self.device.to_json()

    @property
    def revision(self) -> str:
        """Equal for equal records."""
        return hashlib.sha256(self.record.encode()).hexdigest()[:16]


class Registry:
    """The updates and queries of one gateway. base_iri: ends with a slash."""

    def __init__(self, base_iri: str) -> None:
        self.base_iri = base_iri
        self.graph = iri(f"{base_iri}graph/proposed")
        self.problems = iri(f"{base_iri}graph/problems")

    @property
    def query(self) -> str:
        """All devices; a row is read by `entry`."""
        return self._query("?device")

    def query_of(self, identity: str) -> str:
        """As `query`, of one device. Raises ValueError for a text that is no identity."""
        return self._query(self._below(f"device/{identity}"))

    def _query(self, device: str) -> str:
        return f"""\
SELECT ?announcement ?adoption ?name ?area WHERE {{
  GRAPH {self.graph} {{
    {device} <{ANNOUNCEMENT}> ?announcement ; <{ADOPTION}> ?adoption .
    OPTIONAL {{ {device} <{GIVEN_NAME}> ?name }}
    OPTIONAL {{ {device} <{GIVEN_AREA}> ?area }}
  }}
}}"""

    def entry(self, row: Sequence[Term | None]) -> Entry:
        """The device of a row of `query`. Raises ValueError if the row was not written by this program."""
        announcement, adoption, name, area = (None if term is None else lexical(term) for term in row)
        if announcement is None or adoption not in ("proposed", "adopted", "ignored", "retired"):
            raise ValueError("the row is not one of a device")
        device = Device.from_json(announcement)
        check_record(device)
        given = name or "", area or ""
        if any(len(text) > GIVEN_CHARS_MAX for text in given):
            raise ValueError(f"the name or area that {device.identity} was given is too long; delete it by an update")
        stored = "" if announcement == device.to_json() else announcement
        return Entry(device, adoption, *given, stored)  # type: ignore[arg-type]

    # Announcements

    def announced(self, entry: Entry | None, device: Device, adopt: Adopt) -> str | None:
        """The update for a device that is announced like this; None if the dataset has it so."""
        if entry is None:
            new = Entry(device, "adopted" if adopt == "all" else "proposed")
            return self._insertion(new)
        adoption = entry.adoption
        if adoption == "retired" or (adoption == "proposed" and adopt == "all"):
            adoption = "adopted"
        stored = entry.stored if device == entry.device else ""
        changed = replace(entry, device=device, adoption=adoption, stored=stored)
        return None if changed == entry else self._change(entry, changed)

    def withdrawn(self, entry: Entry) -> str | None:
        """The update for a device that is not announced any more; None if nothing changes. A proposed device is
        forgotten; the rules of an adopted one go, its description stays."""
        if entry.adoption == "proposed":
            return self._change(entry, None)
        return self._change(entry, replace(entry, adoption="retired")) if entry.adoption == "adopted" else None

    # Decisions of people

    def adoption(self, entry: Entry, *, area: str | None = None) -> str:
        """Adopts a device. area: the room or place to put it into; None: as before."""
        given = entry.given_area if area is None else plain(area)
        changed = self._change(entry, replace(entry, adoption="adopted", given_area=given))
        if entry.adoption == "adopted":
            return changed
        return f"DELETE WHERE {{ {self.device_iri(entry.device)} <{SUBSCRIBED}> ?of_before }} ;\n{changed}"

    def subscription(self, entry: Entry) -> str:
        """Says that the topics of an adopted device are read, as the entry has them."""
        device = self.device_iri(entry.device)
        is_, before = f"{device} <{SUBSCRIBED}>", f"{device} <{SUBSCRIBED}> ?before"
        return (
            f"DELETE {{ {before} }} INSERT {{ {is_} {literal(entry.revision)} }} "
            f"WHERE {{ GRAPH {self.graph} {{ {self._guard(entry)} }} OPTIONAL {{ {before} }} }}"
        )

    def ignoring(self, entry: Entry) -> str:
        """Ignores a device: it is not proposed again, and has no rules, no description and no observations."""
        return self._clearing(entry) + self._change(entry, replace(entry, adoption="ignored"))

    def naming(self, entry: Entry, *, name: str | None = None, area: str | None = None) -> str:
        """Gives a name and an area; an empty text gives back the announced one. IRIs stay."""
        changed = replace(
            entry,
            given_name=entry.given_name if name is None else plain(name),
            given_area=entry.given_area if area is None else plain(area),
        )
        return self._change(entry, changed)

    def removal(self, entry: Entry) -> str:
        """Removes all of a device: entry, description, rules, streams, observations, actuations, states and problems.

        What a sensor observed stays in the change log. A device that is still announced is proposed again.
        """
        return self._clearing(entry) + self._change(entry, None)

    # Triples

    def device_iri(self, device: Device) -> Term:
        return self._below(f"device/{device.identity}")

    def sensor_iri(self, sensor: Sensor) -> Term:
        return self._below(sensor.table["sensor"])

    def actuator_iri(self, actuator: Actuator) -> Term:
        return self._below(actuator.command["actuator"])

    def rules(self, device: Device) -> dict[str, Table]:
        """The rules of a device by the path of their `gateway:Mapping`: stream rules, one a topic or resource, or one a
        value with further topics; and commands."""
        below = f"mapping/{device.identity}"
        streams: dict[str, dict[str, Any]] = {}
        for sensor in device.sensors:
            table = self._absolute(sensor.table)
            table = {key: value for key, value in table.items() if key != ASKS}
            common = {key: table.pop(key) for key in _STREAM_KEYS if key in table}
            if "also" in table:
                number = hashlib.sha256(f"{place(common)} {sensor.key}".encode()).hexdigest()[:12]
                streams[f"{below}/stream/{number}"] = common | table
                continue
            read_as = "".join(f" {key}={common[key]}" for key in REGISTER_KEYS if key in common)
            number = hashlib.sha256((place(common) + read_as).encode()).hexdigest()[:12]
            path = f"{below}/stream/{number}"
            while len(streams.get(path, {"read": ()})["read"]) >= READS_MAX:
                path += "+"
            stream = streams.setdefault(path, common | {"read": []})
            stream["read"].append(table)
        rules: dict[str, Table] = {path: {"stream": stream} for path, stream in streams.items()}
        for actuator in device.actuators:
            state = {} if actuator.state is None else {"state": self._absolute(actuator.state)}
            rules[f"{below}/command/{actuator.key}"] = {"command": actuator.command | state}
        return rules

    def _absolute(self, table: Table) -> Table:
        """The table with the full IRI of a property that no vocabulary has."""
        kind = table["property"]
        return table | ({} if kind.startswith("gateway:") else {"property": self.base_iri + kind})

    def _below(self, path: str) -> Term:
        return iri(self.base_iri + path)

    def _kind(self, kind: str) -> Term:
        return iri(GATEWAY + kind.removeprefix("gateway:")) if kind.startswith("gateway:") else self._below(kind)

    def _entry_triples(self, entry: Entry) -> set[_Triple]:
        device = entry.device
        subject = self.device_iri(device)
        triples = {
            (subject, RDF_TYPE, iri(DEVICE)),
            (subject, RDFS_LABEL, literal(entry.name)),
            (subject, SOURCE, literal(device.source)),
            (subject, ADOPTION, literal(entry.adoption)),
            (subject, ANNOUNCEMENT, literal(entry.record)),
            (subject, REVISION, literal(entry.revision)),
        }
        given = ((BROKER, device.broker), (GIVEN_NAME, entry.given_name), (GIVEN_AREA, entry.given_area))
        return triples | {(subject, name, literal(text)) for name, text in given if text}

    def description(self, entry: Entry) -> set[_Triple]:
        """What the default graph says of an adopted or retired device."""
        if entry.adoption not in ("adopted", "retired"):
            return set()
        device, subject = entry.device, self.device_iri(entry.device)
        triples = {
            (subject, RDF_TYPE, iri(DEVICE)),
            (subject, RDF_TYPE, iri(PLATFORM)),
            (subject, RDF_TYPE, iri(FEATURE_OF_INTEREST)),
            (subject, RDFS_LABEL, literal(entry.name)),
            (subject, ADOPTION, literal(entry.adoption)),
        }
        texts = (
            (MANUFACTURER, device.manufacturer),
            (MODEL, device.model),
            (SOURCE, device.source),
            (THING_ID, device.thing),
        )
        triples |= {(subject, name, literal(text)) for name, text in texts if text}
        if entry.area:
            triples.add((subject, IN_AREA, self._area(entry.area)))
        for sensor in device.sensors:
            node = self.sensor_iri(sensor)
            triples |= {
                (subject, HOSTS, node),
                (node, RDF_TYPE, iri(SENSOR)),
                (node, RDFS_LABEL, literal(f"{entry.name} {sensor.label}")),
                (node, OBSERVES, self._kind(sensor.kind)),
            }
        for actuator in device.actuators:
            node = self.actuator_iri(actuator)
            triples |= {
                (subject, HOSTS, node),
                (node, RDF_TYPE, iri(ACTUATOR)),
                (node, RDFS_LABEL, literal(f"{entry.name} {actuator.label}")),
                (node, CONTROLS, self._kind(actuator.kind)),
            }
            bounds = ((MINIMUM, actuator.minimum), (MAXIMUM, actuator.maximum))
            triples |= {
                (node, name, literal(repr(bound), datatype=XSD + "double"))
                for name, bound in bounds
                if bound is not None
            }
        if entry.adoption == "adopted":
            for path, rule in self.rules(device).items():
                mapping = self._below(path)
                triples |= {
                    (mapping, RDF_TYPE, iri(MAPPING)),
                    (mapping, OF_DEVICE, subject),
                    (mapping, RULE, literal(json.dumps(rule, ensure_ascii=False, sort_keys=True))),
                }
                if "command" in rule:
                    triples.add((self._below(rule["command"]["actuator"]), COMMAND, mapping))
        return triples

    def _shared(self, entry: Entry) -> set[_Triple]:
        """What devices have in common: areas and properties. It is written, and never deleted."""
        if entry.adoption != "adopted":
            return set()
        triples: set[_Triple] = set()
        if entry.area:
            area = self._area(entry.area)
            triples |= {(area, RDF_TYPE, iri(AREA)), (area, RDFS_LABEL, literal(entry.area))}
        parts = [(one.kind, OBSERVABLE_PROPERTY) for one in entry.device.sensors]
        parts += [(one.kind, ACTUATABLE_PROPERTY) for one in entry.device.actuators]
        for kind, type_ in parts:
            node = self._kind(kind)
            known = KINDS.get(kind.removeprefix("gateway:"))
            label = known.label if known else kind.removeprefix("property/").replace("_", " ")
            triples |= {(node, RDF_TYPE, iri(type_)), (node, RDFS_LABEL, literal(label, language="en"))}
        return triples

    def _area(self, name: str) -> Term:
        return self._below(f"area/{segment(name)}")

    # Updates

    def _clearing(self, entry: Entry) -> str:
        """The operations that delete what others have written of a device, of its parts and of its rules: adapters,
        applications and people. They come before one that deletes its entry, or changes it."""
        device, guard = entry.device, f"GRAPH {self.graph} {{ {self._guard(entry)} }}"
        sensors = [self.sensor_iri(one) for one in device.sensors]
        actuators = [self.actuator_iri(one) for one in device.actuators]
        nodes = [self.device_iri(device), *sensors, *actuators, *map(self._below, self.rules(device))]
        made = [f"?thing <{MADE_BY_ACTUATOR}> ?part", f"?thing <{MADE_BY_SENSOR}> ?part"]
        made += [f"?made <{MADE_BY_SENSOR}> ?part . {one}" for one in (_LIVE, f"?made <{HAS_RESULT}> ?thing")]
        found = [f"VALUES ?thing {{ {' '.join(nodes)} }}"]
        found += [f"VALUES ?part {{ {' '.join((*sensors, *actuators))} }} {one} ." for one in made]
        things = " UNION ".join(f"{{ {one} ?thing ?property ?value }}" for one in found)
        return f"""\
DELETE {{ ?thing ?property ?value }} WHERE {{ {guard} {things} }} ;
DELETE {{ GRAPH ?event {{ ?s ?p ?o }} }} WHERE {{
  {guard}
  VALUES ?part {{ {" ".join(sensors)} }}
  GRAPH ?event {{ ?made <{MADE_BY_SENSOR}> ?part . {_LIVE} }}
  FILTER(STRSTARTS(STR(?event), CONCAT(STR(?thing), "/")))
  GRAPH ?event {{ ?s ?p ?o }}
}} ;
DELETE {{ GRAPH {self.problems} {{ ?problem ?property ?value }} }} WHERE {{
  {guard}
  GRAPH {self.problems} {{ ?problem <{OF_DEVICE}> {self.device_iri(device)} ; ?property ?value }}
}} ;
"""

    def _insertion(self, new: Entry) -> str:
        subject = self.device_iri(new.device)
        default = self.description(new) | self._shared(new)
        return (
            f"INSERT {{\n{_lines(default)}  GRAPH {self.graph} {{\n{_lines(self._entry_triples(new))}  }}\n}}\n"
            f"WHERE {{ FILTER NOT EXISTS {{ GRAPH {self.graph} {{ {subject} <{ADOPTION}> ?any }} }} }}"
        )

    def _change(self, old: Entry, new: Entry | None) -> str:
        """The smallest update from one entry to another of the same device; None removes it."""
        before, after = self._entry_triples(old), self._entry_triples(new) if new else set()
        was, becomes = self.description(old), self.description(new) if new else set()
        added = (becomes - was) | (self._shared(new) if new else set())
        subject = self.device_iri(old.device)
        # The availability topics of a device that is not adopted are not read.
        silent = new is None or new.adoption != "adopted"
        deleted = f"    {subject} <{ONLINE}> ?online ; <{LAST_SEEN}> ?seen .\n" if silent else ""
        unless = f" OPTIONAL {{ {subject} <{ONLINE}> ?online }} OPTIONAL {{ {subject} <{LAST_SEEN}> ?seen }}"
        return (
            f"DELETE {{\n{deleted}{_lines(was - becomes)}  GRAPH {self.graph} {{\n{_lines(before - after)}  }}\n}}\n"
            f"INSERT {{\n{_lines(added)}  GRAPH {self.graph} {{\n{_lines(after - before)}  }}\n}}\n"
            f"WHERE {{ GRAPH {self.graph} {{ {self._guard(old)} }}{unless if silent else ''} }}"
        )

    def _guard(self, entry: Entry) -> str:
        """The condition that the dataset has the device as the caller saw it, with the names that people gave it."""
        subject = self.device_iri(entry.device)
        texts = ((ADOPTION, entry.adoption), (REVISION, entry.revision))
        given = ((GIVEN_NAME, entry.given_name), (GIVEN_AREA, entry.given_area))
        there = " ; ".join(f"<{name}> {literal(text)}" for name, text in (*texts, *given) if text)
        missing = [f" FILTER NOT EXISTS {{ {subject} <{name}> ?any }}" for name, text in given if not text]
        return f"{subject} {there} .{''.join(missing)}"


def named(entries: Iterable[Entry], text: str) -> Entry:
    """The device that a person means: by identity, identifier, or name, whole or as the only one that contains it.

    Raises LookupError, and ValueError for a text that fits several; both say what to write.
    """
    known = list(entries)
    folded = text.casefold()
    ways = (
        lambda entry: entry.identity == text,
        lambda entry: text in (entry.device.id, entry.name, entry.device.name),
        lambda entry: any(folded in part.casefold() for part in (entry.identity, entry.name, entry.device.name)),
    )
    for fits in ways:
        found = [entry for entry in known if fits(entry)]
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(f"{entry.identity} ({entry.name})" for entry in sorted(found, key=_identity)[:5])
            raise ValueError(f"{plain(text)!r} fits {len(found)} devices; write one of them in full: {some}")
    raise LookupError(f"no device is called {plain(text)!r}; `lamplighter devices list` shows all")


def _identity(entry: Entry) -> str:
    return entry.identity


def _lines(triples: Iterable[_Triple]) -> str:
    return "".join(f"    {s} <{p}> {o} .\n" for s, p, o in sorted(triples))
