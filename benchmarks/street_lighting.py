"""The street lighting benchmark of Roffia 2016, V: its knowledge base, its subscriptions and its updates.

Everything is computed from the definition and is the same each time. The paper gives the kinds of the
properties and the number of triples (35 a post), not the triples themselves: which properties make up the 35 is
our choice, and so is the start value of each lamp, which is never the value that an update sets.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

NS = "http://lamplighter.example/ns/lighting#"
CITY = "http://lamplighter.example/city/"
RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
OWL = "http://www.w3.org/2002/07/owl#"

CONNECTED, HAS_LAMP, DIMMING = f"{NS}isConnectedTo", f"{NS}hasLamp", f"{NS}hasDimmingValue"

ROAD_TYPES = (
    ("VerySmallRoad", range(1, 101), 10),
    ("SmallRoad", range(101, 201), 25),
    ("MediumRoad", range(201, 301), 50),
    ("LargeRoad", range(301, 311), 100),
)
"""Class, road numbers and posts a road (table 2)."""

ROADS = range(1, 311)
POSTS = 9500
TRIPLES_PER_POST = 35
PAPER_TRIPLES = 334_000

# Table 2: 27 classes, 26 individuals, 16 object properties, 8 datatype properties.
_CLASSES = (
    "Road VerySmallRoad SmallRoad MediumRoad LargeRoad District City Post Position Lamp LampStatus LampType Device "
    "Actuator Sensor SensorType TemperatureSensor PresenceSensor Measurement UnitOfMeasure Maintenance Fault Operator "
    "Schedule Person Vehicle Event"
)
_INDIVIDUALS = "ON OFF BROKEN LED TRADITIONAL TEMPERATURE PRESENCE CELSIUS FAHRENHEIT BOOLEAN " + " ".join(
    f"DISTRICT_{number}" for number in range(1, 17)
)
_OBJECT_PROPERTIES = (
    "isConnectedTo hasLamp hasSensor hasPosition hasLampStatus hasLampType hasSensorType hasMeasurement "
    "hasUnitOfMeasure isInDistrict isLampOf isSensorOf isNextTo isOperatedBy hasFault hasSchedule"
)
_DATATYPE_PROPERTIES = "hasDimmingValue hasLatitude hasLongitude hasValue hasTimestamp hasName hasPower hasHeight"


@cache
def lamps_of(road: int) -> int:
    """How many posts, and so lamps, a road has."""
    for _, numbers, posts in ROAD_TYPES:
        if road in numbers:
            return posts
    raise ValueError(f"the city has no road {road}")


def road_iri(road: int) -> str:
    return f"{CITY}ROAD_{road}"


def post_iri(road: int, post: int) -> str:
    return f"{CITY}POST_{road}_{post}"


def lamp_iri(road: int, lamp: int) -> str:
    return f"{CITY}LAMP_{road}_{lamp}"


def start_value(road: int, lamp: int) -> str:
    """The dimming value that a lamp has at first: from 1 to 99."""
    return str((17 * road + 7 * lamp) % 99 + 1)


# --- knowledge base (table 2) -----------------------------------------------------------------------


def document(*, bare: bool = False) -> bytes:
    """The knowledge base as N-Triples; bare: only the three triples a post that the benchmark asks for."""
    return "".join(f"{triple} .\n" for triple in triples(bare=bare)).encode()


def triples(*, bare: bool = False) -> Iterator[str]:
    """Each triple of the knowledge base in N-Triples syntax, without the full stop."""
    if not bare:
        yield from _t_box()
    for road_class, roads, posts in ROAD_TYPES:
        for road in roads:
            if not bare:
                yield from _individual(road_iri(road), road_class)
                yield _link(road_iri(road), "isInDistrict", f"{NS}DISTRICT_{road % 16 + 1}")
            for lamp in range(1, posts + 1):
                yield from _bare_post(road, lamp) if bare else _post(road, lamp)


def _t_box() -> Iterator[str]:
    for kind, names in (
        ("Class", _CLASSES),
        ("NamedIndividual", _INDIVIDUALS),
        ("ObjectProperty", _OBJECT_PROPERTIES),
        ("DatatypeProperty", _DATATYPE_PROPERTIES),
    ):
        for name in names.split():
            yield f"<{NS}{name}> <{RDF_TYPE}> <{OWL}{kind}>"


def _bare_post(road: int, lamp: int) -> Iterator[str]:
    post = f"{CITY}POST_{road}_{lamp}"
    yield _link(road_iri(road), "isConnectedTo", post)
    yield _link(post, "hasLamp", lamp_iri(road, lamp))
    yield _value(lamp_iri(road, lamp), "hasDimmingValue", start_value(road, lamp))


def _post(road: int, lamp: int) -> Iterator[str]:
    """The 35 triples of one post: itself, its place, its lamp, its two sensors and their measurements."""
    part = f"{road}_{lamp}"
    post, position = f"{CITY}POST_{part}", f"{CITY}POSITION_{part}"
    yield from _bare_post(road, lamp)
    yield from _individual(post, "Post")
    yield _value(post, "hasName", f"post {lamp} of road {road}")
    yield _link(post, "hasPosition", position)
    yield from _individual(position, "Position")
    yield _value(position, "hasLatitude", f"44.{road:03}{lamp:03}")
    yield _value(position, "hasLongitude", f"11.{lamp:03}{road:03}")
    yield from _individual(lamp_iri(road, lamp), "Lamp")
    yield _link(lamp_iri(road, lamp), "hasLampStatus", f"{NS}{('ON', 'OFF', 'BROKEN')[(road + lamp) % 3]}")
    yield _link(lamp_iri(road, lamp), "hasLampType", f"{NS}{('LED', 'TRADITIONAL')[lamp % 2]}")
    timestamp = str(1_400_000_000_000_000 + 1_000_000 * (road * 100 + lamp))
    for kind, unit, value in (
        ("TEMPERATURE", ("CELSIUS", "FAHRENHEIT")[road % 2], str((road + lamp) % 40)),
        ("PRESENCE", "BOOLEAN", ("True", "False")[lamp % 2]),
    ):
        sensor, measurement = f"{CITY}{kind}_{part}", f"{CITY}{kind}_VALUE_{part}"
        yield _link(post, "hasSensor", sensor)
        yield from _individual(sensor, f"{kind.capitalize()}Sensor")
        yield _link(sensor, "hasSensorType", f"{NS}{kind}")
        yield _link(sensor, "hasMeasurement", measurement)
        yield from _individual(measurement, "Measurement")
        yield _link(measurement, "hasUnitOfMeasure", f"{NS}{unit}")
        yield _value(measurement, "hasValue", value)
        yield _value(measurement, "hasTimestamp", timestamp)


def _individual(iri: str, name: str) -> Iterator[str]:
    yield f"<{iri}> <{RDF_TYPE}> <{OWL}NamedIndividual>"
    yield f"<{iri}> <{RDF_TYPE}> <{NS}{name}>"


def _link(subject: str, name: str, target: str) -> str:
    return f"<{subject}> <{NS}{name}> <{target}>"


def _value(subject: str, name: str, value: str) -> str:
    return f'<{subject}> <{NS}{name}> "{value}"'


# --- updates (table 3) ------------------------------------------------------------------------------

# The paper writes INSERT before DELETE, which the grammar of SPARQL 1.1 does not have; the meaning is the same.


def lamp_update(road: int, lamp: int, value: str = "100") -> str:
    """U_LAMP(X,Y): sets the dimming value of one lamp."""
    iri = f"<{lamp_iri(road, lamp)}>"
    return (
        f"PREFIX ns: <{NS}>\n"
        f"DELETE {{ {iri} ns:hasDimmingValue ?dimming }}\n"
        f'INSERT {{ {iri} ns:hasDimmingValue "{value}" }}\n'
        f"WHERE {{ {iri} ns:hasDimmingValue ?dimming }}"
    )


def road_filter_update(road: int, value: str = "100") -> str:
    """U_ROAD(X) as the paper writes it, with the road in a FILTER: sets the lamps of one road."""
    return _road_update("?road", f" . FILTER(?road = <{road_iri(road)}>)", value)


def road_iri_update(road: int, value: str = "100") -> str:
    """U_ROAD(X) with the road's IRI in the pattern, which the raw store answers without looking at every road."""
    return _road_update(f"<{road_iri(road)}>", "", value)


