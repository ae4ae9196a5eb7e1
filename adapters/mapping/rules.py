"""Rules: what is read from the messages of a topic, of a resource or of a path."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from lamplighter.adapters.literals import NIL, datetime_term
from lamplighter.adapters.mapping import jinja, sparkplug, times
from lamplighter.adapters.mapping.expressions import STEPS_MAX
from lamplighter.adapters.mapping.patterns import TOPIC_BYTES_MAX, TopicIndex, TopicPattern, minimal_filters
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX, AbsentError, Payload
from lamplighter.adapters.mapping.publishes import PublishRule
from lamplighter.adapters.mapping.reads import OVER_MQTT, PayloadRecord, Read, ReadContext, ReadOrigin, usual_payload
from lamplighter.adapters.mapping.tables import AnyStreamTable, CommandBase, CommandTable, ReadTable, StreamTable
from lamplighter.adapters.mapping.templates import address
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, lexical
from lamplighter.ontology.vocabulary import REPORTED_STATE

ALSO_MAX = 8
"""Further topics of a rule."""
READS_MAX = 256
"""Items of a rule."""
TOPIC_READS_MAX = 1_000
TOPIC_STEPS_MAX = 10 * STEPS_MAX
"""Values that all rules read of the messages of one topic, and the steps of their expressions. Rules of files come
first; a client that may write rules must not make a message take minutes."""
READINGS_MAX = 4_096
"""Of a message, besides those of the last rule that is used: rules for all members of an object multiply them."""
CACHED_CHARS_MAX = 16_000_000
"""Of the streams of topics that are kept, and of those of records. 10,000 streams of usual names take 10,000,000."""
RECHECKED_MAX = 10_000
"""Of topics and patterns that are compared when rules change; if there are more, all topics are read anew."""
_STREAM_CHARS = 500
"""What a stream takes besides its texts, and a topic."""
Key = TypeVar("Key")
Value = TypeVar("Value")
SomeRule = TypeVar("SomeRule", bound="ReadingRule")
_ITEM_KEYS = ReadTable.__struct_fields__
_KINDS = {
    **dict.fromkeys(("scale", "offset", "digits", "dead_band"), ("number",)),
    **dict.fromkeys(("on", "off", "off_delay_s"), ("boolean",)),
    "words": ("text",),
    "result": ("number", "senml", "sparkplug", "lwm2m"),
}
"""The payloads that a key is for, if not for all."""


class ReadingRule:
    """A checked `[[stream]]` table: what it covers, and what it reads from its messages.

    place: file, line and number, or the IRI of its `gateway:Mapping`; pattern: of the topics or paths that it covers.
    condition: as for `Stream`, of all of its streams. also: rules with the same place and stream, for further topics.
    """

    also: tuple[StreamRule, ...] = ()

    def __init__(
        self,
        table: AnyStreamTable,
        pattern: TopicPattern,
        *,
        prefixes: abc.Mapping[str, str],
        base_iri: str,
        place: str,
        origin: ReadOrigin,
    ) -> None:
        """prefixes: see `PREFIXES`. Raises ConfigurationError, which names rule, key and cure."""
        self.place = place
        self.pattern = pattern
        self.condition = origin.condition
        self._made_of = base_iri, table, dict(prefixes)
        if len(table.read) > READS_MAX:
            raise ConfigurationError(f"{place}: read: write at most {READS_MAX} items")
        items = [(inherit(table, item), f"{place} read {number}") for number, item in enumerate(table.read, 1)]
        several = bool(table.read)
        self.reads = tuple(
            Read(
                item,
                pattern,
                prefixes=prefixes,
                base_iri=base_iri,
                place=name,
                item=several,
                origin=origin,
            )
            for item, name in items or [(table, place)]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadingRule) and self._made_of == other._made_of

    def __hash__(self) -> int:
        return hash((self._made_of[0], self.pattern.filter))

    def streams(self, topic: str) -> list[Stream]:
        """The streams of a topic, without those of records; empty if the rule does not cover the topic.

        Raises PayloadError if a level that goes into an IRI is no path segment.
        """
        captures = self.pattern.captures(topic)
        return [] if captures is None else [read.stream(topic, captures) for read in self.reads if not read.many]


class StreamRule(ReadingRule):
    """A rule for MQTT. table: what it was made of; broker: None: every; filter: of its topics."""

    def __init__(
        self,
        table: StreamTable,
        *,
        prefixes: abc.Mapping[str, str],
        base_iri: str,
        place: str,
        condition: str = "",
        address: str | None = None,
    ) -> None:
        """address: the topic that its stream has; None: its own. Raises ConfigurationError, as `ReadingRule` does."""
        self.table = table
        self.broker = table.broker
        try:
            pattern = TopicPattern(table.topic)
        except ValueError as error:
            raise ConfigurationError(f"{place}: topic = {table.topic!r}: {error}") from error
        self.filter = pattern.filter
        super().__init__(
            table,
            pattern,
            prefixes=prefixes,
            base_iri=base_iri,
            place=place,
            origin=OVER_MQTT._replace(condition=condition, address=address),
        )
        more: dict[str, Any] = {"prefixes": prefixes, "base_iri": base_iri, "place": place, "condition": condition}
        self.also = tuple(StreamRule(one, address=table.topic, **more) for one in self._also(table))

    def _also(self, table: StreamTable) -> Iterator[StreamTable]:
        """The tables of the further topics. Raises ConfigurationError."""
        if not table.also:
            return
        if len(table.also) > ALSO_MAX or table.read or self.reads[0].many or self.pattern.names or "#" in self.filter:
            raise ConfigurationError(
                f"{self.place}: also: write at most {ALSO_MAX} topics, in a rule with one value and one topic"
            )
        if any(set(one.topic) & set("+#{}") for one in table.also):
            raise ConfigurationError(f"{self.place}: also: write topics without captures and wildcards")
        [stream] = self.streams(table.topic)
        # Its IRIs would else be those of the other topic.
        iris = {name: lexical(getattr(stream, name)) for name in ("sensor", "feature", "platform", "observation")}
        for one in table.also:
            places: dict[str, Any] = {"topic": one.topic, "member": one.member, "also": [], "optional": True}
            yield msgspec.structs.replace(table, **places, **iris)


def inherit(table: ReadTable, item: ReadTable) -> ReadTable:
    """The item with the keys that only the table has. A key for another kind of payload is not inherited."""
    own = item.payload or usual_payload(item)
    keys = {name: getattr(item, name) for name in _ITEM_KEYS}
    for name, value in keys.items():
        if value is None and (own is None or own in _KINDS.get(name, (own,))):
            keys[name] = getattr(table, name)
    return ReadTable(**keys | {"payload": own or table.payload})


class CommandRule(NamedTuple):
    """A `[[command]]` table whose topic is checked. actuator: full IRI, or None; prefixes: of its file; state: the rule
    for what the device reports; condition: of what is written by it, as for `Stream`."""

    table: CommandTable
    place: str
    actuator: str | None
    prefixes: abc.Mapping[str, str]
    state: StreamRule | None = None
    condition: str = ""


def actuator_iri(table: CommandBase, prefixes: abc.Mapping[str, str], base_iri: str, place: str) -> str | None:
    """The full IRI of the actuator of a rule, if it names one. Raises ConfigurationError."""
    if table.actuator is None:
        return None
    try:
        return address(table.actuator, prefixes, base_iri)
    except ValueError as error:
        raise ConfigurationError(f"{place}: actuator = {table.actuator!r}: {error}") from error


def command_rule(
    table: CommandTable, *, prefixes: abc.Mapping[str, str], base_iri: str, place: str, condition: str = ""
) -> CommandRule:
    """Raises ConfigurationError, which names rule, key and cure."""
    topic = table.topic
    if not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX or topic.startswith("$") or set(topic) & set("+#\0"):
        raise ConfigurationError(
            f"{place}: topic = {topic!r}: write 1 to {TOPIC_BYTES_MAX} bytes without +, # and a $ at the start"
        )
    if table.scale == 0:
        raise ConfigurationError(f"{place}: scale = 0: write another number")
    if table.template is not None:
        try:
            jinja.command_template(table.template)
        except ValueError as error:
            raise ConfigurationError(f"{place}: template = {table.template[:80]!r}: {error}") from error
    scaled = table.scale is not None or table.offset is not None
    if scaled and table.lamp is not None and table.lamp.role == "switch":
        raise ConfigurationError(
            f"{place}: lamp: the switch of a lamp has no scale; write scale and offset in the rules of its parts"
        )
    actuator = actuator_iri(table, prefixes, base_iri, place)
    state = None
    if table.state is not None:
        state_table = _state_table(table, table.state, place)
        state = StreamRule(state_table, prefixes=prefixes, base_iri=base_iri, place=f"{place} state of {topic}")
    return CommandRule(table, place, actuator, prefixes, state, condition)


def _state_table(table: CommandTable, state: StreamTable, place: str) -> StreamTable:
    """The stream table of a command's state, with what the command says already. Raises ConfigurationError."""
    if state.read:
        raise ConfigurationError(f"{place}: state: a state is one value; leave out read")
    keys: dict[str, Any] = {
        "property": state.property or REPORTED_STATE,
        "broker": state.broker or table.broker,
        "optional": state.optional is not False,
    }
    if state.payload is None and state.words is None and set(table.values) == {"true", "false"}:
        keys |= {"payload": "boolean"}
        keys |= {"on": state.on or [table.values["true"]], "off": state.off or [table.values["false"]]}
    elif state.payload is None and usual_payload(state) is None:
        keys["payload"] = "text"
    return msgspec.structs.replace(state, **keys)


