"""Which subscriptions an event may match, found by the constants of their patterns.

Each branch of a query (each combination of UNION's alternatives) is found by one key: the predicate and object of one
of its patterns, or subject and predicate, or the predicate, or ``*`` if no pattern has a constant predicate. An event
has the keys of its triples. A broadcast join by key finds the branches, so the cost of an event does not grow with the
number of subscriptions that have other keys. What remains is compared with all constants that the branch needs.

A candidate may be no match, but each match is a candidate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lamplighter.cloud_sync.fleet.lazy import F, pa
from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, required_patterns
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord
from lamplighter.engine.sparql.algebra import Constant, Part, Pattern, Variable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# `graph` of a branch that has to be in a named graph, whichever.
ANY_NAMED = "*"

_TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
_ADDED = ("subscription", "version", "shape", "constants")


class IndexedSubscription(Protocol):
    """A subscription with its compiled query."""

    @property
    def record(self) -> SubscriptionRecord: ...

    @property
    def query(self) -> FleetQuery: ...


class BranchKey(NamedTuple):
    """What a branch is found by.

    kind: ``po``, ``sp``, ``p`` or ``*``; one, two: the terms in that order, null for those that the kind does not have.
    """

    kind: str
    one: str | None = None
    two: str | None = None


class IndexedBranch(NamedTuple):
    """A branch: its key, and what an event needs besides.

    graph: the graph that the event has to be in, `ANY_NAMED`, or None for any; subjects, predicates, objects: terms
    that have to occur in the event at these positions, without those of the key.
    """

    kind: str
    one: str | None
    two: str | None
    graph: str | None
    subjects: list[str]
    predicates: list[str]
    objects: list[str]


class BranchEntry(NamedTuple):
    """A row of the index. earlier: the branches before this one, so that an event is a candidate once.

    gateways: a regular expression of the whole name, None for all gateways.
    """

    branch: IndexedBranch
    earlier: list[IndexedBranch]
    subscription: str
    version: int
    shape: str
    constants: list[str]
    changes: str
    gateways: str | None


class _Terms(NamedTuple):
    """A pattern with the terms of its constants, None for a variable. graph: as in `IndexedBranch`."""

    s: str | None
    p: str | None
    o: str | None
    graph: str | None


def entries(subscriptions: Iterable[IndexedSubscription]) -> list[BranchEntry]:
    """The rows of the index: one for each branch of each subscription. Needs no Spark."""
    found = [(one, [_terms(branch, one.query) for branch in required_patterns(one.query)]) for one in subscriptions]
    used = Counter(key for _, branches in found for patterns in branches for key in set(_keys(patterns)))
    rows = []
    for one, branches in found:
        indexed = [_index_branch(patterns, used) for patterns in branches]
        for number, branch in enumerate(indexed):
            rows.append(
                BranchEntry(
                    branch=branch,
                    earlier=indexed[:number],
                    subscription=one.record.id,
                    version=one.record.version,
                    shape=one.query.shape,
                    constants=list(one.query.constants),
                    changes=one.record.changes,
                    gateways=gateways_regex(one.record.gateways),
                )
            )
    return rows


def _terms(patterns: Sequence[Pattern], query: FleetQuery) -> list[_Terms]:
    def term(part: Part) -> str | None:
        if isinstance(part, Variable):
            return None
        return query.constants[part.number] if isinstance(part, Constant) else part

    def graph(part: Part | None) -> str | None:
        return None if part is None else term(part) or ANY_NAMED

    return [_Terms(term(one.s), term(one.p), term(one.o), graph(one.graph)) for one in patterns]


def _keys(patterns: Iterable[_Terms]) -> Iterator[BranchKey]:
    for one in patterns:
        if one.p is not None and one.o is not None:
            yield BranchKey("po", one.p, one.o)
        if one.s is not None and one.p is not None:
            yield BranchKey("sp", one.s, one.p)
        if one.p is not None:
            yield BranchKey("p", one.p)


def _index_branch(patterns: Sequence[_Terms], used: Counter[BranchKey]) -> IndexedBranch:
    """The branch by the most selective of its keys."""

    def cost(key: BranchKey) -> tuple[int, int]:
        # Most events have the same few types. Among keys of one kind, one that fewer subscriptions have is likely to be
        # in fewer events: the sensors of a fleet differ more than its properties.
        common = key.kind == "po" and key.one == _TYPE
        return (2 if common else ("po", "sp", "", "p").index(key.kind), used[key])

    key = min(_keys(patterns), key=cost, default=BranchKey("*"))
    known = {"po": ("", key.one, key.two), "sp": (key.one, key.two, ""), "p": ("", key.one, "")}.get(
        key.kind, ("",) * 3
    )
    graphs = {one.graph for one in patterns if one.graph is not None}
    # Patterns in two different graphs match no event; comparing one of them leaves that to the plan.
    graph = min(graphs - {ANY_NAMED}, default=ANY_NAMED) if graphs else None

    def needed_terms(place: int) -> list[str]:
        return sorted({text for one in patterns if (text := one[place]) is not None} - {str(known[place])})

    return IndexedBranch(*key, graph, needed_terms(0), needed_terms(1), needed_terms(2))


def gateways_regex(patterns: Sequence[str]) -> str | None:
    """A regular expression of Java for names that one of the patterns matches; None for no pattern.

    patterns: as `fnmatch.fnmatchcase` reads them.
    """
    return f"^(?:{'|'.join(map(_regex, patterns))})\\z" if patterns else None


def _regex(pattern: str) -> str:
    found, place = [], 0
    while place < len(pattern):
        sign = pattern[place]
        place += 1
        # A bracket that directly follows the opening one, or its !, is a member of the set.
        end = pattern.find("]", place + (2 if pattern[place : place + 1] == "!" else 1)) if sign == "[" else -1
        if end >= 0:
            found.append(_character_class(pattern[place:end]))
            place = end + 1
        else:
            found.append({"*": "(?s:.*)", "?": "(?s:.)"}.get(sign) or _escape(sign))
    return "".join(found)


def _character_class(members: str) -> str:
    """``[seq]`` or ``[!seq]``. An empty range has no members."""
    negated = members.startswith("!")
    members = members[1:] if negated else members
    parts, place = [], 0
    while place < len(members):
        low = members[place]
        if place + 2 < len(members) and members[place + 1] == "-":
            high = members[place + 2]
            place += 3
            if low <= high:
                parts.append(f"{_escape(low)}-{_escape(high)}")
        else:
            place += 1
            parts.append(_escape(low))
    if not parts:
        return "(?s:.)" if negated else "(?!)"
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _escape(sign: str) -> str:
    return sign if re.fullmatch(r"[A-Za-z0-9]", sign) else f"\\x{{{ord(sign):x}}}"


# --- with Spark


def candidates(events: DataFrame, rows: Sequence[BranchEntry]) -> DataFrame:
    """EVENT -> EVENT with `subscription`, `version`, `shape` and `constants`, a row for each event and subscription.

    events: EVENT and whatever other columns, which stay. rows: as `entries` returns them. No shuffle, no state.
    """
    index = _frame(events, rows)
    kinds = {row.branch.kind for row in rows}
    triple = F.col("_triple")
    keys = {
        "po": F.xxhash64(F.lit("po"), triple.p, triple.o),
        "sp": F.xxhash64(F.lit("sp"), triple.s, triple.p),
        "p": F.xxhash64(F.lit("p"), triple.p),
        "*": F.when(F.col("_place") == 0, F.xxhash64(F.lit("*"))),
    }
    by_key = events.select("*", F.posexplode("triples").alias("_place", "_triple")).select(
        "*", F.explode(F.array(*(keys[kind] for kind in sorted(kinds)))).alias("_key")
    )
    branch = F.col("branch")
    # An event may have a key several times. Comparing the terms also removes what has the same hash by chance.
    wanted = (_first(branch) == F.col("_place") + 1) & _has_needed(branch)
    wanted &= (F.col("changes") == "both") | (F.col("changes") == F.col("change"))
    if any(row.gateways is not None for row in rows):
        wanted &= F.col("gateways").isNull() | F.rlike("gw", F.col("gateways"))
    if any(row.earlier for row in rows):  # lambdas have no code generation
        wanted &= ~F.exists("earlier", lambda one: (_first(one) > 0) & _has_needed(one))
    joined = by_key.join(F.broadcast(index), F.col("_key") == F.col("_index_key"))
    return joined.where(wanted).select(*events.columns, *_ADDED)


def _frame(events: DataFrame, rows: Sequence[BranchEntry]) -> DataFrame:
    # Of an Arrow table Spark makes a local relation. A list of rows would start Python workers.
    frame = events.sparkSession.createDataFrame(_arrow_table(rows))
    # Null parts do not change the hash.
    return frame.withColumn("_index_key", F.xxhash64("branch.kind", "branch.one", "branch.two"))


def _arrow_table(rows: Sequence[BranchEntry]) -> Any:
    text, texts = pa.string(), pa.list_(pa.string())
    several = ("subjects", "predicates", "objects")
    branch = pa.struct([(name, texts if name in several else text) for name in IndexedBranch._fields])
    columns = {"branch": branch, "earlier": pa.list_(branch), "version": pa.int32(), "constants": texts}
    schema = pa.schema([(name, columns.get(name, text)) for name in BranchEntry._fields])
    members = [
        {**row._asdict(), "branch": row.branch._asdict(), "earlier": [one._asdict() for one in row.earlier]}
        for row in rows
    ]
    return pa.Table.from_pylist(members, schema)


def _first(branch: Column) -> Column:
    """The place of the first triple with the branch's key, from 1; 0 if there is none."""
    triples = F.col("triples")
    one, two = branch.one, branch.two
    pairs = {"po": (triples.p.alias("a"), triples.o.alias("b")), "sp": (triples.s.alias("a"), triples.p.alias("b"))}
    found = F.when(branch.kind == "*", 1).when(branch.kind == "p", F.array_position(triples.p, one))
    for kind, terms in pairs.items():
        pair = F.struct(one.alias("a"), two.alias("b"))
        found = found.when(branch.kind == kind, F.array_position(F.arrays_zip(*terms), pair))
    return found.otherwise(0)


def _has_needed(branch: Column) -> Column:
    graph = F.col("graph")
    found = branch.graph.isNull() | F.when(branch.graph == ANY_NAMED, graph.isNotNull()).otherwise(
        graph.isNotNull() & (graph == branch.graph)
    )
    for needed, terms in (("objects", "o"), ("subjects", "s"), ("predicates", "p")):
        all_there = F.size(F.array_except(branch[needed], F.col(f"triples.{terms}"))) == 0
        found &= (F.size(branch[needed]) == 0) | all_there
    return found