def _road_update(road: str, condition: str, value: str) -> str:
    return (
        f"PREFIX ns: <{NS}>\n"
        "DELETE { ?lamp ns:hasDimmingValue ?dimming }\n"
        f'INSERT {{ ?lamp ns:hasDimmingValue "{value}" }}\n'
        "WHERE { ?lamp ns:hasDimmingValue ?dimming . ?post ns:hasLamp ?lamp . "
        f"{road} ns:isConnectedTo ?post{condition} }}"
    )


def lamp_profile(value: str = "100") -> list[str]:
    """The 310 updates of the experiment LAMP: the first lamp of each road."""
    return [lamp_update(road, 1, value) for road in ROADS]


def every_lamp_profile(value: str = "100") -> list[str]:
    """One update for each of the 9,500 lamps."""
    return [lamp_update(road, lamp, value) for road in ROADS for lamp in range(1, lamps_of(road) + 1)]


def road_filter_profile(value: str = "100") -> list[str]:
    """The 310 updates of the experiment ROAD, in the paper's text."""
    return [road_filter_update(road, value) for road in ROADS]


def road_iri_profile(value: str = "100") -> list[str]:
    """The 310 updates of the experiment ROAD, with the road's IRI in the pattern."""
    return [road_iri_update(road, value) for road in ROADS]


