"""Applications declared in JSAP files: aggregators that run inside the gateway (Roffia 2016, II.B and II.D).

An aggregator is a query whose notifications run updates. Each trigger (aggregator, commit) has its reaction exactly
once (design 4.11). The reaction's record names the sequence of its trigger, and reactions are written directly behind
their trigger. So recovery only has to check the last trigger in the log for missing reactions. The begin and the end of
an application are records too; it does not react to earlier commits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lamplighter.engine.change_log import JOINT, Cause, Missed, Record
from lamplighter.engine.client.profile import Loader
from lamplighter.engine.errors import (
    ConfigurationError,
    ForcedBindingError,
    JsapError,
    MalformedRequestError,
    RequestError,
    RequestSyntaxError,
)
from lamplighter.engine.protocol.jsap import Jsap, Query, Update, profile
from lamplighter.engine.protocol.jsap_tree import Tree, decode_tree, included_addresses, member_lines, normal
from lamplighter.engine.slices import SLICE, Slices
from lamplighter.engine.sparql.requests import parse_query, parse_update, subscribable
from lamplighter.engine.terms import Bag, Term, iri, literal
from lamplighter.gateway.state.delayed import at_moment, delay_us

KIND = "application"  # the cause of every record of an application

_NEAR_CHARACTERS = 30
_DIGEST_CHARACTERS = 12

# Reactions of an application that one request may cause, directly or through others; beyond it, it is stopped.
REACTIONS_MAX = 1000
SAMPLE_IRI = iri("urn:x:y")  # stands for every IRI that a caller gives, where a text is only looked at


@dataclass(frozen=True)
class Application:
    """A JSAP document. digest: identifies its version. stored: it was put, and is no file of ``apps/``."""

    name: str
    digest: str
    profile: Jsap
    stored: bool = field(default=False, compare=False)

    @property
    def began(self) -> Cause:
        """The cause of the record with which this version begins."""
        return Cause(KIND, f"{self.name}@{self.digest}")

    @property
    def remedy(self) -> str:
        """How a person mends it."""
        if self.stored:
            return f"correct it, and put it again: lamplighter apps put {self.name}"
        return f"correct apps/{self.name}.jsap (`lamplighter check`), then reload the gateway"


@dataclass(frozen=True)
class Trigger:
    """A change in the result of an aggregator's query that asks for a reaction. rows: one update for each."""

    application: Application
    aggregator: str
    member: str  # added or removed
    sequence: int
    rows: Bag

    @property
    def cause(self) -> Cause:
        return Cause(KIND, f"{self.application.name}/{self.aggregator}/{self.member}", self.sequence)

    def reaction(self, slices: Slices) -> Reaction:
        """The update requests of a trigger. Raises JsapError, ForcedBindingError."""
        profile = self.application.profile
        aggregator = profile.aggregators[self.aggregator]
        name = aggregator.added if self.member == "added" else aggregator.removed
        assert name is not None
        update = profile.updates[name]
        if len(self.rows) > SLICE:
            slices.begin(len(self.rows))
        texts = []
        for number, binding in enumerate(self.rows.bindings(), 1):
            texts.append(self.application.profile.whole_update_text(name, binding))
            if number % SLICE == 0:
                slices.pause()
        return Reaction(texts, update.delay, update.at, update.missed)


@dataclass(frozen=True)
class Reaction:
    """One update request for all rows of a trigger, at once or delayed. texts: for each row."""

    texts: Sequence[str]
    delay: str | None
    at: str | None
    missed: Missed | None

    @property
    def sparql(self) -> str:
        return JOINT.join(self.texts)


def load_applications(folder: Path) -> list[Application]:
    """The applications in ``*.jsap`` files, with the files that these include, in the order of their names. Raises
    ConfigurationError, which names all faults of all files, one a line."""
    applications, faults = [], []
    for path in sorted(folder.glob("*.jsap")):
        try:
            applications.append(_load(path)[0])
        except JsapError as error:
            faults.append(str(error))
    if faults:
        raise ConfigurationError("\n".join(faults))
    return applications


def load_application(path: Path) -> Application:
    """That of one file. Raises ConfigurationError with all faults, one a line."""
    try:
        return _load(path)[0]
    except JsapError as error:
        raise ConfigurationError(str(error)) from error


