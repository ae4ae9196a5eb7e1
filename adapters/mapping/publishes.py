"""`[[publish]]` rules: rows of a query's result -> topics and payloads. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from lamplighter.adapters.literals import NUMBERS
from lamplighter.adapters.mapping.constructs import GraphQuery, Triple, graph_query, query_form
from lamplighter.adapters.mapping.patterns import (
    LEVELS_MAX,
    NAME,
    OWN_TOPICS,
    TOPIC_BYTES_MAX,
    covers,
    is_reserved,
)
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mapping.tables import PublishTable
from lamplighter.adapters.mapping.templates import CAPTURE
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Bag, Term, is_iri, is_literal, lexical

QUERY_CHARS_MAX = 16_384
_SLOT = re.compile(rf"\{{(?:json:({NAME})|({NAME}))\}}")
_TRIPLES = re.compile(r"\{triples\}")
_TOO_LONG = f"the message would have more than {PAYLOAD_BYTES_MAX} bytes"
TERM_CHARS_MAX = 6 * PAYLOAD_BYTES_MAX
"""Of a value that a message may have: as a term, each of its characters can be an escape of six."""
_ESCAPED = re.compile(r"[+#/%\x00-\x1f\x7f-\x9f]")
_BARE = (f"^^<{XSD}boolean>", *NUMBERS)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

Row = tuple[Term | None, ...]


class PublishRule(NamedTuple):
    """A checked `[[publish]]` table. select: what to subscribe to, which begins with declarations of the file's
    prefixes; graph: of a CONSTRUCT."""

    table: PublishTable
    place: str
    select: str
    declarations: str
    base_iri: str
    graph: GraphQuery | None = None

    @property
    def filter(self) -> str:
        """A topic filter that covers its topics."""
        return "/".join("+" if CAPTURE.search(level) else level for level in self.table.topic.split("/"))

    @property
    def variables(self) -> frozenset[str]:
        """Those that the topic needs."""
        return frozenset(CAPTURE.findall(self.table.topic))

    def topic(self, row: Mapping[str, Term]) -> str:
        """Raises PayloadError: a variable is not bound, or its value is no level."""
        too_long = f"the topic would have more than {TOPIC_BYTES_MAX} bytes"
        text = fill_template(
            CAPTURE,
            self.table.topic,
            lambda found: _level(found[1], row.get(found[1]), self.base_iri),
            TOPIC_BYTES_MAX,
            too_long,
        )
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise PayloadError("the topic cannot be written in UTF-8") from error
        if size > TOPIC_BYTES_MAX:
            raise PayloadError(too_long)
        if is_reserved(text):
            raise PayloadError(f"the topic {text} is not permitted")
        return text


def publish_rule(
    table: PublishTable, *, prefixes: Mapping[str, str], base_iri: str, place: str, permitted: Sequence[str] = ("#",)
) -> PublishRule:
    """permitted: topic filters; one of them has to cover the topics. Raises ConfigurationError, which names rule, key
    and cure."""
    if len(table.query) > QUERY_CHARS_MAX:
        raise ConfigurationError(f"{place}: query: write at most {QUERY_CHARS_MAX} characters")
    declarations = "".join(f"PREFIX {name}: <{address}> " for name, address in prefixes.items())
    query = declarations + table.query
    graph = None
    try:
        if query_form(query) == "CONSTRUCT":
            graph = graph_query(query)
    except ValueError as error:
        raise ConfigurationError(f"{place}: query: {error}") from error
    _check_topic(table.topic, place)
    rule = PublishRule(table, place, query if graph is None else graph.select, declarations, base_iri, graph)
    if graph is not None and rule.variables:
        raise ConfigurationError(f"{place}: topic = {table.topic!r}: a CONSTRUCT query has one topic, without {{name}}")
    if graph is not None and table.retain and table.removed is not None:
        raise ConfigurationError(
            f"{place}: removed: the retained message of a CONSTRUCT query has all triples; leave it out"
        )
    if not any(covers(wide, rule.filter) for wide in permitted):
        raise ConfigurationError(
            f"{place}: topic = {table.topic!r}: no topic filter of mqtt.publish covers it; add one, or write the rule "
            "in mapping/*.toml"
        )
    return rule


def _check_topic(topic: str, place: str) -> None:
    sample = CAPTURE.sub("x", topic)
    if not 0 < len(sample.encode()) <= TOPIC_BYTES_MAX or set(sample) & set("+#{}\0"):
        raise ConfigurationError(
            f"{place}: topic = {topic!r}: write 1 to {TOPIC_BYTES_MAX} bytes without + and #; braces are for "
            "variables, as in {room}"
        )
    if topic.count("/") >= LEVELS_MAX:
        raise ConfigurationError(f"{place}: topic = {topic!r}: write at most {LEVELS_MAX} levels")
    if is_reserved(topic):
        raise ConfigurationError(f"{place}: topic = {topic!r}: topics below $... and {OWN_TOPICS}/ are not permitted")


def _level(name: str, term: Term | None, base_iri: str) -> str:
    """The value of a variable in a topic: characters that separate levels or are wildcards are percent-encoded."""
    if term is None:
        raise PayloadError(f"?{name} of the topic is not bound")
    if not is_iri(term) and not is_literal(term):
        raise PayloadError(f"?{name} of the topic is neither an IRI nor a literal")
    text = lexical(term)
    if is_iri(term):
        text = text.removeprefix(base_iri)
    if not text:
        raise PayloadError(f"?{name} of the topic is empty")
    if len(text) > TOPIC_BYTES_MAX:
        raise PayloadError(f"?{name} of the topic has more than {TOPIC_BYTES_MAX} bytes")
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def fill_template(
    slots: re.Pattern[str], template: str, value: Callable[[re.Match[str]], str], chars_max: int, too_long: str
) -> str:
    """A template with values in its slots. It ends as soon as the text is too long: a client may write a template with
    thousands of slots, and a value of a megabyte. Raises PayloadError with the reason `too_long`."""
    parts: list[str] = []
    chars = at = 0
    for slot in slots.finditer(template):
        parts += template[at : slot.start()], value(slot)
        chars += len(parts[-2]) + len(parts[-1])
        if chars > chars_max:
            raise PayloadError(too_long)
        at = slot.end()
    return "".join([*parts, template[at:]])


def json_value(term: Term) -> str:
    """A term as JSON: numbers and booleans as such, and everything else as a text."""
    text = lexical(term) if is_iri(term) or is_literal(term) else term
    if term.endswith(_BARE) and (text in ("true", "false") or _NUMBER.fullmatch(text)):
        return text
    return json.dumps(text, ensure_ascii=False)


def row_payload(template: str, variables: Iterable[str], row: Mapping[str, Term]) -> bytes:
    """variables: of the query; slots of other names stay as they are. Raises PayloadError."""
    known = frozenset(variables)

    def short(term: Term) -> Term:
        if len(term) > TERM_CHARS_MAX:
            raise PayloadError(_TOO_LONG)
        return term

    def value(slot: re.Match[str]) -> str:
        as_json, name = slot[1], slot[2]
        if as_json is not None:
            return slot[0] if as_json not in known else json_value(short(row[as_json])) if as_json in row else "null"
        if name == "json":
            members = (f"{json.dumps(key)}: {json_value(short(term))}" for key, term in row.items())
            return "{" + ", ".join(members) + "}"
        if name not in known:
            return slot[0]
        term = short(row.get(name, ""))
        return lexical(term) if is_iri(term) or is_literal(term) else term

    return encode_text(fill_template(_SLOT, template, value, PAYLOAD_BYTES_MAX, _TOO_LONG))


def graph_payload(template: str | None, triples: Iterable[Triple]) -> bytes:
    """template: None: the triples alone. No triples give an empty payload. Raises PayloadError."""
    found: list[Triple] = []
    chars = 0
    for triple in triples:
        found.append(triple)
        chars += sum(map(len, triple))
        if chars > PAYLOAD_BYTES_MAX:  # of a large graph, sorting alone would take long
            raise PayloadError(_TOO_LONG)
    lines = "".join(f"{s} {p} {o} .\n" for s, p, o in sorted(found))
    if template is None or not lines:
        return encode_text(lines)
    return encode_text(fill_template(_TRIPLES, template, lambda slot: lines, PAYLOAD_BYTES_MAX, _TOO_LONG))


def encode_text(text: str) -> bytes:
    """The payload of a message. Raises PayloadError."""
    try:
        payload = text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError(f"the message cannot be written in UTF-8: {error.reason}") from error
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise PayloadError(_TOO_LONG)
    return payload


class Messages(NamedTuple):
    """Payloads for one topic, in order."""

    payloads: tuple[bytes, ...]

    def followed_by(self, later: Waiting) -> Waiting:
        """The newest state of a topic wins."""
        return later

    def encode(self, table: PublishTable) -> tuple[bytes, ...]:
        return self.payloads

    def after(self, sent: int) -> Waiting:
        """What is left when so many payloads are sent."""
        return Messages(self.payloads[sent:])


class GraphChange(NamedTuple):
    """Triples that left and entered a graph. Changes that wait are joined, so that a subscriber misses none."""

    removed: frozenset[Triple]
    added: frozenset[Triple]

    def followed_by(self, later: Waiting) -> Waiting:
        if isinstance(later, Messages):
            return later
        return GraphChange(
            (self.removed - later.added) | (later.removed - self.added),
            (self.added - later.removed) | (later.added - self.removed),
        )

    def encode(self, table: PublishTable) -> tuple[bytes, ...]:
        """Raises PayloadError."""
        payloads = []
        if self.removed and table.removed is not None:
            payloads.append(graph_payload(table.removed, self.removed))
        if self.added:
            payloads.append(graph_payload(table.payload, self.added))
        return tuple(payloads)

    def after(self, sent: int) -> Waiting:
        return GraphChange(frozenset(), self.added) if sent else self


Waiting = Messages | GraphChange


class Topics(NamedTuple):
    """What a change of a result gives: by topic, what to publish there. errors: of rows that give no message."""

    waiting: dict[str, Waiting]
    errors: list[PayloadError]


class PublishedResult:
    """The result of a rule's query, followed by its notifications."""

    def __init__(self, rule: PublishRule) -> None:
        self._rule = rule
        self._variables: tuple[str, ...] = ()
        self._started = False
        self._rows: Counter[Row] = Counter()
        self._by_topic: dict[str, Counter[Row]] = {}  # of retained messages
        self._triples: Counter[Triple] = Counter()

    def take(self, sequence: int, added: Bag, removed: Bag) -> Topics:
        """Takes a notification. Sequence 0 has the whole result: the first one is a start, a later one replaces the
        rows, and what differs is a change like any other."""
        self._variables = added.variables
        new, gone = Counter(added.rows), Counter(removed.rows)
        started, self._started = not self._started, True
        rows = self._rows
        if sequence == 0:
            new, gone = new - rows, rows - new
        entered = [row for row in new if row not in rows]
        rows.update(new)
        for row, count in gone.items():
            rows[row] -= count
            if rows[row] <= 0:
                del rows[row]
        if self._rule.graph is not None:
            return self._graph(new, gone, started=started)
        if self._rule.table.retain:
            return self._retained_topics(new, gone)
        return Topics({}, []) if started else self._changes(entered, [row for row in gone if row not in rows])

    def _binding(self, row: Row) -> dict[str, Term]:
        return {name: term for name, term in zip(self._variables, row, strict=True) if term is not None}

    def _payload(self, template: str, row: Row) -> bytes:
        return row_payload(template, self._variables, self._binding(row))

    @property
    def _template(self) -> str:
        return "{json}" if self._rule.table.payload is None else self._rule.table.payload

    def _changes(self, entered: Iterable[Row], left: Iterable[Row]) -> Topics:
        """A message for each row that entered, and, on topics without one, for each row that left."""
        payloads: dict[str, list[bytes]] = {}
        errors: list[PayloadError] = []

        def add(rows: Iterable[Row], template: str, taken: Iterable[str]) -> None:
            for row in sorted(rows, key=_order):
                try:
                    topic = self._rule.topic(self._binding(row))
                    if topic not in taken:
                        payloads.setdefault(topic, []).append(self._payload(template, row))
                except PayloadError as error:
                    errors.append(error)

        add(entered, self._template, ())
        if self._rule.table.removed is not None:
            add(left, self._rule.table.removed, frozenset(payloads))
        return Topics({topic: Messages(tuple(found)) for topic, found in payloads.items()}, errors)

    def _retained_topics(self, new: Counter[Row], gone: Counter[Row]) -> Topics:
        """One message for each topic whose rows changed: of its last row, or of the last one that left."""
        errors: list[PayloadError] = []
        left: dict[str, Row] = {}
        touched: dict[str, None] = {}
        for rows, sign in ((gone, -1), (new, 1)):
            for row, count in sorted(rows.items(), key=lambda item: _order(item[0])):
                try:
                    topic = self._rule.topic(self._binding(row))
                except PayloadError as error:
                    if sign > 0:
                        errors.append(error)
                    continue
                touched[topic] = None
                there = self._by_topic.setdefault(topic, Counter())
                there[row] += sign * count
                if there[row] <= 0:
                    del there[row]
                    left[topic] = row
        waiting: dict[str, Waiting] = {}
        for topic in touched:
            there = self._by_topic[topic]
            if not there:
                del self._by_topic[topic]
            try:
                if there:
                    waiting[topic] = Messages((self._payload(self._template, max(there, key=_order)),))
                elif self._rule.table.removed is not None:
                    waiting[topic] = Messages((self._payload(self._rule.table.removed, left[topic]),))
            except PayloadError as error:
                errors.append(error)
        return Topics(waiting, errors)

    def _graph(self, new: Counter[Row], gone: Counter[Row], *, started: bool) -> Topics:
        """Triples are counted: one stays as long as a row constructs it."""
        assert self._rule.graph is not None
        change: Counter[Triple] = Counter()
        for rows, sign in ((new, 1), (gone, -1)):
            for row, count in rows.items():
                for triple in self._rule.graph.triples(self._binding(row)):
                    change[triple] += sign * count
        added, removed = set(), set()
        for triple, count in change.items():
            was = self._triples[triple]
            self._triples[triple] = was + count
            if was <= 0 < was + count:
                added.add(triple)
            elif was + count <= 0 < was:
                removed.add(triple)
            if self._triples[triple] <= 0:
                del self._triples[triple]
        table = self._rule.table
        if table.retain and (started or added or removed):
            try:
                payload = graph_payload(table.payload, self._triples)
            except PayloadError as error:
                return Topics({}, [error])
            return Topics({table.topic: Messages((payload,))}, [])
        if started or table.retain or not (added or (removed and table.removed is not None)):
            return Topics({}, [])
        return Topics({table.topic: GraphChange(frozenset(removed), frozenset(added))}, [])


def _order(row: Row) -> tuple[str, ...]:
    return tuple(term or "" for term in row)
