"""SPARQL update and store -> quad delta, without executing the update on the store.

The WHERE of each operation is evaluated once, and its templates are instantiated from the solutions. So NOW(), RAND()
and new blank nodes have one value, and the same delta is logged, applied and matched. The delta removes the quads that
are deleted, not inserted again, and present; it adds the quads that are inserted and absent (SPARQL 1.1 Update, 3.1.3:
deletes before inserts).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from lamplighter.engine.access import FULL, Access, Dataset
from lamplighter.engine.delta import DELTA_QUADS_MAX, QuadDelta, compose
from lamplighter.engine.errors import (
    AccessDeniedError,
    LimitExceededError,
    MalformedRequestError,
    StoreError,
)
from lamplighter.engine.slices import LONG, Slices, distinct, sliced
from lamplighter.engine.sparql.clock_function import TimedText, at
from lamplighter.engine.sparql.plain_updates import VARIABLE, plain_data, plain_modification
from lamplighter.engine.sparql.requests import (
    GraphOperation,
    ModifyOperation,
    Operation,
    QuadData,
    QuadPattern,
    canonical,
    parse_update,
    template,
)
from lamplighter.engine.sparql.skeletons import Lifted
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.term_bounds import check_quads, check_term
from lamplighter.engine.terms import Binding, Quad, Term, is_blank, is_iri

# Beginnings of what is another term in each solution: variables, new blank nodes, triple terms.
_CHANGING = (f"<{VARIABLE}", "_:", "<<(")
_PLACEHOLDER = re.compile(rf"<{re.escape(VARIABLE)}([^>]*)>|_:[^\s<>]+")


@dataclass(frozen=True)
class UsingGraphs:
    """The protocol's using-graph-uri and using-named-graph-uri (SPARQL 1.1 Protocol, 2.2.3)."""

    default: tuple[Term, ...] = ()
    named: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.default or self.named)


NO_GRAPHS = UsingGraphs()


def quad_delta(
    operations: Sequence[Resolved],
    store: QuadStore,
    *,
    now: datetime,
    new_blank_node: Callable[[], Term],
    using: UsingGraphs = NO_GRAPHS,
    access: Access = FULL,
    quads_max: int = DELTA_QUADS_MAX,
    slices: Slices = Slices(),  # noqa: B008 - it has no state
) -> QuadDelta:
    """The net effect that the operations of an update request would have on the store. The store is unchanged.

    now: the value of NOW() and of the clock function in the whole request, UTC. access: the client's permissions; write
    permission is checked for the quads that the operations name, before any lookup. quads_max: quads that the templates
    of all operations may make together.
    Raises MalformedRequestError (graphs named both in the text and by the protocol), AccessDeniedError,
    LimitExceededError and StoreError (an operation fails, such as CREATE of an existing graph).
    """
    # SPARQL 1.1 Protocol, 2.2.3: an error, not a choice between the two.
    if using and any(isinstance(operation, Modification) and operation.chooses for operation in operations):
        raise MalformedRequestError(
            "using-graph-uri and using-named-graph-uri cannot go with USING, USING NAMED or WITH in the text"
        )
    done: list[QuadDelta] = []
    context = _Context(store, now, new_blank_node, using, access, quads_max, quads_max, slices)
    try:
        for operation in operations:
            if done:
                store.stage(done[-1])  # only later operations of the request may see it
            done.append(_operation_delta(operation, context))
        # The dataset is as before: only the caller commits, when the record is written.
        store.unstage()
    except BaseException:
        store.take_back()
        raise
    return compose(done, slices)


