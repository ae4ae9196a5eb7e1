"""SPARQL request text -> checked query or operations.

Oxigraph's parser checks every text, or the first one of its shape. Checked updates are cut into operations by their
tokens, so that each WHERE is evaluated once and its templates are instantiated from the solutions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import pyoxigraph as ox

from lamplighter.engine.access import Dataset, Graphs
from lamplighter.engine.errors import LimitExceededError, RequestSyntaxError, UnsupportedRequestError
from lamplighter.engine.sparql.clock_function import FUNCTIONS, TimedText, cut_at_clock
from lamplighter.engine.sparql.lexer import Token, line_and_column, tokens, with_other_variables
from lamplighter.engine.sparql.limits import outside_data
from lamplighter.engine.sparql.plain_updates import VARIABLE, plain_data
from lamplighter.engine.sparql.projections import check_having, in_text_order
from lamplighter.engine.sparql.syntax_errors import readable
from lamplighter.engine.store.quad_store import quad_from_native
from lamplighter.engine.terms import Quad, Term

# Characters of the longest request text. Larger data is sent in parts, or loaded by `Engine.load`.
REQUEST_BYTES_MAX = 16 * 1024 * 1024

_UNREPEATABLE = ("NOW", "RAND", "UUID", "STRUUID", "BNODE")
_PROLOGUE_WORDS = {"PREFIX": 3, "BASE": 2, "VERSION": 2}  # tokens of each declaration
_EMPTY = ox.Store()
_DEFAULT_GRAPH: list[ox.NamedNode | ox.BlankNode | ox.DefaultGraph] = [ox.DefaultGraph()]
_PLACE = re.compile(r"^error at (\d+):(\d+): (.*)$", re.S)


# --- syntax -----------------------------------------------------------------------------------------


def _syntax_error(error: SyntaxError, text: str, shift_at: int = 0, shift: int = 0) -> RequestSyntaxError:
    """Oxigraph's error, with the position in the original text. shift: characters inserted at shift_at."""
    found = _PLACE.match(str(error.msg))
    if not found:
        return RequestSyntaxError(str(error.msg))
    line, column, message = int(found[1]), int(found[2]), found[3]
    shift_line, shift_column = line_and_column(text, shift_at)
    if line == shift_line and column > shift_column:
        column = max(shift_column, column - shift)
    return RequestSyntaxError(*readable(message, text, line, column))


def _check_length(text: str) -> None:
    if len(text) > REQUEST_BYTES_MAX:
        raise UnsupportedRequestError(f"a request text has {REQUEST_BYTES_MAX} characters at most; send it in parts")