class _Source(NamedTuple):
    """A read that covers a topic, with the captures; stream: None for a read of records."""

    read: Read
    captures: dict[str, str]
    stream: Stream | None


class _Sources(NamedTuple):
    """What covers a topic. errors: of reads whose stream has no IRI."""

    of: tuple[_Source, ...]
    errors: tuple[PayloadError, ...]


class _Cache(dict[Key, Value]):
    """Values that were made of keys. It is emptied when it holds `CACHED_CHARS_MAX`, because every client that may
    publish chooses topics."""

    def __init__(self) -> None:
        super().__init__()
        self._chars = 0

    def keep(self, key: Key, value: Value, chars: int) -> None:
        self._chars += chars
        if self._chars > CACHED_CHARS_MAX:
            self.clear()
            self._chars = chars
        self[key] = value


def changed_reads(before: Sequence[SomeRule], after: Sequence[SomeRule]) -> set[str]:
    """The places of the read items whose rules are gone, changed, or removed and written again: their streams may be
    described in another way now or not at all, or belong to another rule."""
    return {read.place for rule in new_rules(after, before) for read in rule.reads}


def new_rules(before: Sequence[SomeRule], after: Sequence[SomeRule]) -> list[SomeRule]:
    """Those of the rules after that are new, changed, or removed and written again."""
    kept = set(map(id, before))
    others = [rule for rule in after if id(rule) not in kept]
    former = {(rule.place, rule.pattern.filter): rule for rule in before} if others else {}

    def is_new(rule: SomeRule) -> bool:
        # A rule of the dataset is made once: another object was written again.
        return former.get((rule.place, rule.pattern.filter)) != rule or bool(rule.condition)

    return [rule for rule in others if is_new(rule)]


