"""Query text -> `ParsedQuery` (what the text has in common with others) and the text's constants.

A query is parsed once for each skeleton (`engine.sparql.skeletons`); later texts with the same skeleton only have their
constants lifted out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from lamplighter.engine.access import Dataset
from lamplighter.engine.errors import LimitExceededError, RequestError
from lamplighter.engine.matching.clock_patterns import check_clock_calls
from lamplighter.engine.matching.construction import ASK_COLUMNS, TRIPLE_COLUMNS, ConstructTemplate, template_of
from lamplighter.engine.slices import LONG, Slices
from lamplighter.engine.sparql.algebra import (
    Aggregate,
    Constant,
    Expression,
    Graph,
    OpaquePath,
    Pattern,
    Project,
    Select,
    Variable,
    takes_apart,
    walk,
)
from lamplighter.engine.sparql.clock_function import may_call, without_clock
from lamplighter.engine.sparql.cursor import UnknownSyntaxError, constant_spans
from lamplighter.engine.sparql.exists_variables import own_names
from lamplighter.engine.sparql.grammar import read_select
from lamplighter.engine.sparql.lexer import Token, join_tokens
from lamplighter.engine.sparql.limits import CONSTANTS_MAX
from lamplighter.engine.sparql.requests import (
    ask_as_select,
    canonical,
    construct_parts,
    declarations_and_body,
    subscribable,
)
from lamplighter.engine.sparql.skeletons import Lifted, Lifter, skeleton_of
from lamplighter.engine.sparql.text_cache import LruCache
from lamplighter.engine.terms import XSD, Term

# Skeletons in the cache; the least recently used one is evicted first.
TEXTS_MAX = 1024
# Characters of all cached skeletons together. A parsed query takes about sixty bytes a character.
TEXT_CHARACTERS_MAX = 256 * 1024

_INTEGER = f'"^^<{XSD}integer>'
_INTEGER_END = len(_INTEGER)


@dataclass(frozen=True)
class ParsedQuery:
    """The parsed form that all queries with one skeleton share.

    text: the query's tokens in a standard layout, followed by its columns; constants are numbers, and variables are
        renamed in order of appearance.
    columns: the variables of the projection, as the subscriber names them; order: the same variables, renamed.
    lifted: numbers of the constants that only select a subject, object, graph or operand. The other constants belong
        to the shape.
    select: the syntax tree, None for syntax that only the store can parse.
    parts: the tokens of text; a number stands for a constant.
    prologue: the declarations, if the query calls IRI(), whose value depends on BASE; else empty.
    template: set for a CONSTRUCT query. Its columns are then those of triples, and all else is of the SELECT query for
        its solutions.
    clocks: indexes of the columns that hold the time at which a row appeared. They are in columns only: text, order
        and select leave them out.
    """

    text: str
    columns: tuple[str, ...]
    order: tuple[str, ...]
    lifted: frozenset[int]
    select: Select | None
    parts: tuple[str | int, ...]
    prologue: str = ""
    clocks: tuple[int, ...] = ()
    template: ConstructTemplate | None = None

    @property
    def patterns(self) -> int:
        """The number of triple patterns; 0 for syntax that only the store can parse."""
        return 0 if self.select is None else sum(isinstance(part, Pattern) for part in walk(self.select))

    @property
    def pairs(self) -> int:
        """The number of pairs of a triple pattern with a pattern or an expression: a plan has a function for each
        pattern, with lines for each of them all. 0 for syntax that only the store can parse."""
        if self.select is None:
            return 0
        return self.patterns * sum(isinstance(part, (Pattern, Expression)) for part in walk(self.select))

    def render(self, terms: Sequence[Term]) -> str:
        """The query text with these constants."""
        body = join_tokens(part if isinstance(part, str) else _term_text(terms[part]) for part in self.parts)
        return f"{self.prologue} {body}" if self.prologue else body

    def key(self, terms: Sequence[Term], dataset: Dataset | None) -> Any:
        """The key of the shape, equal for queries that differ in lifted constants only and have the same ones equal."""
        lifted = self.lifted
        fixed = tuple([term for number, term in enumerate(terms) if number not in lifted])
        free = [term for number, term in enumerate(terms) if number in lifted]
        # Which lifted constants are equal belongs to the shape: a plan tests equal ones once.
        equal = None if len(set(free)) == len(free) else tuple([free.index(term) for term in free])
        return self.text, dataset, fixed, equal

    def narrow(self, dataset: Dataset | None, terms: Sequence[Term]) -> Dataset | None:
        """The dataset without the parts that cannot affect the result."""
        # Clients with different read permissions then share a shape if the query reads only graphs that both may read,
        # and a plan can serve it. Most queries name their graphs, or read the default graph only.
        if dataset is None or dataset.visible.every:
            return dataset
        default, named, visible = dataset
        if default is not None and named is not None:
            return Dataset(default, named)
        read = None if self.select is None else _graphs_read(self.select.node, terms)
        if read is None or named is not None:
            return dataset
        if default is not None:
            return Dataset(default) if read <= {None} else dataset
        return None if all(graph in visible for graph in read) else dataset


class QueryTextCache:
    """Reads query texts and caches what it learned of each skeleton."""

    def __init__(self, lifter: Lifter, slices: Slices) -> None:
        self._lifter = lifter
        self._slices = slices
        self.cache = LruCache[str, ParsedQuery](TEXTS_MAX, TEXT_CHARACTERS_MAX)

    def parse(self, text: str) -> tuple[ParsedQuery, list[Term]]:
        """A query, and its constants. Raises RequestError. Long texts are read off the event loop."""
        with self._slices.beside() if len(text) > LONG else nullcontext():
            return self._analyse(text)

    def _analyse(self, text: str) -> tuple[ParsedQuery, list[Term]]:
        lifted: Lifted | None = None
        with suppress(RequestError, SyntaxError, ValueError, RuntimeError):  # the parser below has the better message
            lifted = self._lifter.lift(text)
        if lifted is not None:
            known = self.cache.get(lifted.skeleton)
            if known is not None:
                return known, lifted.terms
        outline = subscribable(text)
        if outline.form != "SELECT":
            return self._of_another_form(text, outline.form)
        columns = outline.columns
        prologue, body = declarations_and_body(text)
        if len(constant_spans(body)) > CONSTANTS_MAX:
            raise LimitExceededError(
                f"a subscription has {CONSTANTS_MAX} constants at most; send long lists of values with an update, and "
                "join with them"
            )
        fixed: set[int] | None = None
        clocks: dict[int, str] = {}
        if may_call(text):
            body, clocks = without_clock(text, prologue, body, columns)
        names = own_names(body)
        body = [token._replace(text=names.get(index, token.text)) for index, token in enumerate(body)]
        spans = constant_spans(body)
        terms = [canonical(prologue, raw) for raw in _raws(body)]
        rest = [column for index, column in enumerate(columns) if index not in clocks]
        parsed = parse_tokens(body, rest, lambda raw: canonical("", raw))
        if may_call(text):
            fixed = check_clock_calls(text, prologue, body, parsed.select, terms)
        if fixed:
            # Constants that a comparison with the clock computes with are part of the condition.
            parsed = replace(parsed, lifted=parsed.lifted - fixed)
        if clocks:
            # Queries with and without the column share no units.
            key = f"{parsed.text} with the time in {sorted(clocks)}"
            parsed = replace(parsed, text=key, columns=columns, clocks=tuple(sorted(clocks)))
        if any(token.is_word("IRI", "URI") for token in body):
            if "BASE" in prologue.upper():
                parsed = replace(parsed, text=f"{prologue} {parsed.text}", prologue=prologue)
        elif fixed is not None or clocks:
            pass  # a text with another function would have the same skeleton
        elif lifted is not None and lifted.skeleton == skeleton_of(text, len(lifted.prologue), body, spans):
            self.cache.put(lifted.skeleton, parsed, len(lifted.skeleton))
        return parsed, terms

    def _of_another_form(self, text: str, form: str) -> tuple[ParsedQuery, list[Term]]:
        """An ASK or CONSTRUCT query, and its constants: those of the SELECT query for its solutions."""
        if form == "ASK":
            parsed, terms = self._analyse(ask_as_select(text, "lamplighter_ask"))
            return replace(parsed, text=f"{parsed.text} asked", columns=ASK_COLUMNS), terms
        parts = construct_parts(text)
        parsed, terms = self._analyse(parts.select)
        template = template_of(parts.patterns, parsed.columns)
        text = f"{parsed.text} for {template.triples}"
        return replace(parsed, text=text, columns=TRIPLE_COLUMNS, template=template), terms


def parse_tokens(found: Sequence[Token], columns: Sequence[str], resolve: Callable[[str], Term]) -> ParsedQuery:
    """A checked query, given the tokens after its declarations.

    columns: the variables of the projection, as the store names them; resolve: constant as written -> term.
    """
    spans = {start: (number, end) for number, (start, end) in enumerate(constant_spans(found))}
    names: dict[str, str] = {}
    parts: list[str | int] = []
    texts: list[str] = []
    renamed: list[Token] = []
    position = 0
    while position < len(found):
        token = found[position]
        if position in spans:
            number, end = spans[position]
            parts.append(number)
            texts.append(f"\x01{number}{'iri' if token.kind in ('iri', 'name') else ''}")
            renamed += found[position:end]
            position = end
            continue
        text = token.text
        if token.kind == "variable":
            text = names.setdefault(f"?{text[1:]}", f"?v{len(names)}")
        elif token.kind == "blank":
            text = names.setdefault(text, f"_:b{len(names)}")
        elif token.kind == "word" and text != "a":
            text = text.lower() if token.is_word("TRUE", "FALSE") else text.upper()
        renamed.append(token._replace(text=text))
        position += 1
        if token.kind == "number":  # a signed number; one without a sign is a constant
            parts.append(f"{parts.pop()}{text}")
            texts.append(f"{texts.pop()}{text}")
            continue
        texts.append(text)
        before = found[position - 2] if position > 1 else None
        if token.kind == "sign" and before is not None and (before.kind, before.end) == ("sign", token.start):
            text = f"{parts.pop()}{text}"  # the store reads `<<(` and the like as one token
        parts.append(text)
    order = tuple(names[f"?{column}"][1:] for column in columns)
    select = _select(renamed, order, resolve)
    text = " ".join([*texts, *order])
    return ParsedQuery(text, tuple(columns), order, _lifted_numbers(select), select, tuple(parts))


def _select(found: Sequence[Token], order: Sequence[str], resolve: Callable[[str], Term]) -> Select | None:
    """The syntax tree; None if the grammar does not know the syntax or disagrees with the store about the columns."""
    try:
        select = read_select(found, resolve, triple_terms=True)
    except UnknownSyntaxError:
        return None
    # The grammar may read a text in another way than the store. Where the columns differ, the store counts.
    projections = [node for node in walk(select) if isinstance(node, Project)]
    return select if {variable.name for variable in projections[0].variables} == set(order) else None


def _lifted_numbers(select: Select | None) -> frozenset[int]:
    """Numbers of the constants that can be lifted: all their occurrences are subjects, objects, graphs or operands."""
    free: set[int] = set()
    fixed: set[int] = set()
    for node in walk(select):
        match node:
            case Pattern(s, p, o, graph):
                free |= _numbers(s, o, graph)
                # The predicate decides which table a plan reads and where the LUTT files it.
                fixed |= _numbers(p)
            case OpaquePath(s, steps, o, graph):
                free |= _numbers(s, o, graph)
                fixed |= _numbers(*steps)
            case Aggregate(separator=separator):
                fixed |= _numbers(separator)
            case Expression(parts):
                free |= _numbers(*parts)
    return frozenset(free - fixed)


def _numbers(*parts: Any) -> set[int]:
    return {part.number for part in parts if isinstance(part, Constant)}


def _graphs_read(tree: Any, terms: Sequence[Term]) -> set[Term | None] | None:
    """The graphs that patterns and GRAPH name, with None for the default graph; None if a variable names one."""
    found: set[Term | None] = set()
    for node in walk(tree):
        match node:
            case Pattern() if takes_apart(node):
                pass
            case Pattern(_, _, _, graph) | OpaquePath(_, _, _, graph) | Graph(graph, _):
                if isinstance(graph, Variable):
                    return None
                found.add(terms[graph.number] if isinstance(graph, Constant) else graph)
    return found


def _raws(body: Sequence[Token]) -> list[str]:
    """The constants as they are written."""
    return ["".join(token.text for token in body[start:end]) for start, end in constant_spans(body)]


def _term_text(term: Term) -> str:
    """The term in SPARQL syntax."""
    # Integers are bare, because LIMIT and OFFSET take no other form.
    return term[1:-_INTEGER_END] if term.endswith(_INTEGER) and term[1:-_INTEGER_END].isdigit() else term