def _load(path: Path, *, unknown: bool = False) -> tuple[Application, Loader]:
    """unknown: whether unknown members are allowed. Raises JsapError, whose faults name the document and the line."""
    loader = Loader(network=False)  # a gateway may have no applications
    tree = loader.tree(path)
    try:
        found = _checked_profile(tree, unknown=unknown)
    except JsapError as error:
        raise loader.locate_faults(error) from error
    return Application(path.stem, _digest(loader.digest), found), loader


def parse_application(name: str, document: bytes) -> Application:
    """That of a document which includes no others. Raises JsapError, whose faults name the members."""
    tree = normal(decode_tree(document))
    if included_addresses(tree):
        raise JsapError("include: only files in apps/ include others; write what it has into this document")
    return Application(name, _digest(hashlib.sha256(document)), _checked_profile(tree), stored=True)


def _digest(digest: hashlib._Hash) -> str:
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _checked_profile(tree: Tree, *, unknown: bool = False) -> Jsap:
    """Raises JsapError."""
    found = profile(tree, unknown=unknown)
    faults = [*_unbound(found), *_wrong_times(found)]
    if faults:
        raise JsapError(*faults)
    return found


@dataclass(frozen=True)
class MemberFault:
    """What is wrong with a document. place: of the member, such as ``updates.OFF.delay``; empty if there is none. line:
    of the member, or of the nearest one around it."""

    place: str
    line: int | None
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.place else self.problem


def document_faults(name: str, document: bytes) -> list[MemberFault]:
    """What `lamplighter check` would say of a document in ``apps/``."""
    try:
        texts = list(_sparql_faults(parse_application(name, document)))
    except JsapError as error:
        texts = [str(fault) for fault in error.args]
    lines = member_lines(document) if texts else {}
    return [_member_fault(text, lines) for text in texts]


def _member_fault(text: str, lines: Mapping[str, int]) -> MemberFault:
    place, _, problem = text.partition(": ")
    names = place.split(".")
    for count in range(len(names), 0, -1):
        line = lines.get(".".join(names[:count]))
        if line is not None:
            return MemberFault(place, line, problem)
    return MemberFault("", None, text)


def _unbound(profile: Jsap) -> Iterator[str]:
    """The faults of queries of aggregators that lack a value, or have an invalid one."""
    for name in dict.fromkeys(aggregator.query for aggregator in profile.aggregators.values()):
        try:
            profile.query_text(name, {})
        except ForcedBindingError as error:
            yield f"queries.{name}: {error}"


def _wrong_times(profile: Jsap) -> Iterator[str]:
    """The faults of updates whose delay or time would always be refused."""
    for name, update in profile.updates.items():
        try:
            if update.delay is not None:
                delay_us(update.delay)
            if update.at is not None:
                at_moment(update.at)
        except MalformedRequestError as error:
            yield f"updates.{name}.{error}"


def sparql_faults(folder: Path) -> list[str]:
    """The faults of the SPARQL texts in the readable profiles of a folder, with document and line."""
    # The gateway starts nevertheless, without the applications that it cannot run, since others do not depend on them.
    faults: list[str] = []
    for path in sorted(folder.glob("*.jsap")):
        with suppress(JsapError):
            application, loader = _load(path, unknown=True)
            faults += map(str, loader.locate_faults(JsapError(*_sparql_faults(application))).args)
    return faults


def _sparql_faults(application: Application) -> Iterator[str]:
    """Queries and updates that do not parse, queries of aggregators that cannot be subscribed to, forced bindings whose
    default does not fit, and those of updates that no row gives a value to."""
    profile = application.profile
    columns: dict[str, tuple[str, ...]] = {}
    followed = {profile.aggregators[name].query: text for name, text in aggregator_queries(application)}
    yield from _default_faults(profile)
    for name in profile.queries:
        text = followed.get(name) or profile.query_text(name, samples(profile.queries[name]))
        try:
            outline = subscribable(text) if name in followed else parse_query(text)
            columns[name] = outline.columns
        except RequestError as error:
            yield f"queries.{name}.sparql: {near(error, text, profile.declarations)}"
    for name in profile.updates:
        text = profile.update_text(name, samples(profile.updates[name]))
        try:
            parse_update(text)
        except RequestError as error:
            yield f"updates.{name}.sparql: {near(error, text, profile.declarations)}"
    for name, one in profile.aggregators.items():
        for member, update in (("added", one.added), ("removed", one.removed)):
            declared = {} if update is None else profile.updates[update].forced_bindings
            for variable in (key for key, binding in declared.items() if binding.value == ""):
                if one.query in columns and variable not in columns[one.query]:
                    yield (
                        f"extended.lamplighter.aggregators.{name}.{member}: {update} needs a value for ?{variable}, "
                        f"which {one.query} does not select"
                    )