def _missing(rules: Sequence[SomeRule], others: Sequence[SomeRule]) -> list[SomeRule]:
    """Those of the others that are none of the rules."""
    known = set(map(id, rules))
    return [rule for rule in others if id(rule) not in known]


def _with_others(rules: Iterable[SomeRule]) -> Iterator[SomeRule]:
    """The rules, each with those for its further topics."""
    for rule in rules:
        yield rule
        yield from rule.also  # type: ignore[misc]  # only a StreamRule has some


class ReadingRules(Generic[SomeRule]):
    """Rules of one kind, and the readings of messages by all of them. sources: as for `Stream`, of all of them.

    former: rules of which some may stay, with the same sources. Their index is taken over and changed; they are not to
    be used any more.
    """

    def __init__(
        self,
        rules: Sequence[SomeRule],
        sources: tuple[Term, ...] = (),
        *,
        former: ReadingRules[SomeRule] | None = None,
    ) -> None:
        self.sources = sources
        self.rules = tuple(rules)
        self._sources: _Cache[str, _Sources] = _Cache()
        self._record_streams: _Cache[tuple[Read, str, tuple[tuple[str, str], ...], str | None], Stream] = _Cache()
        if former is not None and "_index" in former.__dict__:
            self._index = former._index
            self._sources, self._record_streams = former._sources, former._record_streams
            gone, new = _missing(self.rules, former.rules), _missing(former.rules, self.rules)
            self._change(gone, new)
            if [*map(id, _missing(gone, former.rules))] != [*map(id, _missing(new, self.rules))]:
                self._sources = _Cache()  # those that stay have another order

    @cached_property
    def _index(self) -> TopicIndex[SomeRule]:
        return TopicIndex((rule.pattern, rule) for rule in _with_others(self.rules))

    @cached_property
    def _order(self) -> dict[int, int]:
        """The places of the rules, by identity."""
        return {id(rule): place for place, rule in enumerate(_with_others(self.rules))}

    def _change(self, gone: Sequence[SomeRule], new: Sequence[SomeRule]) -> None:
        """Takes rules out of the index and puts others in; forgets what was made of the topics that they cover."""
        for rule in _with_others(gone):
            self._index.remove(rule.pattern, rule)
        for rule in _with_others(new):
            self._index.add(rule.pattern, rule)
        changed = [rule.pattern for rule in _with_others([*gone, *new])]
        wide = [pattern for pattern in changed if "+" in pattern.filter or "#" in pattern.filter]
        if len(wide) * len(self._sources) > RECHECKED_MAX:
            self._sources = _Cache()
            return
        for pattern in changed:
            self._sources.pop(pattern.filter, None)
        for topic in [one for one in self._sources if any(pattern.captures(one) is not None for pattern in wide)]:
            del self._sources[topic]

    def _matching(self, topic: str) -> list[tuple[dict[str, str], SomeRule]]:
        """Captures and rule of each rule that covers a topic, in their order."""
        found = self._index.of(topic)
        return found if len(found) < 2 else sorted(found, key=lambda one: self._order[id(one[1])])

    def covering(self, topic: str) -> list[SomeRule]:
        """The rules that cover a topic."""
        return [rule for _, rule in self._matching(topic)]

    def readings(
        self,
        topic: str,
        payload: bytes | Payload,
        *,
        retained: bool,
        received: datetime,
        properties: abc.Mapping[str, str] | None = None,
        births: sparkplug.Births | None = None,
        trusted: bool = True,
    ) -> list[Reading | PayloadError]:
        """The readings of a message, and errors in the places of broken ones. Empty if no rule covers the topic, or if
        the message has none of the optional values; `covering` tells which.

        payload: with its content format, if the message names one; received: an aware datetime; properties: MQTT 5
        user properties; births: of Sparkplug nodes, kept by the caller as long as a connection; trusted: whether the
        gateway's clock is synchronised.
        """
        try:
            sources, errors = self._sources.get(topic) or self._sources_of(topic)
        except PayloadError as error:
            return [error]
        readings: list[Reading | PayloadError] = list(errors)
        if not sources:
            return readings
        document = Payload(payload) if isinstance(payload, bytes) else payload
        data = document.data
        if not 0 < len(data) <= PAYLOAD_BYTES_MAX:
            return [PayloadError(f"payload has more than {PAYLOAD_BYTES_MAX} bytes" if data else "payload is empty")]
        arrival = datetime_term(received)
        problem = times.RETAINED if retained else None if trusted else times.CLOCK
        for source in sources:
            read, _, stream = source
            if len(readings) >= READINGS_MAX:
                reason = f"the message has more than {READINGS_MAX} values; {read.place} and later ones are not used"
                readings.append(PayloadError(reason))
                break
            try:
                if stream is not None and not read.own_time:
                    readings.append(Reading(stream, read.term(document), arrival, retained, problem, received))
                    continue
                context = ReadContext(topic, properties or {}, received, trusted, births or sparkplug.Births())
                readings += self._timed_readings(source, document, context, retained)
            except AbsentError as error:
                if not read.optional:
                    readings.append(_with_read_name(read, error))
            except PayloadError as error:
                readings.append(_with_read_name(read, error))
        return readings

    def _timed_readings(
        self, source: _Source, document: Payload, context: ReadContext, retained: bool
    ) -> list[Reading | PayloadError]:
        """The readings of a source whose values have a time of their own, or are many."""
        read, _, stream = source
        if stream is not None:
            value = read.term(document)
            return [self._reading(stream, value, read.time(document, context, None), context, retained, own=True)]
        readings: list[Reading | PayloadError] = []
        for record, found in read.terms(document, context):
            if isinstance(found, PayloadError):
                readings.append(_with_read_name(read, found))
                continue
            try:
                stream = self._record_stream(read, context.topic, record)
            except PayloadError as error:
                readings.append(_with_read_name(read, error))
                continue
            time = read.time(document, context, record) if read.own_time else (context.received, None)
            reading = self._reading(stream, found, time, context, retained, own=read.own_time)
            readings.append(reading._replace(historical=True) if record.historical else reading)
        return readings

    def _reading(
        self,
        stream: Stream,
        value: Term,
        time: tuple[datetime, str | None],
        context: ReadContext,
        retained: bool,
        *,
        own: bool,
    ) -> Reading:
        """own: the rule takes the time from the message."""
        moment, problem = time
        if moment is context.received and retained:
            problem = times.RETAINED
        elif moment is context.received and not context.trusted:
            problem = times.CLOCK
        return Reading(stream, value, datetime_term(moment), retained, problem, context.received, own_time=own)

    def _sources_of(self, topic: str) -> _Sources:
        try:
            size = len(topic.encode())
        except UnicodeEncodeError as error:
            raise PayloadError("topic is not Unicode text") from error
        if not 0 < size <= TOPIC_BYTES_MAX:
            raise PayloadError(f"topic does not have 1 to {TOPIC_BYTES_MAX} bytes of UTF-8")
        sources: list[_Source] = []
        errors: list[PayloadError] = []
        steps = 0
        for captures, read in ((captures, read) for captures, rule in self._matching(topic) for read in rule.reads):
            steps += read.steps
            if len(sources) + len(errors) >= TOPIC_READS_MAX or steps > TOPIC_STEPS_MAX:
                reason = f"rules read more than {TOPIC_READS_MAX} values of the topic, or their patterns take too long"
                errors.append(PayloadError(f"{reason}; {read.place} and later ones are not used"))
                break
            try:
                stream = None if read.many else self._stream(read, topic, captures)
                sources.append(_Source(read, captures, stream))
            except PayloadError as error:
                errors.append(error)
        found = _Sources(tuple(sources), tuple(errors))
        chars = sum(_STREAM_CHARS + (0 if source.stream is None else source.stream.chars()) for source in sources)
        self._sources.keep(topic, found, _STREAM_CHARS + len(topic) + chars)
        return found

    def _stream(
        self, read: Read, topic: str, captures: abc.Mapping[str, str], record: PayloadRecord | None = None
    ) -> Stream:
        stream = read.stream(topic, captures, record)
        return replace(stream, sources=self.sources) if self.sources else stream

    def _record_stream(self, read: Read, topic: str, record: PayloadRecord) -> Stream:
        key = read, topic, tuple(record.captures.items()), record.unit
        stream = self._record_streams.get(key)
        if stream is None:
            captures = read.pattern.captures(topic)
            assert captures is not None
            stream = self._stream(read, topic, captures, record)
            self._record_streams.keep(key, stream, _STREAM_CHARS + stream.chars())
        return stream


