"""Resource paths (SensorThings 1.1, 9.2): entity sets, entities, navigation, properties."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lamplighter.engine.errors import MalformedRequestError, UnknownResourceError
from lamplighter.engine.terms import Term
from lamplighter.gateway.gates.sensorthings.entities import ENTITY_SETS, EntityType
from lamplighter.gateway.gates.sensorthings.ids import term_of
from lamplighter.gateway.gates.sensorthings.patterns import single

STEPS_MAX = 8
_SEGMENT = re.compile(r"([A-Za-z]+)(?:\((?:'((?:[^']|'')*)'|([^')]*))\))?(?=/|\Z)")


@dataclass(frozen=True)
class AddressStep:
    """One step of a path: an entity set or a navigation, and the entity of it that is meant."""

    name: str
    kind: EntityType
    key: Term | None


@dataclass(frozen=True)
class Address:
    """What a path leads to. many: a collection; member: a property of the one entity; form: ``$value`` or ``$ref``."""

    steps: tuple[AddressStep, ...]
    many: bool
    member: str = ""
    form: Literal["", "$value", "$ref"] = ""

    @property
    def kind(self) -> EntityType:
        return self.steps[-1].kind


def address(path: str, base_iri: str) -> Address:
    """What a path below the service root leads to. Raises UnknownResourceError, MalformedRequestError."""
    steps: list[AddressStep] = []
    many, named = True, ""
    place = 0
    while place < len(path):
        rest = path[place:]
        if rest in ("$ref", "$value"):
            return _with_form(path, tuple(steps), many, named, rest)
        found = _SEGMENT.match(path, place)
        if found is None or named:
            raise UnknownResourceError(_nothing(path, place))
        name, key = found[1], found[2] if found[2] is not None else found[3]
        kind = _kind(path, place, steps, many, name)
        if kind is None:
            named = name
            if key is not None:
                raise UnknownResourceError(_nothing(path, place))
        else:
            of_one = bool(steps) and single(steps[-1].kind, name)
            if of_one and key is not None:
                raise MalformedRequestError(f"{name} is one entity; leave the id out")
            term = None if key is None else term_of(key.replace("''", "'"), base_iri)
            steps.append(AddressStep(name, kind, term))
            many = not of_one and key is None
            if len(steps) > STEPS_MAX:
                raise MalformedRequestError(f"a path may have at most {STEPS_MAX} steps; begin with a later entity")
        place = found.end() + 1
    if not steps or path.endswith("/"):
        raise UnknownResourceError(_nothing(path, place))
    return Address(tuple(steps), many, named)


def _kind(path: str, place: int, steps: list[AddressStep], many: bool, name: str) -> EntityType | None:
    """What a step leads to; None for a property."""
    if not steps:
        if name not in ENTITY_SETS:
            raise UnknownResourceError(f"{_nothing(path, place)}; there are {', '.join(ENTITY_SETS)}")
        return ENTITY_SETS[name]
    above = steps[-1].kind
    if many:
        raise UnknownResourceError(f"{_nothing(path, place)}; name one of {steps[-1].name} with its id in parentheses")
    if name in above.navigation:
        return ENTITY_SETS[above.navigation[name].target]
    if name in above.properties:
        return None
    known = ", ".join((*above.properties, *above.navigation))
    raise UnknownResourceError(f"{_nothing(path, place)}; {above.name} has {known}")


def _with_form(path: str, steps: tuple[AddressStep, ...], many: bool, named: str, form: str) -> Address:
    if form == "$value" and named:
        return Address(steps, many, named, "$value")
    if form == "$ref" and steps and not named:
        return Address(steps, many, "", "$ref")
    cure = "it follows a property" if form == "$value" else "it follows entities"
    raise UnknownResourceError(f"{form} has no meaning in {path[:200]!r}; {cure}")


def _nothing(path: str, place: int) -> str:
    return f"there is nothing at {path[:200]!r}, position {place + 1}"
