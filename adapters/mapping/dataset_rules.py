"""Rules that are triples in the dataset, applied while the adapter runs.

A rule is a node of the default graph::

    <http://gateway.example/mapping/attic> a gateway:Mapping ; gateway:rule '{"stream": {"topic": "attic/t", ...}}' .

Its JSON is an object with one member: ``stream``, ``command`` or ``publish``, the table of mapping/*.toml with the same
keys. A node may have several rules. A faulty rule is not applied, and the node gets the reason as `gateway:problem`,
until the fault is gone. What an adapter writes by a rule has an effect only while its node has a rule.

Each adapter applies the rules of its kind, and writes the problems of these. JSON that is no rule is a problem of MQTT.

This is the Topics Manager of Roffia 2018, 5.4, by rules of ours. There an agent adds an observation with the property
hasMqttTopic for each topic, and the MQTT adapter, subscribed to these, takes the number out of a payload by a regular
expression and writes it as qudt:numericValue of the observation's qudt:QuantityValue. Here a client inserts, instead of
hasMqttTopic, a `gateway:Mapping` whose rule names the topic, the observation (``observation``), the expression
(``pattern``), the unit and the place (``feature``), with ``"result": "quantity"``. The paper's OBSERVATIONS_VALUES then
finds value, unit, place and time at the observation as it does there (with the terms of QUDT 2: `qudt:hasUnit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from lamplighter.adapters.mapping import CommandRule, PublishRule, StreamRule
from lamplighter.adapters.mapping.expressions import STEPS_MAX
from lamplighter.adapters.mapping.kinds import TABLES, AnyRule, ResourceRules, kind_of, rule_type
from lamplighter.adapters.mapping.rules import ReadingRule
from lamplighter.adapters.model.readings import rule_condition
from lamplighter.adapters.specs import ADAPTERS, Kind
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.terms import Term, is_iri, lexical, literal
from lamplighter.ontology.vocabulary import HAS_PROBLEM, MAPPING, PREFIXES, RDF_TYPE, RULE

RULES_MAX = 20_000
RULE_CHARS_MAX = 65_536
PORTION = 100
"""Rules that are made at a time: about 10 ms."""

QUERY = f"SELECT ?mapping ?rule WHERE {{ ?mapping <{RDF_TYPE}> <{MAPPING}> ; <{RULE}> ?rule }}"
_BEGINS: dict[Kind, str] = {spec.name: spec.problems for spec in ADAPTERS}


def _own(kind: Kind) -> str:
    """The condition of problems of an adapter."""
    if kind != "mqtt":
        return f'FILTER(STRSTARTS(STR(?problem), "{_BEGINS[kind]}"))'
    others = " || ".join(f'STRSTARTS(STR(?problem), "{begin}")' for begin in _BEGINS.values() if begin)
    return f"FILTER(!({others}))"


def forget_problems(kind: Kind) -> str:
    """Forgets what former processes of an adapter said. It is the first update of a process."""
    return (
        f"DELETE {{ ?mapping <{HAS_PROBLEM}> ?problem }} "
        f"WHERE {{ ?mapping <{RDF_TYPE}> <{MAPPING}> ; <{HAS_PROBLEM}> ?problem {_own(kind)} }}"
    )


_Row = tuple[Term, Term]


class DatasetRules:
    """The rules of the dataset. Pure: rows in, rules and updates out.

    publish: filters of topics that rows may be published to. kind: of the adapter. known: whether a whole result was
    taken.
    """

    def __init__(self, base_iri: str, publish: Sequence[str] = (), kind: Kind = "mqtt") -> None:
        self.known = False
        self.kind = kind
        self._base_iri = base_iri
        self._publish = tuple(publish)
        self._rows: dict[_Row, AnyRule | str | None] = {}
        """None: a rule for others; a text: why the rule is faulty."""
        self._sorted = True
        self._said: dict[Term, str] = {}
        self._steps = 0
        """Of the topics of all rules: each topic is matched with all of them."""

    def replace(self, rows: Iterable[_Row]) -> Iterator[None]:
        """Takes the whole result of `QUERY`, in portions: other work may be done at each step of the iterator.

        Rules that stay are not made again.
        """
        wanted = dict.fromkeys(rows)
        self.change((), [row for row in self._rows if row not in wanted])
        missing = [row for row in wanted if row not in self._rows]
        for begin in range(0, len(missing), PORTION):
            self.change(missing[begin : begin + PORTION], ())
            yield
        self.known = True

    def change(self, added: Iterable[_Row], removed: Iterable[_Row]) -> None:
        """Takes a change of the result."""
        for row in removed:
            self._steps -= _steps(self._rows.pop(row, None))
        for row in added:
            if row not in self._rows:
                made = self._parse_row(row)
                if self._steps + _steps(made) > STEPS_MAX:
                    made = "the expressions in the topics of all rules can take too many steps together"
                self._rows[row] = made
                self._sorted = False
                self._steps += _steps(made)

    def _in_order(self) -> dict[_Row, AnyRule | str | None]:
        """The rules in the order of their nodes."""
        if not self._sorted:
            self._rows, self._sorted = dict(sorted(self._rows.items(), key=_order)), True
        return self._rows

    def streams(self) -> list[StreamRule]:
        """In the order of their nodes, so that the first of two rules for one stream is always the same."""
        return [rule for rule in self._in_order().values() if isinstance(rule, StreamRule)]

    def commands(self) -> list[CommandRule]:
        return [rule for rule in self._in_order().values() if isinstance(rule, CommandRule)]

    def publishes(self) -> list[PublishRule]:
        return [rule for rule in self._in_order().values() if isinstance(rule, PublishRule)]

    def resources(self) -> ResourceRules:
        """The rules for resources and paths, in the order of their nodes."""
        return ResourceRules.of(rule for rule in self._in_order().values())

    def problems(self) -> dict[Term, str]:
        """Why rules are not applied, by node; several faults of a node in one text."""
        found: dict[Term, list[str]] = {}
        for (mapping, _), rule in self._in_order().items():
            if isinstance(rule, str):
                found.setdefault(mapping, []).append(rule)
        return {mapping: "; ".join(sorted(texts))[:2_000] for mapping, texts in found.items()}

    def problem_updates(self) -> list[str]:
        """The updates that make the dataset say what `problems` says, since the last call."""
        begin, own = _BEGINS[self.kind], _own(self.kind)
        problems = {mapping: begin + text for mapping, text in self.problems().items() if is_iri(mapping)}
        updates = []
        for mapping in sorted(problems.keys() | self._said.keys()):
            text = problems.get(mapping)
            if text == self._said.get(mapping):
                continue
            insert = "" if text is None else f"INSERT {{ {mapping} <{HAS_PROBLEM}> {literal(text)} }} "
            updates.append(
                f"DELETE {{ {mapping} <{HAS_PROBLEM}> ?problem }} {insert}"
                f"WHERE {{ OPTIONAL {{ {mapping} <{HAS_PROBLEM}> ?problem {own} }} }}"
            )
        self._said = problems
        return updates

    def _parse_row(self, row: _Row) -> AnyRule | str | None:
        mapping, text = row
        problem = ""
        if len(self._rows) >= RULES_MAX:
            problem = f"there are more than {RULES_MAX} rules"
        elif len(text) > RULE_CHARS_MAX:
            problem = f"the rule has more than {RULE_CHARS_MAX} characters"
        if problem:
            return problem if self.kind == "mqtt" else None
        try:
            return _rule(lexical(text), self._base_iri, mapping, self._publish, self.kind)
        except ConfigurationError as error:
            return str(error)


def _steps(rule: AnyRule | str | None) -> int:
    """Bound of the steps that finding the messages of a rule takes."""
    stream = rule.state if isinstance(rule, CommandRule) else rule
    return stream.pattern.steps if isinstance(stream, ReadingRule) else 0


def _order(item: tuple[_Row, Any]) -> _Row:
    return item[0]


def _rule(text: str, base_iri: str, mapping: Term, publish: Sequence[str], kind: Kind) -> AnyRule | None:
    """None: it is for others than the adapter. Raises ConfigurationError."""
    place = f"<{lexical(mapping)}>"
    cure = 'write {"stream": {...}}, {"command": {...}} or {"publish": {...}} with the keys of mapping/*.toml'
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        if kind != "mqtt":
            return None
        raise ConfigurationError(f"{place}: the rule is not JSON: {error}; {cure}") from error
    [(name, table)] = document.items() if isinstance(document, dict) and len(document) == 1 else [("", None)]
    if name not in TABLES or not isinstance(table, dict):
        if kind != "mqtt":
            return None
        what = "has no table" if name in TABLES else f"has an unknown member {name[:40]!r}"
        raise ConfigurationError(f"{place}: the rule {what if name else 'is not an object with one member'}; {cure}")
    if kind_of(name, table) != kind:
        return None
    type_, make = rule_type(name, table, place)
    context: dict[str, Any] = {"prefixes": PREFIXES, "base_iri": base_iri, "place": place}
    if name == "publish":
        context["permitted"] = publish
    elif is_iri(mapping):  # no text can name a blank node
        context["condition"] = rule_condition(mapping)
    try:
        return make(msgspec.json.decode(text, type=dict[str, type_])[name], **context)  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{place}: {error}; {cure}") from error
