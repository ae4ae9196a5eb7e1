"""A made-up house as plain Python objects, and requests of the SensorThings API evaluated over them from nothing.

It shares no code with the gateway. Null is None; conditions are True, False or None, as OData has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

BASE = "http://lamplighter.local/"
SETS = ("Things", "Datastreams", "Sensors", "ObservedProperties", "Observations", "FeaturesOfInterest")
ONE = {
    "Datastreams": {"Thing": "Things", "Sensor": "Sensors", "ObservedProperty": "ObservedProperties"},
    "Observations": {"Datastream": "Datastreams", "FeatureOfInterest": "FeaturesOfInterest"},
}
MANY = {
    "Things": {"Datastreams": "Datastreams"},
    "Datastreams": {"Observations": "Observations"},
    "Sensors": {"Datastreams": "Datastreams"},
    "ObservedProperties": {"Datastreams": "Datastreams"},
    "FeaturesOfInterest": {"Observations": "Observations"},
}
UNITS = ("DEG_C", "LUX", None)


@dataclass(eq=False, repr=False)
class Entity:
    """path: below the base IRI; values: by the path of a property; related: by navigation."""

    set: str
    path: str
    values: dict[str, Any]
    related: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.path.replace("/", "~")


@dataclass(repr=False)
class House:
    entities: dict[str, list[Entity]]
    update: str


def house(random: Random) -> House:
    """Some things whose streams have live observations (model "latest") or several events."""
    entities: dict[str, list[Entity]] = {name: [] for name in SETS}
    triples: list[str] = []

    def made(kind: str, path: str, rdf_type: str, label: str | None, comment: str | None = None) -> Entity:
        name = path.rpartition("/")[2] if label is None else label
        one = Entity(kind, path, {"name": name, "description": name if comment is None else comment})
        for many in MANY.get(kind, {}):
            one.related[many] = []
        entities[kind].append(one)
        triples.append(f"<{path}> a {rdf_type} .")
        triples.extend(f'<{path}> rdfs:label "{text}" .' for text in (label,) if text is not None)
        triples.extend(f'<{path}> rdfs:comment "{text}" .' for text in (comment,) if text is not None)
        return one

    def label() -> str | None:
        return random.choice((None, "Post", "lamp post", "It's", "ünïcode", "a, b; (c)", ""))

    comments = (None, "x")
    things = [made("Things", f"platform/{n}", "sosa:Platform", label(), random.choice(comments)) for n in range(6)]
    kinds = [made("ObservedProperties", f"property/{n}", "sosa:ObservableProperty", label()) for n in range(3)]
    places = [made("FeaturesOfInterest", f"place/{n}", "sosa:FeatureOfInterest", label()) for n in range(4)]
    start = datetime(2026, 11, 26, 9, 59, 30, tzinfo=UTC)
    for number in range(14):
        thing, kind, place = random.choice(things), random.choice(kinds), random.choice(places)
        sensor = made("Sensors", f"sensor/{number}", "sosa:Sensor", label())
        stream = made("Datastreams", f"stream/{number}", "gw:Stream", label())
        unit = random.choice(UNITS)
        stream.values["unitOfMeasurement/name"] = unit
        stream.values["properties/topic"] = f"street/{number}"
        triples.append(f'<{stream.path}> gw:mqttTopic "street/{number}" . <{thing.path}> sosa:hosts <{sensor.path}> .')
        if unit is not None:
            triples.append(f"<{stream.path}> qudt:hasUnit unit:{unit} .")
        stream.related |= {"Thing": thing, "Sensor": sensor, "ObservedProperty": kind}
        for other in (thing, sensor, kind):
            other.related["Datastreams"].append(stream)
        latest = random.random() < 0.5
        about = (
            f"sosa:madeBySensor <{sensor.path}> ; sosa:observedProperty <{kind.path}> ; "
            f"sosa:hasFeatureOfInterest <{place.path}> "
        )
        if not latest:
            triples.append(f"<{stream.path}> {about} .")
        for event in range(1 if latest else random.randrange(8)):
            path = f"observation/{number}" + ("" if latest else f"/{event}")
            observation = Entity("Observations", path, {})
            value, text = _result(random)
            time = start + timedelta(seconds=random.randrange(4_000), milliseconds=250 * random.randrange(4))
            observation.values["result"] = value
            observation.values["resultTime"] = observation.values["phenomenonTime"] = None
            body = f"<{path}> a sosa:Observation ; {about} ; sosa:hasSimpleResult {text} "
            if random.random() < 0.9:
                observation.values["resultTime"] = observation.values["phenomenonTime"] = time
                body += f'; sosa:resultTime "{time.isoformat().replace("+00:00", "Z")}"^^xsd:dateTime '
            if random.random() < 0.2:
                earlier = time - timedelta(minutes=5)
                observation.values["phenomenonTime"] = earlier
                body += f'; sosa:phenomenonTime "{earlier.isoformat().replace("+00:00", "Z")}"^^xsd:dateTime '
            body += f". <{stream.path}> gw:liveObservation <{path}> ."
            triples.append(body if latest else f"GRAPH <{stream.path}/{event}> {{ {body} }}")
            observation.related |= {"Datastream": stream, "FeatureOfInterest": place}
            stream.related["Observations"].append(observation)
            place.related["Observations"].append(observation)
            entities["Observations"].append(observation)
    prefixes = (
        f"BASE <{BASE}> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
        "PREFIX gw: <http://lamplighter.example/ns/gateway#> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
        "PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> PREFIX qudt: <http://qudt.org/schema/qudt/> "
        "PREFIX unit: <http://qudt.org/vocab/unit/> "
    )
    return House(entities, f"{prefixes} INSERT DATA {{ {' '.join(triples)} }}")


def _result(random: Random) -> tuple[Any, str]:
    kind = random.randrange(6)
    if kind < 2:
        number = random.randrange(-3, 12)
        return number, str(number)
    if kind < 4:
        decimal = Decimal(random.randrange(-40, 90)) / 4
        return decimal, f'"{decimal}"^^xsd:decimal'
    if kind == 4:
        flag = random.random() < 0.5
        return flag, str(flag).lower()
    text = random.choice(("on", "off", "OFF", "7"))
    return text, f'"{text}"'


Choice = dict[str, Entity | None]
"""For each to-many navigation of a condition, the entity that is looked at."""
Value = Callable[[Entity, Choice], Any]


@dataclass(frozen=True)
class Made:
    """A part of a request: its text, and its value for an entity."""

    text: str
    value: Value


class Requests:
    """Writes random conditions about the entities of one set."""

    def __init__(self, random: Random, kind: str) -> None:
        self._random = random
        self.kind = kind
        self.many: set[str] = set()

    def _path(self, wanted: str) -> Made | None:
        """A property of the type, of the entity or of a related one."""
        random, steps, kind = self._random, [], self.kind
        while random.random() < 0.4 and len(steps) < 3:
            ways = dict(ONE.get(kind, {}))
            if not steps and random.random() < 0.5:
                ways |= MANY.get(kind, {})
            if not ways:
                break
            step = random.choice(sorted(ways))
            if not steps and step in MANY.get(kind, {}):
                self.many.add(step)
            steps.append(step)
            kind = ways[step]
        names = [name for name, known in _PROPERTIES[kind].items() if known == wanted]
        if not names:
            return None
        name = random.choice(names)
        many = MANY.get(self.kind, {})

        def value(entity: Entity, choice: Choice) -> Any:
            found: Entity | None = entity
            for place, step in enumerate(steps):
                if found is None:
                    return None
                found = choice[step] if place == 0 and step in many else found.related[step]
            return None if found is None else found.values[name]

        return Made("/".join((*steps, name)), value)

    def condition(self, depth: int = 0) -> Made:
        random = self._random
        kind = random.randrange(9) if depth < 3 else random.randrange(3, 9)
        if kind == 0:
            one = self.condition(depth + 1)
            return Made(f"not ({one.text})", lambda e, c: _not(one.value(e, c)))
        if kind in (1, 2):
            first, second = self.condition(depth + 1), self.condition(depth + 1)
            operator, combined = (("and", _and), ("or", _or))[kind - 1]
            return Made(
                f"({first.text} {operator} {second.text})", lambda e, c: combined(first.value(e, c), second.value(e, c))
            )
        if kind == 3:
            return self._text_condition()
        if kind == 4:
            left = self._path("string") or self._constant("string")
            return Made(f"{left.text} eq null", lambda e, c: left.value(e, c) is None)
        wanted = ("any", "number", "string", "datetime")[kind - 5]
        result = self._path("any") if wanted == "any" else None
        if result is not None:
            left, wanted = result, random.choice(("number", "string", "boolean"))
        else:
            wanted = "number" if wanted == "any" else wanted
            left = self._operand(wanted, depth)
        right = self._operand(wanted, depth + 1) if random.random() < 0.3 else self._constant(wanted)
        operator = random.choice(("eq", "ne") if wanted == "boolean" else tuple(_COMPARISONS))
        return Made(
            f"{left.text} {operator} {right.text}",
            lambda e, c: _compared(operator, left.value(e, c), right.value(e, c)),
        )

    def _text_condition(self) -> Made:
        left, right = self._operand("string", 2), self._constant("string")
        name, test = self._random.choice(
            (
                ("contains", lambda a, b: b in a),
                ("startswith", lambda a, b: a.startswith(b)),
                ("endswith", lambda a, b: a.endswith(b)),
            )
        )
        if name == "contains" and self._random.random() < 0.5:
            return Made(f"substringof({right.text},{left.text})", _lifted(test, left, right))
        return Made(f"{name}({left.text}, {right.text})", _lifted(test, left, right))

    def _constant(self, wanted: str) -> Made:
        random = self._random
        if wanted == "number":
            number = random.choice((0, 1, 7, -2, 10, Decimal("2.5"), Decimal("10.25")))
            return Made(str(number), lambda e, c: number)
        if wanted == "string":
            text = random.choice(("on", "off", "Post", "o", "", "It's", "ü", "lux", "7", "a, b; (c)"))
            return Made("'" + text.replace("'", "''") + "'", lambda e, c: text)
        if wanted == "boolean":
            flag = random.random() < 0.5
            return Made(str(flag).lower(), lambda e, c: flag)
        time = datetime(2026, 11, 26, 10, random.randrange(60), tzinfo=UTC)
        text = random.choice((f"{time:%Y-%m-%dT%H:%M:%SZ}", f"{time + timedelta(hours=1):%Y-%m-%dT%H:%M:%S.000+01:00}"))
        return Made(text, lambda e, c: time)

    def _operand(self, wanted: str, depth: int) -> Made:
        random = self._random
        if random.random() < 0.5 and depth < 3:
            return self._computed(wanted, depth)
        return self._path("any" if wanted == "number" and random.random() < 0.7 else wanted) or self._constant(wanted)

    def _computed(self, wanted: str, depth: int) -> Made:
        random = self._random
        if wanted == "string":
            one, other = self._operand("string", depth + 1), self._constant("string")
            start, length = random.randrange(3), random.randrange(4)
            return random.choice(
                (
                    Made(f"tolower({one.text})", _lifted(str.lower, one)),
                    Made(f"toupper({one.text})", _lifted(str.upper, one)),
                    Made(f"trim(concat(' ', {one.text}))", _lifted(str.strip, one)),
                    Made(f"concat({one.text},{other.text})", _lifted(lambda a, b: a + b, one, other)),
                    Made(
                        f"substring({one.text}, {start}, {length})", _lifted(lambda a: a[start : start + length], one)
                    ),
                )
            )
        if wanted == "datetime":
            one = self._operand("datetime", depth + 1)
            minutes = random.randrange(1, 90)
            return Made(
                f"{one.text} add duration'PT{minutes}M'", _lifted(lambda a: a + timedelta(minutes=minutes), one)
            )
        if wanted == "boolean":
            return self._constant("boolean")
        kind = random.randrange(5)
        if kind == 0:
            one, other = self._operand("string", depth + 1), self._constant("string")
            return random.choice(
                (
                    Made(f"length({one.text})", _lifted(len, one)),
                    Made(f"indexof({one.text}, {other.text})", _lifted(lambda a, b: a.find(b), one, other)),
                )
            )
        if kind == 1:
            one = self._operand("datetime", depth + 1)
            return random.choice(
                (
                    Made(f"minute({one.text})", _lifted(lambda a: a.minute, one)),
                    Made(f"hour({one.text})", _lifted(lambda a: a.hour, one)),
                    Made(f"second({one.text})", _lifted(lambda a: Decimal(a.second), one)),
                    Made(f"totaloffsetminutes({one.text})", _lifted(lambda a: 0, one))
                    if "+" not in one.text
                    else Made(f"year({one.text})", _lifted(lambda a: a.year, one)),
                    Made(f"fractionalseconds({one.text})", _lifted(lambda a: Decimal(a.microsecond) / 1_000_000, one)),
                )
            )
        one = self._operand("number", depth + 1)
        if kind == 2:
            return random.choice(
                (
                    Made(f"floor({one.text})", _of_number(_floor, one)),
                    Made(f"ceiling({one.text})", _of_number(lambda a: -_floor(-a), one)),
                    Made(
                        f"round({one.text})",
                        _of_number(lambda a: (1 if a >= 0 else -1) * _floor(abs(a) + Decimal("0.5")), one),
                    ),
                )
            )
        if kind == 3:
            divisor = random.choice((2, 4, 5, Decimal("0.5")))
            return random.choice(
                (
                    Made(f"({one.text} div {divisor})", _of_number(lambda a: _div(a, divisor), one)),
                    Made(
                        f"({one.text} mod {divisor})",
                        _of_number(lambda a: _mod(a, divisor), one),
                    ),
                    Made(f"(-({one.text}))", _of_number(lambda a: -a, one)),
                )
            )
        other = self._operand("number", depth + 1)
        operator, test = random.choice(
            (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b))
        )
        return Made(f"({one.text} {operator} {other.text})", _of_number(test, one, other))


_PROPERTIES: dict[str, dict[str, str]] = {
    **{name: {"name": "string", "description": "string"} for name in SETS},
    "Observations": {"result": "any", "resultTime": "datetime", "phenomenonTime": "datetime"},
}
_PROPERTIES["Datastreams"] |= {"unitOfMeasurement/name": "string", "properties/topic": "string"}
_COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def selected(condition: Made, many: Sequence[str], entity: Entity) -> bool:
    """Whether a condition is true of an entity, for one choice of the entities of to-many navigation."""
    choices: list[Choice] = [{}]
    for name in many:
        others = entity.related.get(name, []) or [None]
        choices = [{**choice, name: other} for choice in choices for other in others]
    return any(condition.value(entity, choice) is True for choice in choices)


def ordered(entities: Sequence[Entity], keys: Sequence[tuple[str, bool]]) -> list[Entity]:
    """Sorted by keys, path and whether descending; null is the least; at last by IRI."""
    found = sorted(entities, key=lambda one: BASE + one.path)
    for path, descending in reversed(keys):
        found.sort(key=lambda one: _sort_key(_followed(one, path)), reverse=descending)
    return found


def _followed(entity: Entity, path: str) -> Any:
    while path not in entity.values:
        step, _, path = path.partition("/")
        entity = entity.related[step]
    return entity.values[path]


def _sort_key(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def _not(one: bool | None) -> bool | None:
    return None if one is None else not one


def _and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _or(one: bool | None, other: bool | None) -> bool | None:
    if one is True or other is True:
        return True
    return None if one is None or other is None else False


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | Decimal) else type(value).__name__


def _compared(operator: str, one: Any, other: Any) -> bool:
    if operator == "ne":
        return not _compared("eq", one, other)
    if one is None or other is None:
        return operator == "eq" and one is other
    return _kind(one) == _kind(other) and bool(_COMPARISONS[operator](one, other))


def _lifted(function: Callable[..., Any], *operands: Made) -> Value:
    """A function of strings or times, which is null where one of them is null or no string or time."""

    def value(entity: Entity, choice: Choice) -> Any:
        values = [one.value(entity, choice) for one in operands]
        return function(*values) if all(isinstance(one, str | datetime) for one in values) else None

    return value


def _of_number(function: Callable[..., Any], *operands: Made) -> Value:
    def value(entity: Entity, choice: Choice) -> Any:
        values = [one.value(entity, choice) for one in operands]
        return function(*values) if all(_kind(one) == "number" for one in values) else None

    return value


def _floor(value: int | Decimal) -> int | Decimal:
    return value if isinstance(value, int) else Decimal(value.to_integral_value("ROUND_FLOOR"))


def _div(one: int | Decimal, other: int | Decimal) -> int | Decimal:
    if isinstance(one, int) and isinstance(other, int):
        return int(Decimal(one) / other)
    return Decimal(one) / other


def _mod(one: int | Decimal, other: int | Decimal) -> int | Decimal:
    return one - other * int(Decimal(one) / other)
