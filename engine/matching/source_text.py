"""Source text of generated functions: lines, names and counted loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from lamplighter.engine.matching.analysis import Unsupported
from lamplighter.engine.sparql.algebra import Constant, Part, Variable
from lamplighter.engine.work import ROW, Meter

# Nested loops in one function. Python compiles twenty.
LOOPS_MAX = 15
# Levels of indentation. Python compiles 98, and some lines are written without a test of the depth.
DEPTH_MAX = 70

# Characters of the functions of one plan. Python compiles 1,000 of them in 1 to 2 ms.
CODE_MAX = 420_000
# Characters of the longest function whose code is remembered.
_REMEMBERED_MAX = 12_000

Key = Variable | Constant
# The key of the unit in a `Scope`. No variable of a query has a name with spaces.
UNIT = Variable("unit of the shape")


@dataclass(frozen=True)
class Scope:
    """Which Python names hold which variables and constants.

    bound: those that hold a term. maybe: those that hold a term, or None for an unbound variable.
    """

    bound: Mapping[Key, str]
    maybe: Mapping[Key, str]

    def name(self, key: Key) -> str:
        """The Python name; the text ``None`` if the scope has none."""
        return self.bound.get(key) or self.maybe.get(key) or "None"

    def binding(self, key: Key, name: str) -> Scope:
        """The scope with one more bound key."""
        return Scope({**self.bound, key: name}, self.maybe)

    def constants(self) -> dict[Key, str]:
        """The keys that hold everywhere in a tree: its constants and the unit."""
        return {key: name for key, name in self.bound.items() if isinstance(key, Constant) or key == UNIT}


@dataclass
class _Body:
    """A function that is being written. start: its first line; depth: the indentation; loops: those that are open."""

    start: int
    depth: int
    loops: int = 0


# Writes the text that uses one solution, whose names are in the scope.
Consume = Callable[[Scope], None]


@lru_cache(maxsize=256)
def _code(source: str, title: str) -> CodeType:
    """The code of a function. A shape is often compiled again: to see whether it has a plan, and then for its first
    subscription, or for that after its last one has ended."""
    return compile(source, f"<plan {title}>", "exec")


class Source:
    """The source text of one function. No name is used twice, so nested loops cannot overwrite each other's variables.

    space: the function's globals. meter: counts the work of the loops.
    """

    def __init__(self, meter: Meter, counted: Sequence[str] = ()) -> None:
        """counted: local names that the function counts down, also from within nested functions."""
        self._nonlocal = ", ".join(counted)
        self.meter = meter
        self._lines: list[str] = []
        self._depth = 0
        self._functions = 0
        self._bodies: list[_Body] = []
        self._names = 0
        self.space: dict[str, Any] = {"meter": meter}
        self._loops = 0
        self._asking = 0
        self._counted = False

    def compile(self, title: str, signature: str, body: Callable[[], None]) -> Callable[..., Any]:
        """The function, with its text in the attribute ``source``.

        Its attribute ``may_exceed`` tells whether it counts work, and so may raise TooMuchWork. Raises Unsupported if
        the text is nested too deeply for Python, or the plan has too much of it.
        """
        with self.block(f"def {title}({signature}):"):
            body()
        source = "\n".join(self._lines)
        self.meter.code += len(source)
        if self.meter.code > CODE_MAX:
            raise Unsupported(f"a plan of more than {CODE_MAX} characters of Python")
        try:
            code = _code(source, title) if len(source) <= _REMEMBERED_MAX else _code.__wrapped__(source, title)
            exec(code, self.space)
        except (SyntaxError, RecursionError, MemoryError) as error:  # too deeply nested for Python
            raise Unsupported("patterns nested too deeply") from error
        function = self.space.pop(title)  # else it would be in a cycle with its globals, which only the collector frees
        function.source = source
        function.may_exceed = self._counted
        return function  # type: ignore[no-any-return]

    def emit(self, line: str) -> None:
        """Adds a line at the current indentation."""
        self._lines.append(" " * self._depth + line)

    @contextmanager
    def loop(self, name: str, members: str) -> Iterator[None]:
        """A block that loops over members, and counts them."""
        if self._bodies[-1].loops >= LOOPS_MAX or self._depth > DEPTH_MAX:
            with self._apart(), self.loop(name, members):
                yield
            return
        self._counted = True
        self._loops += 1
        if self._asking:  # the loop may end early, so each member is counted when it is reached
            with self._for(f"for {name} in {members}:"):
                self.count("1")
                yield
        else:
            counted = self.name("members")
            self.emit(f"{counted} = {members}")
            with self.block(f"if len({counted}) > 1:"):  # a single member does not multiply the work
                self.count(f"len({counted})")
            with self._for(f"for {name} in {counted}:"):
                yield
        self._loops -= 1

    @contextmanager
    def _for(self, line: str) -> Iterator[None]:
        body = self._bodies[-1]
        with self.block(line):
            body.loops += 1
            yield
            body.loops -= 1

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Calls a new function here, whose body is what is written in the context.

        The function stands at the beginning of the present one. So it is not nested deeply, and sees all local names.
        """
        body = self._bodies[-1]
        if body.depth >= DEPTH_MAX:  # a function within functions: no line of its body would be less deep
            raise Unsupported("patterns nested too deeply")
        name = self.name("rest")
        around, self._lines = self._lines, []
        depth, self._depth = self._depth, body.depth
        with self.block(f"def {name}():"):
            yield
        written, self._lines, self._depth = self._lines, around, depth
        self._lines[body.start : body.start] = written
        self.emit(f"{name}()")

    def count(self, units: str) -> None:
        self.emit(f"meter.left -= {units}")
        with self.block("if meter.left < 0:"):
            self.emit("meter.more()")

    def count_row(self) -> None:
        """Counts a row that is kept, if it is made within a loop. The next loop checks the meter."""
        if self._loops:
            self.emit(f"meter.left -= {ROW}")

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        """Adds a compound statement; what is written in the context is its body."""
        function = line.startswith("def ")
        if self._depth > DEPTH_MAX and not function:
            with self._apart(), self.block(line):
                yield
            return
        self.emit(line)
        self._depth += 1
        self._functions += function
        if self._nonlocal and function and self._functions > 1:
            self.emit(f"nonlocal {self._nonlocal}")
        before = len(self._lines)
        if function:
            self._bodies.append(_Body(before, self._depth))
        yield
        if len(self._lines) == before:
            self.emit("pass")
        if function:
            self._bodies.pop()
        self._depth -= 1
        self._functions -= function

    def name(self, stem: str) -> str:
        """A new Python name."""
        self._names += 1
        return f"{stem}{self._names}"

    def share(self, stem: str, value: Any) -> str:
        """The name by which the function uses an object."""
        name = self.name(stem)
        self.space[name] = value
        return name

    def part(self, part: Part, scope: Scope) -> str:
        """The Python expression of a term, constant or variable."""
        return scope.name(part) if isinstance(part, (Variable, Constant)) else repr(part)

    def any(self, body: Callable[[Callable[[], None]], None]) -> str:
        """Writes a function that returns whether there is a solution, and returns the text of its call.

        body: writes the search, and calls its argument where a solution is found.
        """
        test, hit = self.name("any"), self.name("hit")
        with self.block(f"def {test}():"):
            self.emit(f"{hit} = [False]")
            level = self._functions

            def emit_success() -> None:
                # A `return` within a nested function would end that one only, so there the hit is stored.
                self.emit("return True" if self._functions == level else f"{hit}[0] = True")

            self._asking += 1
            body(emit_success)
            self._asking -= 1
            self.emit(f"return {hit}[0]")
        return f"{test}()"


def tuple_text(names: Sequence[str]) -> str:
    """The names as a Python tuple."""
    return f"({''.join(name + ', ' for name in names)})"


def key_text(names: Sequence[str]) -> str:
    """The names as a key of `QueryConstants`: a single name, or a tuple."""
    return names[0] if len(names) == 1 else tuple_text(names)