def _default_faults(profile: Jsap) -> Iterator[str]:
    """The faults of default values that could not be used."""
    for member, entries in (("queries", profile.queries), ("updates", profile.updates)):
        for name, entry in entries.items():
            for variable, declared in entry.forced_bindings.items():
                if declared.value is not None and declared.value != "":
                    try:
                        declared.term(declared.value, profile.expand)
                    except ValueError as error:
                        yield f"{member}.{name}.forcedBindings.{variable}.value: {error}"


def samples(entry: Query | Update) -> dict[str, Term | None]:
    """Some term for each forced binding: an empty text, or `SAMPLE_IRI`."""
    terms = {"literal": literal(""), "uri": SAMPLE_IRI, "bnode": SAMPLE_IRI}
    return {name: terms[declared.type] for name, declared in entry.forced_bindings.items()}


def near(error: RequestError, text: str, declarations: str) -> str:
    """The message with the text around the fault. Its line and column would count the declarations, too."""
    if not isinstance(error, RequestSyntaxError) or error.lineno is None or error.offset is None:
        return str(error)
    at = sum(map(len, text.splitlines(keepends=True)[: error.lineno - 1])) + error.offset - 1
    before = text[max(at - _NEAR_CHARACTERS, len(declarations)) : at]
    place = " ".join(f"{before} ▶ {text[at : at + _NEAR_CHARACTERS]}".split())
    return f"syntax error at ▶ in {place!r}: {' '.join(error.msg.split())}"


def aggregator_queries(application: Application) -> Iterator[tuple[str, str]]:
    """(aggregator, text of its query) for each aggregator, in the order of the file."""
    # The graphs that the profile names are in the text, as in the updates, so that the change log has them.
    for name, aggregator in application.profile.aggregators.items():
        yield name, application.profile.whole_query_text(aggregator.query, {})


def triggers(application: Application, aggregator: str, sequence: int, added: Bag, removed: Bag) -> Iterator[Trigger]:
    """The triggers in one notification of an aggregator: removed rows before added ones."""
    declared = application.profile.aggregators[aggregator]
    for member, update, rows in (("removed", declared.removed, removed), ("added", declared.added, added)):
        if update is not None and rows:
            yield Trigger(application, aggregator, member, sequence, rows)


class DeclaredApplications:
    """The applications that run, in the order of their names: those of ``apps/`` as they were last read, and stored
    ones. files: the names of the former."""

    def __init__(self, applications: Iterable[Application] = (), stored: Iterable[Application] = ()) -> None:
        files = tuple(applications)
        self.files = frozenset(one.name for one in files)
        # A file takes precedence: it can be seen, and is the configuration of who administers the machine.
        besides = [one for one in stored if one.name not in self.files]
        self.declared = tuple(sorted((*files, *besides), key=lambda one: one.name) if besides else files)

    def __iter__(self) -> Iterator[Application]:
        return iter(self.declared)

    def get(self, name: str) -> Application | None:
        return next((one for one in self.declared if one.name == name), None)


class ApplicationRegistry:
    """The running applications and their versions, from the change log."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    def follow(self, record: Record) -> None:
        """Notes that an application started (``name@digest``) or ended (``name@``)."""
        cause = record.cause
        if cause is not None and cause.kind == KIND and cause.seq is None:
            name, _, digest = cause.id.rpartition("@")
            if digest:
                self._digests[name] = digest
            else:
                self._digests.pop(name, None)

    def has(self, application: Application) -> bool:
        return self._digests.get(application.name) == application.digest

    def names(self) -> list[str]:
        return list(self._digests)

    def digests(self) -> dict[str, str]:
        return dict(self._digests)

    def restore(self, digests: dict[str, str]) -> None:
        self._digests = dict(digests)