def _with_read_name(read: Read, error: PayloadError) -> PayloadError:
    return PayloadError(f"{read.name}: {error}") if read.name else error


class Mapping(ReadingRules[StreamRule]):
    """All rules for MQTT of a gateway, or of one of its brokers.

    readers: the rules, and those for the states of actuators. states: the latter alone, None if there are none. source:
    as for `Stream`.
    """

    def __init__(
        self,
        rules: Sequence[StreamRule],
        commands: Sequence[CommandRule] = (),
        publishes: Sequence[PublishRule] = (),
        *,
        sources: tuple[Term, ...] = (),
        former: Mapping | None = None,
    ) -> None:
        super().__init__(rules, sources, former=former)
        self.commands = tuple(commands)
        self.publishes = tuple(publishes)
        self._commands = {command.state.place: command for command in commands if command.state is not None}
        self.states: Mapping | None = None
        states = [command.state for command in commands if command.state is not None]
        if states:
            self.states = Mapping(states, former=None if former is None else former.states)
        self.readers = tuple(_with_others([*rules, *states]))

    @cached_property
    def filters(self) -> tuple[str, ...]:
        """What to subscribe to; a filter that another one covers is left out, so that messages come once."""
        return tuple(minimal_filters(rule.filter for rule in self.readers))

    @cached_property
    def places(self) -> frozenset[str]:
        """Of the rules and commands."""
        return frozenset(one.place for one in self.rules).union(one.place for one in self.commands)

    def of_broker(self, name: str, sources: tuple[Term, ...] = (), former: Mapping | None = None) -> Mapping:
        """The rules for one broker: streams and states that it sends, with their commands. sources, former: as for
        `ReadingRules`."""
        rules = [rule for rule in self.rules if rule.broker in (None, name)]
        commands = [one for one in self.commands if one.state is None or one.state.broker in (None, name)]
        return Mapping(rules, commands, sources=sources, former=former)

    def covers(self, topic: str) -> bool:
        """Whether a rule covers a topic, or reads the state of an actuator from it."""
        return bool(self.covering(topic) or (self.states is not None and self.states.covering(topic)))

    def reader(self, topic: str) -> str | None:
        """The place of the first rule that covers a topic, or that reads the state of an actuator from it."""
        covering = self.covering(topic) or ([] if self.states is None else self.states.covering(topic))
        return covering[0].place if covering else None

    def reports(
        self, topic: str, payload: bytes, *, retained: bool, received: datetime
    ) -> list[tuple[CommandRule, Term | None] | PayloadError] | None:
        """The states of actuators that a message reports, a state of None if it has none, and errors in the places of
        broken ones; None if it is about no actuator's state."""
        if self.states is None or not self.states.covering(topic):
            return None
        found = self.states.readings(topic, payload, retained=retained, received=received)
        return [
            one
            if isinstance(one, PayloadError)
            else (self._commands[one.stream.rule], None if one.value.endswith(NIL) else one.value)
            for one in found
        ]