class Modification(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """DELETE/INSERT WHERE with its templates.

    variables: those of both templates, sorted; query: the SELECT query for the solutions, with these variables, once
    `at` has put in the time.
    chooses: whether the text names the dataset, by WITH or USING. with_graph, default_graphs, named_graphs: the graphs
    it names, else None.
    """

    deletes: Sequence[QuadPattern]
    inserts: Sequence[QuadPattern]
    variables: Sequence[str]
    query: TimedText
    chooses: bool
    with_graph: Term | None
    default_graphs: tuple[Term | None, ...] | None
    named_graphs: tuple[Term, ...] | None


# An operation with full names and canonical terms. It depends neither on the dataset nor on the time.
Resolved = QuadData | Modification | GraphOperation


def resolved(text: str) -> list[Resolved]:
    """The operations of a request. Raises RequestSyntaxError, UnsupportedRequestError, LimitExceededError."""
    return [_resolved(operation) for operation in parse_update(text)]


def plain_resolved(text: str, lifted: Lifted | None) -> list[Resolved] | None:
    """The operation of a text of usual spelling, None for any other. A WHERE is checked when it is evaluated."""
    data = plain_data(text, lifted)
    if data is not None:
        return [QuadData(*data)]
    found = plain_modification(text, (lifted.skeleton, lifted.raws) if lifted else None)
    if found is None:
        return None
    with_graph = found.with_graph
    return [
        Modification(
            found.deletes,
            found.inserts,
            found.variables,
            (_select(found.prologue, found.variables, found.where),),
            with_graph is not None,
            with_graph,
            None if with_graph is None else (with_graph,),
            None,
        )
    ]


def _resolved(operation: Operation) -> Resolved:
    match operation:
        case ModifyOperation():
            prologue = operation.prologue
            deletes, delete_variables = template(prologue, operation.delete) if operation.delete else ((), ())
            inserts, insert_variables = template(prologue, operation.insert) if operation.insert else ((), ())
            variables = sorted({*delete_variables, *insert_variables})
            return Modification(
                deletes,
                inserts,
                variables,
                _solutions_query(operation, variables),
                bool(operation.with_graph or operation.using or operation.using_named),
                *_chosen(operation),
            )
        case _:
            return operation


@dataclass
class _Context:
    """What the operations of a request share. left: the quads that their templates may still make."""

    store: QuadStore
    now: datetime
    new_blank_node: Callable[[], Term]
    using: UsingGraphs
    access: Access
    quads_max: int
    left: int
    slices: Slices


def _operation_delta(operation: Resolved, context: _Context) -> QuadDelta:
    match operation:
        case QuadData(delete, quads, graphs):
            return _delta(context, quads, (), ()) if delete else _delta(context, (), quads, graphs)
        case Modification():
            return _modify_delta(operation, context)
        case GraphOperation():
            return _graph_delta(operation, context)


def check_access(operations: Iterable[Resolved], access: Access) -> None:
    """Checks the permissions for the graphs that operations name, without a lookup.

    Graphs that variables stand for are checked when the operations are evaluated. Raises AccessDeniedError, and
    RequestSyntaxError for a graph name that is no IRI.
    """
    # Before anything else: an update without quads would pass all other checks.
    if access.write.names == frozenset():
        raise AccessDeniedError("this client may not write any graph; the gateway's operator can permit it")
    for operation in operations:
        match operation:
            case QuadData(_, quads, graphs):
                access.write.check((*graphs, *(quad.g for quad in quads)), "write")
            case Modification():
                access.read.check((*(operation.default_graphs or ()), *(operation.named_graphs or ())), "read")
                found = [quad.g for quad in (*operation.deletes, *operation.inserts)]
                # WITH names the graph of quads that name none.
                written = [operation.with_graph if graph is None else graph for graph in found]
                access.write.check(
                    (graph for graph in written if not (graph or "").startswith(f"<{VARIABLE}")), "write"
                )
            case GraphOperation():
                _check_graphs(operation, access)


def too_many_quads(quads_max: int) -> LimitExceededError:
    """The error for templates that make more than quads_max quads."""
    return LimitExceededError(
        f"the update deletes and inserts more than limits.delta_quads_max = {quads_max} quads by its templates; "
        "restrict its WHERE, or send it in parts"
    )


def _delta(context: _Context, deletes: Iterable[Quad], inserts: Iterable[Quad], graphs: Iterable[Term]) -> QuadDelta:
    """The net delta of one operation that deletes and inserts these quads. graphs: the graphs that it names."""
    store, write, slices = context.store, context.access.write, context.slices
    for name in graphs:
        check_term(name, store.term_bytes_max)
    # Each quad is checked as it is made, since all of them together may take far more memory than allowed.
    asked_inserts, asked_deletes = (
        distinct(check_quads(quads, store.term_bytes_max), slices) if quads else {} for quads in (inserts, deletes)
    )
    if not write.every:  # before the lookups, so that a refusal reveals nothing about the dataset
        write.check((*graphs, *(quad.g for quad in asked_inserts), *(quad.g for quad in asked_deletes)), "write")
    removed: list[Quad] = []
    added: list[Quad] = []
    kept: list[Quad] = []
    # SPARQL 1.1 Update, 3.1.3: the deletion comes first, so what is inserted too stays.
    unwanted = list(asked_deletes)
    if asked_inserts:
        unwanted = [quad for some in sliced(unwanted, slices) for quad in some if quad not in asked_inserts]
    left = len(asked_inserts)
    for some in sliced([*asked_inserts, *unwanted], slices):
        for quad, there in zip(some, store.contains(some), strict=True):
            if left > 0:
                left -= 1
                (kept if there else added).append(quad)
            elif there:
                removed.append(quad)
    names = dict.fromkeys([*graphs, *(quad.g for quad in added if quad.g is not None)])
    return QuadDelta(
        removed=tuple(removed),
        added=tuple(added),
        kept=tuple(kept),
        created=tuple(name for name in names if not store.has_graph(name)),
    )


# --- DELETE/INSERT WHERE ----------------------------------------------------------------------------


def _modify_delta(operation: Modification, context: _Context) -> QuadDelta:
    store, using, read = context.store, context.using, context.access.read
    deletes, inserts, variables = operation.deletes, operation.inserts, operation.variables
    with_graph = operation.with_graph
    default_graphs: tuple[Term | None, ...] | None = operation.default_graphs
    named_graphs = operation.named_graphs
    if using:
        default_graphs, named_graphs = using.default, using.named
    if not read.every:
        read.check((*(default_graphs or ()), *(named_graphs or ())), "read")
        default_graphs, named_graphs = Dataset(default_graphs, named_graphs, read).graphs(store.has_graph)
    quads_each = len(deletes) + len(inserts)
    # All operations of a request share the limit.
    solutions_max = context.left // max(1, quads_each)
    # One more than allowed, so that a large join is stopped early.
    text = f"{at(operation.query, context.now)} LIMIT {solutions_max + 1}"
    if len(store) > LONG:
        context.slices.begin(len(store))
    solutions = store.select(text, default_graphs, named_graphs)
    if len(solutions) > solutions_max:
        raise too_many_quads(context.quads_max)
    context.left -= quads_each * len(solutions)
    rows: Iterable[Binding] = solutions
    # Anywhere in a part: it may be inside of a triple term. A literal with these signs only loses the shortcut.
    if not any("_:" in part for pattern in inserts for part in pattern if part is not None):
        # Equal rows make equal quads, but for new nodes, of which each solution has its own.
        rows = distinct((row[: len(variables)] for row in solutions), context.slices)
    return _delta(
        context,
        _instances(deletes, variables, rows, with_graph, context.new_blank_node),
        _instances(inserts, variables, rows, with_graph, context.new_blank_node),
        (),
    )


def _chosen(
    operation: ModifyOperation,
) -> tuple[Term | None, tuple[Term | None, ...] | None, tuple[Term, ...] | None]:
    """(graph of WITH, default graphs, named graphs of the WHERE), each None if the text names none."""
    prologue = operation.prologue
    with_graph = None if operation.with_graph is None else canonical(prologue, operation.with_graph)
    if operation.using or operation.using_named:
        default, named = (
            tuple(canonical(prologue, name) for name in names) for names in (operation.using, operation.using_named)
        )
        return with_graph, default, named
    # WITH is also the default graph of the WHERE, unless USING names another one (SPARQL 1.1 Update, 3.1.3).
    return with_graph, None if with_graph is None else (with_graph,), None


def _solutions_query(operation: ModifyOperation, variables: Sequence[str]) -> TimedText:
    """The SELECT query for the solutions of an operation's WHERE, with the variables of its templates."""
    first, *rest = operation.where
    return (_select(operation.prologue, variables, first), *rest)


def _select(prologue: str, variables: Sequence[str], where: str) -> str:
    # Without variables the number of solutions still matters: each has blank nodes of its own.
    projection = " ".join([f"?{name}" for name in variables]) or "*"
    return f"{prologue} SELECT {projection} WHERE {where}"


def _instances(
    patterns: Sequence[QuadPattern],
    variables: Sequence[str],
    solutions: Iterable[Binding],
    with_graph: Term | None,
    new_blank_node: Callable[[], Term],
) -> Iterable[Quad]:
    """The quads of a template for all solutions, without those that have an unbound or misplaced term."""
    # Most parts of a template are constants, which the parser has checked: only the others are looked at for each row.
    templates = [
        (
            pattern if pattern.g is not None or with_graph is None else pattern._replace(g=with_graph),
            [place for place, part in enumerate(pattern) if part is not None and part.startswith(_CHANGING)],
        )
        for pattern in patterns
    ]
    for row in solutions:
        values: dict[str, Term | None] = dict(zip(variables, row, strict=False))
        fresh: dict[Term, Term] = {}
        for pattern, places in templates:
            if not places:
                yield pattern
                continue
            terms = list(pattern)
            for place in places:
                terms[place] = _instance(terms[place] or "", values, fresh, new_blank_node)
            s, p, o, g = terms
            # An incomplete or impossible triple is left out, the others are made (SPARQL 1.1 Update, 3.1.3).
            if s is None or p is None or o is None or (g is None and pattern.g is not None):
                continue
            if not is_iri(p) or not (is_iri(s) or is_blank(s)) or (g is not None and not (is_iri(g) or is_blank(g))):
                continue
            yield Quad(s, p, o, g)


def _instance(
    part: Term, values: dict[str, Term | None], fresh: dict[Term, Term], new_blank_node: Callable[[], Term]
) -> Term | None:
    if part.startswith(_CHANGING[0]):
        return values.get(part[len(VARIABLE) + 1 : -1])
    if is_blank(part):
        if part not in fresh:
            fresh[part] = new_blank_node()
        return fresh[part]
    if part.startswith("<<("):
        unbound = False

        def substitute(found: re.Match[str]) -> str:
            nonlocal unbound
            term = _instance(found.group(), values, fresh, new_blank_node)
            unbound = unbound or term is None
            return term or ""

        # A triple term of a template is text with variables in it, at any depth.
        text = _PLACEHOLDER.sub(substitute, part)
        return None if unbound or '<<( "' in text else text
    return part


# --- graph management -------------------------------------------------------------------------------


def _graph_delta(operation: GraphOperation, context: _Context) -> QuadDelta:
    store, verb = context.store, operation.verb
    target, source = _check_graphs(operation, context.access)
    check_term(target or "", store.term_bytes_max)
    # The answer must not reveal whether a graph exists that the client may not read.
    silent = operation.silent or target not in context.access.read
    if verb == "CREATE":
        assert isinstance(target, str)
        if store.has_graph(target):
            if silent:
                return QuadDelta()
            raise StoreError(f"the graph {target} already exists; use CREATE SILENT to ignore that")
        return QuadDelta(created=(target,))
    if verb in ("CLEAR", "DROP"):
        return _clear_delta(context, operation.target.upper(), target, drop=verb == "DROP", silent=silent)
    if source == target:
        return QuadDelta()
    parts = [] if verb == "ADD" else [_clear_delta(context, "", target, drop=True, silent=True)]
    moved: list[Quad] = []
    for some in sliced(list(distinct(store.quads(source), context.slices)), context.slices):
        moved += [Quad(s, p, o, target) for s, p, o, _ in some]
    if parts:
        # The target is empty at this point, so all quads are new, and the graph exists again if there are any.
        created = (target,) if moved and target is not None else ()
        parts.append(QuadDelta(added=tuple(moved), created=created))
    else:
        parts.append(_delta(context, (), moved, ()))
    if verb == "MOVE":
        parts.append(_clear_delta(context, "", source, drop=True, silent=operation.silent))
    return compose(parts, context.slices)


def _check_graphs(operation: GraphOperation, access: Access) -> tuple[Term | None, Term | None]:
    """(target, source), after the check that the client may write and read them. Raises AccessDeniedError."""
    target = _graph(operation.prologue, operation.target)
    source = _graph(operation.prologue, operation.source) if operation.source else None
    if operation.target.upper() in ("NAMED", "ALL") and access.write.names is not None:
        raise AccessDeniedError(
            f"this client may not write every graph, so it may not {operation.verb} {operation.target.upper()}; "
            "name the graph"
        )
    access.write.check((target,), "write")
    if operation.source:
        access.read.check((source,), "read")
        if operation.verb == "MOVE":
            access.write.check((source,), "write")
    return target, source


def _graph(prologue: str, reference: str) -> Term | None:
    """A graph's full name; None for the default graph, and for the keywords NAMED and ALL."""
    return None if reference.upper() in ("DEFAULT", "NAMED", "ALL") else canonical(prologue, reference)


def _clear_delta(context: _Context, keyword: str, graph: Term | None, *, drop: bool, silent: bool) -> QuadDelta:
    """CLEAR or DROP of one graph, or of the graphs of a keyword (DEFAULT, NAMED, ALL)."""
    store = context.store
    if keyword in ("NAMED", "ALL"):
        graphs: list[Term | None] = [name for name in store.graphs() if name in context.access.write]
        if keyword == "ALL":
            graphs.append(None)
    else:
        graphs = [graph]
        if graph is not None and not store.has_graph(graph):
            if silent:
                return QuadDelta()
            raise StoreError(f"the graph {graph} does not exist; use SILENT to ignore that")
    if len(graphs) > LONG:
        context.slices.begin(len(graphs))
    removed: list[Quad] = []
    for some in sliced(graphs, context.slices):
        removed += [quad for name in some for quad in distinct(store.quads(name), context.slices)]
    return QuadDelta(
        removed=tuple(removed),
        dropped=tuple(name for name in graphs if name is not None) if drop else (),
    )