# --- subscriptions (tables 3 and 4, section V.B) ----------------------------------------------------

Pattern = tuple[str | None, str]
"""What a LUTT of the benchmark holds: a subject or None, and a predicate; the object is always a variable."""


@dataclass(frozen=True)
class ProfileEntry:
    """One subscription; lutt: its patterns as in table 4, from which the LUTT hit ratio follows."""

    text: str
    lutt: tuple[Pattern, ...]


def lamp_subscription(road: int, lamp: int) -> str:
    """S_LAMP(X,Y), fine-grain: the dimming value of one lamp."""
    return f"PREFIX ns: <{NS}>\nSELECT ?dimming WHERE {{ <{lamp_iri(road, lamp)}> ns:hasDimmingValue ?dimming }}"


def road_subscription(road: int) -> str:
    """S_ROAD(X), coarse-grain: the dimming values of all lamps of one road."""
    return (
        f"PREFIX ns: <{NS}>\nSELECT ?lamp ?dimming WHERE {{ ?lamp ns:hasDimmingValue ?dimming . "
        f"?post ns:hasLamp ?lamp . ?road ns:isConnectedTo ?post . FILTER(?road = <{road_iri(road)}>) }}"
    )


COARSE_ROADS = (6, 105, 204, 308)
_FINE_ROADS = ((range(1, 6), 10), (range(101, 105), 25), (range(201, 204), 50), (range(301, 308), 100))


def subscription_profile() -> list[ProfileEntry]:
    """The profile S in the paper's order: 1,000 fine-grain subscriptions and 4 coarse-grain ones."""
    fine = [
        ProfileEntry(lamp_subscription(road, lamp), ((lamp_iri(road, lamp), DIMMING),))
        for roads, lamps in _FINE_ROADS
        for road in roads
        for lamp in range(1, lamps + 1)
    ]
    coarse = [
        ProfileEntry(road_subscription(road), ((road_iri(road), CONNECTED), (None, HAS_LAMP), (None, DIMMING)))
        for road in COARSE_ROADS
    ]
    return fine + coarse


def lutt_hits(profile: Iterable[ProfileEntry], updates: Iterable[Iterable[tuple[str, str]]]) -> int:
    """How many elements of the LUTT matrix are true (Roffia 2016, IV.A).

    updates: for each update the subject and predicate (IRIs) of every triple that it changed.
    """
    watching: dict[Pattern, set[int]] = {}
    for index, entry in enumerate(profile):
        for pattern in entry.lutt:
            watching.setdefault(pattern, set()).add(index)
    hits = 0
    for changed in updates:
        hit: set[int] = set()
        for subject, predicate in changed:
            hit |= watching.get((subject, predicate), set())
            hit |= watching.get((None, predicate), set())
        hits += len(hit)
    return hits