def _check_text(text: str) -> list[Token]:
    """The tokens of a text that can be parsed safely, without those inside of data. Raises RequestError, for a HAVING
    that never holds, too."""
    _check_length(text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line, column = line_and_column(text, error.start)
        raise RequestSyntaxError("half of a surrogate pair is not a character", line, column) from error
    found = list(outside_data(_readable(text)))
    check_having(text, found)
    return found


def _readable(text: str) -> Iterator[Token]:
    """The tokens of a text. Raises RequestError at the first one that is refused."""
    named: Token | None = None  # a name that hides SERVICE if a brace follows
    before: Token | None = None
    for token in tokens(text, each_of_data=False):
        # `SERVICEex:a {` is a name to the lexer, and SERVICE to Oxigraph.
        if named is not None and token.text == "{":
            raise _asks_elsewhere(text, named)
        named = None
        if token.kind == "other":
            line, column = line_and_column(text, token.start)
            raise RequestSyntaxError(_UNREADABLE.get(token.text, f"{token.text!r} does not belong here"), line, column)
        # Oxigraph accepts keywords without a space, as in `trueSERVICESILENTex:a {`.
        if token.kind == "word" and "SERVICE" in token.text.upper():
            raise _asks_elsewhere(text, token)
        if (
            token.kind == "name"
            and "SERVICE" in token.text.partition(":")[0].upper()
            and not (before is not None and before.is_word("GRAPH", "FROM", "NAMED"))
        ):
            named = token
        yield token
        before = token


def _asks_elsewhere(text: str, token: Token) -> UnsupportedRequestError:
    line, column = line_and_column(text, token.start)
    return UnsupportedRequestError(
        f"line {line}, column {column}: SERVICE is refused: the gateway queries no other endpoint, "
        "since an answer from elsewhere could not be kept true; query the endpoint yourself and send an update"
    )


_UNREADABLE = {
    '"': "a string that begins here is not closed",
    "'": "a string that begins here is not closed",
    "<": "this < may compare or begin an IRI; put a space after it, or write the IRI with a prefix",
}


# --- queries ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryOutline:
    """A query. form: SELECT, ASK, CONSTRUCT or DESCRIBE.

    unrepeatable: the first function in it whose value differs on each evaluation, if any. columns: the variables of a
    SELECT, those of ``SELECT *`` in the order of the text.
    """

    text: str
    form: str
    unrepeatable: str | None
    columns: tuple[str, ...] = ()


def query_outline(text: str) -> QueryOutline:
    """The outline of a query without parsing it; another process may parse it. columns stays empty.

    Raises LimitExceededError, UnsupportedRequestError (SERVICE), and RequestSyntaxError for invalid characters.
    """
    found = _check_text(text)
    forms = (token.text.upper() for token in found if token.is_word("SELECT", "ASK", "CONSTRUCT", "DESCRIBE"))
    # By the tokens: a function in a string or a comment is none.
    unrepeatable = (
        token.text.upper() for token, after in pairwise(found) if token.is_word(*_UNREPEATABLE) and after.text == "("
    )
    return QueryOutline(text, next(forms, "SELECT"), next(unrepeatable, None))


def parse_query(text: str) -> QueryOutline:
    """Checks a query. Raises RequestSyntaxError, UnsupportedRequestError, LimitExceededError.

    The store's planner may take seconds for a short text, so it does not see this one. The store only parses it, and
    then plans it with VALUES that have no row, which leave nothing to be planned.
    """
    query = query_outline(text)
    try:
        # Both choices of a default graph exclude each other: an error behind the parser and before the planner.
        _EMPTY.query(text, custom_functions=FUNCTIONS, use_default_graph_as_union=True, default_graph=_DEFAULT_GRAPH)
    except SyntaxError as error:
        raise _syntax_error(error, text) from error
    except ValueError:
        pass  # it is parsed, and both choices of a default graph exclude each other
    answer = _EMPTY.query(_without_solutions(text), custom_functions=FUNCTIONS)
    kinds = {"SELECT": ox.QuerySolutions, "ASK": ox.QueryBoolean}
    if not isinstance(answer, kinds.get(query.form, ox.QueryTriples)):
        raise RequestSyntaxError(f"{_GLUED}: {text[:100]}")  # `DESCRIBEe:a`
    if isinstance(answer, ox.QuerySolutions):
        return replace(query, columns=in_text_order(text, [variable.value for variable in answer.variables]))
    return query


def _without_solutions(text: str) -> str:
    """A checked query, with VALUES at its end that have no row."""
    depth, last = 0, None
    for token in tokens(text):
        if token.kind == "sign":
            depth += {"{": 1, "}": -1}.get(token.text, 0)
        # The one behind the query; those within groups stay.
        if not depth and token.is_word("VALUES"):
            last = token
    if last is None:
        return f"{text}\nVALUES () {{}}"
    return f"{text[: text.index('{', last.end) + 1]}}}"


def subscribable(text: str) -> QueryOutline:
    """Checks a query for a subscription. Raises RequestError with the reason if it cannot be one."""
    query = parse_query(text)
    if query.form == "DESCRIBE":
        raise UnsupportedRequestError(
            "a subscription is a SELECT, ASK or CONSTRUCT query, not DESCRIBE; CONSTRUCT the triples to be notified of"
        )
    if query.unrepeatable:
        raise UnsupportedRequestError(
            f"{query.unrepeatable}() differs on each evaluation, so a subscription with it could not be kept true; "
            "let the update write the value and select that"
        )
    return query


def declarations_and_body(text: str) -> tuple[str, list[Token]]:
    """The text of a query's declarations, and the tokens after them."""
    declarations, body = _query_segment(tokens(text))
    return _declarations_text(text, declarations), body


def _declarations_text(text: str, declarations: Sequence[Token]) -> str:
    return text[: declarations[-1].end] if declarations else ""


def chosen_graphs(text: str) -> tuple[tuple[Term, ...], tuple[Term, ...]] | None:
    """The graphs that a query chooses by FROM and by FROM NAMED, None if it has neither. Raises RequestSyntaxError."""
    declarations, body = _query_segment(outside_data(tokens(text)))
    prologue = _declarations_text(text, declarations)
    names: dict[bool, dict[str, None]] = {False: {}, True: {}}  # by NAMED
    for index, token in enumerate(body):
        if token.is_word("FROM"):
            named = index + 1 < len(body) and body[index + 1].is_word("NAMED")
            names[named]["".join(token.text for token in body[index + 1 + named : index + 2 + named])] = None
    if not names[False] and not names[True]:
        return None
    try:
        default, named_ones = (
            tuple(quad.o for quad in data_quads(prologue, f"{{ <urn:x> <urn:x> {', '.join(raws)} }}")[0])
            if raws
            else ()
            for raws in names.values()
        )
    except SyntaxError as error:
        raise RequestSyntaxError("FROM must be followed by the IRI of a graph") from error
    return default, named_ones


def dataset_of(
    text: str,
    default_graphs: Sequence[Term] | None,
    named_graphs: Sequence[Term] | None,
    visible: Graphs,
    verb: str,
) -> Dataset:
    """The dataset of a client's query (SPARQL 1.1 Query, 13). visible: the graphs that the client may use.

    default_graphs, named_graphs: the graphs chosen by the protocol, which take precedence over those of the text. verb:
    the denied action, for the message. Raises AccessDeniedError for a chosen graph that is not visible,
    RequestSyntaxError.
    """
    if visible.every:
        return Dataset(
            None if default_graphs is None else tuple(default_graphs),
            None if named_graphs is None else tuple(named_graphs),
        )
    default, named = chosen_graphs(text) or (None, None)
    visible.check((*(default or ()), *(named or ()), *(default_graphs or ()), *(named_graphs or ())), verb)
    return Dataset(
        default if default_graphs is None else tuple(default_graphs),
        named if named_graphs is None else tuple(named_graphs),
        visible,
    )


# --- updates ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuadData:
    """INSERT DATA or DELETE DATA. quads: in canonical terms; graphs: the graphs that the text names."""

    delete: bool
    quads: Sequence[Quad]
    graphs: Sequence[Term]


@dataclass(frozen=True)
class ModifyOperation:
    """DELETE/INSERT WHERE in all its forms. delete, insert, where: blocks with their braces.

    with_graph, using, using_named: graph names as written, to be resolved with the prologue.
    """

    prologue: str
    delete: str | None
    insert: str | None
    where: TimedText
    with_graph: str | None = None
    using: tuple[str, ...] = ()
    using_named: tuple[str, ...] = ()


class GraphOperation(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """CLEAR, DROP, CREATE (target only), COPY, MOVE, ADD (source and target).

    source, target: DEFAULT, NAMED, ALL, or a graph's name as written.
    """

    prologue: str
    verb: str
    silent: bool
    target: str
    source: str = ""


Operation = QuadData | ModifyOperation | GraphOperation


def parse_update(text: str) -> list[Operation]:
    """The operations of an update request, in order.

    Raises RequestSyntaxError with the position, UnsupportedRequestError (SERVICE, LOAD), LimitExceededError.
    """
    _check_length(text)
    data = plain_data(text)
    if data is not None:
        return [QuadData(*data)]
    found = _check_text(text)
    segments = list(_segments(found))
    if not _only_data(text, segments):
        _check_update(text, segments)
        return _operations(text, segments)
    try:
        return _operations(text, segments)
    except RequestSyntaxError:
        _check_update(text, segments)  # raises the error with its position
        raise


def _only_data(text: str, segments: Sequence[tuple[list[Token], list[Token]]]) -> bool:
    """Whether reading its data checks all of a request: no blank nodes are deleted, or in two operations."""
    if not all(_begins_data(body) for _, body in segments):
        return False
    return (len(segments) == 1 and segments[0][1][0].is_word("INSERT")) or not _MAY_BE_BLANK.search(text)


def _begins_data(body: Sequence[Token]) -> bool:
    """Whether an operation begins as INSERT DATA or DELETE DATA: what is read in its place is INSERT DATA."""
    return len(body) > 2 and body[0].is_word("INSERT", "DELETE") and body[1].is_word("DATA") and body[2].text == "{"


# Signs of blank nodes, lists and reifiers.
_MAY_BE_BLANK = re.compile(r"_:|[\[(~|]|<<")


def _operations(text: str, segments: Sequence[tuple[list[Token], list[Token]]]) -> list[Operation]:
    """The operations of a request whose syntax is checked, or that has only data."""
    operations: list[Operation] = []
    prologue, repeated = "", 0
    for declarations, body in segments:
        if declarations:
            prologue += text[declarations[0].start : declarations[-1].end] + "\n"
        if body:
            repeated += len(prologue)
            if repeated > REQUEST_BYTES_MAX:  # each operation is parsed together with its declarations
                raise LimitExceededError(
                    f"the declarations before all operations have more than {REQUEST_BYTES_MAX} characters together; "
                    "declare fewer prefixes or send the operations in several requests"
                )
            operations.append(_operation(text, prologue, body))
    return operations


def _query_segment(found: Iterable[Token]) -> tuple[list[Token], list[Token]]:
    """(declarations, rest) of a query. Both are empty for a text without tokens."""
    return next(_segments(list(found), end=""), ([], []))


def _segments(found: Sequence[Token], end: str = ";") -> Iterator[tuple[list[Token], list[Token]]]:
    """(declarations, operation) of each part. A part ends with the sign end outside of braces, or with the text."""
    position = 0
    while position < len(found):
        start = position
        while position < len(found) and found[position].text.upper() in _PROLOGUE_WORDS:
            position += _PROLOGUE_WORDS[found[position].text.upper()]
        declarations, depth = list(found[start:position]), 0
        start = position
        while position < len(found) and (depth or found[position].text != end):
            depth += {"{": 1, "}": -1}.get(found[position].text, 0)
            position += 1
        yield declarations, list(found[start:position])
        position += 1


def _check_update(text: str, segments: Sequence[tuple[list[Token], list[Token]]]) -> None:
    """Parses an update by Oxigraph without executing it: an inserted first operation fails before all others.

    SPARQL 1.1 allows declarations after a semicolon (production 29), but Oxigraph 0.5 does not. They are moved to the
    front for the check, and replaced by spaces. Raises RequestSyntaxError.
    """
    first = next((body[0] for _, body in segments if body), None)
    if first is None:
        try:
            ox.Store().update(text)
        except SyntaxError as error:
            raise _syntax_error(error, text, len(text), 0) from error
        return
    parts: list[str] = []  # the text after the insertion
    moved: list[str] = []
    position = first.start
    seen_operation = False
    for declarations, body in segments:
        if seen_operation and declarations:
            start, end = declarations[0].start, declarations[-1].end
            moved += [token.text for token in declarations]
            # Spaces of the same length, so that lines and columns of errors stay those of the text.
            parts += [text[position:start], re.sub(r"[^\n]", " ", text[start:end])]
            position = end
        seen_operation = seen_operation or bool(body)
    # The graph does not exist, so the first operation fails, when all is parsed and nothing done.
    put_in = f"{' '.join(moved)} DROP GRAPH <urn:x-lamplighter:parse-only>; "
    try:
        ox.Store().update("".join([text[: first.start], put_in, *parts, text[position:]]))
    except SyntaxError as error:
        raise _syntax_error(error, text, first.start, len(put_in)) from error
    except RuntimeError:
        return
    raise AssertionError("the inserted operation did not fail")


def _operation(text: str, prologue: str, body: Sequence[Token]) -> Operation:
    """One operation that the parser has accepted, given its tokens."""
    words = [token.text.upper() for token in body]
    # A graph that could not be loaded: SILENT makes it an operation without effect.
    if words[0] == "LOAD" and words[1] == "SILENT":
        return QuadData(False, (), ())  # LOAD SILENT may fail without an error
    if words[0] == "LOAD":
        line, column = line_and_column(text, body[0].start)
        raise UnsupportedRequestError(
            f"line {line}, column {column}: LOAD is refused: the gateway does not fetch addresses for clients; "
            "fetch the document yourself and send it as INSERT DATA"
        )
    if words[0] in ("CLEAR", "DROP", "CREATE", "COPY", "MOVE", "ADD"):
        return _graph_operation(prologue, body, words)
    if len(words) < 2:
        raise _glued_error(text, body[0])
    if words[1] == "DATA":
        return QuadData(words[0] == "DELETE", *data_quads(prologue, text[body[2].start : body[-1].end]))
    if words[1] == "WHERE":
        block = text[body[2].start : body[-1].end]
        return ModifyOperation(prologue, delete=block, insert=None, where=(_without_signs(text, body[2:]),))
    with_graph, delete, insert = None, None, None
    using: list[str] = []
    using_named: list[str] = []
    position = 0
    while words[position] != "WHERE" and words[position] != "{":
        if words[position] == "WITH":
            with_graph = body[position + 1].text
            position += 2
        elif words[position] == "USING":
            named = words[position + 1] == "NAMED"
            position += 2 if named else 1
            (using_named if named else using).append(body[position].text)
            position += 1
        elif words[position] not in ("DELETE", "INSERT"):
            raise _glued_error(text, body[position])
        else:
            end = _block_end(body, position + 1)
            block = text[body[position + 1].start : body[end].end]
            if words[position] == "DELETE":
                delete = block
            else:
                insert = block
            position = end + 1
    if words[position] == "WHERE":
        position += 1
    where = cut_at_clock(text, prologue, body[position:], now=True)
    return ModifyOperation(prologue, delete, insert, where, with_graph, tuple(using), tuple(using_named))


def _glued_error(text: str, token: Token) -> RequestSyntaxError:
    line, column = line_and_column(text, token.start)
    return RequestSyntaxError(f"{_GLUED}: {token.text[:100]}", line, column)


def _without_signs(text: str, body: Sequence[Token]) -> str:
    """The text of quad patterns with signed numbers as literals: in a WHERE, ``:p +2`` is a path and a number."""
    parts, position = [], body[0].start
    for token, following in pairwise(body):
        if token.text in ("+", "-") and following.kind == "number" and token.end == following.start:
            parts += [text[position : token.start], canonical("", token.text + following.text)]
            position = following.end
    return "".join([*parts, text[position : body[-1].end]])


def _graph_operation(prologue: str, body: Sequence[Token], words: Sequence[str]) -> GraphOperation:
    silent = words[1] == "SILENT"
    names = [
        token.text if token.kind in ("iri", "name") else word
        for token, word in zip(body, words, strict=True)
        if word not in ("SILENT", "GRAPH", "TO")
    ][1:]
    if len(names) == 1:
        return GraphOperation(prologue, words[0], silent, target=names[0])
    return GraphOperation(prologue, words[0], silent, source=names[0], target=names[1])


def _block_end(body: Sequence[Token], position: int) -> int:
    """The index of the brace that closes the one at position."""
    depth = 0
    for index in range(position, len(body)):
        depth += {"{": 1, "}": -1}.get(body[index].text, 0)
        if depth == 0:
            return index
    raise AssertionError("braces that the parser accepted do not balance")


# --- templates --------------------------------------------------------------------------------------

_GLUED = "two words have no space between them, or a name is incomplete"

# A quad whose terms may be variables: IRIs that begin with `VARIABLE`.
QuadPattern = Quad


def data_quads(prologue: str, block: str) -> tuple[list[QuadPattern], list[Term]]:
    """The quads of a block of quad data, with canonical terms and new blank nodes, and the graphs that it names.

    The block is inserted into an empty store and read back. Raises RequestSyntaxError.
    """
    # The store itself makes canonical literals, lists and blank nodes of the text.
    scratch = ox.Store()
    try:
        scratch.update(f"{prologue} INSERT DATA {block}")
    except SyntaxError as error:
        # Oxigraph reads `GRAPHx:g` as a keyword and a name, unlike the lexer.
        raise RequestSyntaxError(f"{_GLUED}: {block[:100]}") from error
    return [quad_from_native(quad) for quad in scratch], [str(name) for name in scratch.named_graphs()]


def template(prologue: str, block: str) -> tuple[tuple[QuadPattern, ...], tuple[str, ...]]:
    """The quad patterns of a template, and its variables, sorted."""
    named, variables = _variables_as_names(block)
    patterns, _ = data_quads(prologue, named)
    return tuple(patterns), variables


def _variables_as_names(block: str) -> tuple[str, tuple[str, ...]]:
    """A template with an IRI in the place of each variable, and the variables, sorted."""
    if f"<{VARIABLE}" in block and any(token.kind == "iri" and VARIABLE in token.text for token in tokens(block)):
        raise UnsupportedRequestError(f"IRIs that begin with {VARIABLE} are the engine's own")
    variables = set()

    def iri(name: str) -> str:
        variables.add(name)
        return f"<{VARIABLE}{name}>"

    return with_other_variables(block, iri), tuple(sorted(variables))


@dataclass(frozen=True)
class Construct:
    """A CONSTRUCT query in two parts.

    select: the query for its solutions, with the variables of the template; patterns: the template's triples, each with
    the blank nodes of one solution; prefixes: what its declarations bind.
    """

    select: str
    patterns: tuple[QuadPattern, ...]
    prefixes: tuple[tuple[str, str], ...]


def construct_parts(text: str) -> Construct:
    """Cuts up a CONSTRUCT query. Raises RequestSyntaxError, UnsupportedRequestError, LimitExceededError."""
    form = parse_query(text).form
    if form != "CONSTRUCT":
        raise UnsupportedRequestError(
            f"the form of the query is {form}; write CONSTRUCT {{ template }} WHERE {{ pattern }}"
        )
    prologue, body = declarations_and_body(text)
    first = next(index for index, token in enumerate(body) if token.text == "{")
    end = _block_end(body, first)
    block = text[body[first].start : body[end].end]
    # In the short form, CONSTRUCT WHERE { ... }, the template is the pattern.
    # Token 1 is the brace in the long form: the template goes, FROM and WHERE stay.
    rest = text[(body[end] if first == 1 else body[0]).end :]
    named, variables = _variables_as_names(block)
    answer = _EMPTY.query(f"{prologue} CONSTRUCT {named} WHERE {{}}")
    assert isinstance(answer, ox.QueryTriples)
    patterns = tuple(quad_from_native(ox.Quad(t.subject, t.predicate, t.object)) for t in answer)
    # Without variables the number of solutions still counts: each makes blank nodes of its own.
    projection = " ".join(f"?{name}" for name in variables) or "(1 AS ?lamplighter_solution)"
    declared = [token.text for token in tokens(prologue)]
    prefixes = tuple(
        (name[:-1], _resolve(prologue, name)) for word, name in pairwise(declared) if word.upper() == "PREFIX"
    )
    return Construct(f"{prologue} SELECT {projection} {rest}", patterns, prefixes)


def ask_as_select(text: str, column: str) -> str:
    """The SELECT query whose only row tells in a column whether a checked ASK query is true.

    Raises UnsupportedRequestError for an ASK with solution modifiers.
    """
    prologue, body = declarations_and_body(text)
    first = next(index for index, token in enumerate(body) if token.text == "{")
    if _block_end(body, first) + 1 < len(body):
        raise UnsupportedRequestError("an ASK subscription ends with its pattern; put what follows into a sub-select")
    return f"{prologue} SELECT (COUNT(*) > 0 AS ?{column}) {text[body[0].end :]}"


def _resolve(prologue: str, name: str) -> str:
    return canonical(prologue, name)[1:-1]


def canonical(prologue: str, raw: str) -> Term:
    """The canonical term of a constant as written. Raises RequestSyntaxError."""
    patterns, _ = data_quads(prologue, f"{{ <urn:x> <urn:x> {raw} }}")
    return patterns[0].o
