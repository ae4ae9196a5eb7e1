"""The tables of the CTS: the quads of one predicate, by subject and by object."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamplighter.engine.terms import Term

# Members up to which a tuple is used. Each change copies the tuple, so a dict is cheaper beyond.
TUPLE_MAX = 16

Members = tuple[Term, ...] | dict[Term, None]
Half = dict[Term, Members]


class Table:
    """The quads of one predicate in one graph.

    sp: subject -> objects; po: object -> subjects, None if not needed. forget: called after a change, for each path
    that follows the predicate; they need po.
    """

    __slots__ = ("forget", "po", "sp")

    def __init__(self, by_object: bool, forget: Sequence[Callable[[], None]]) -> None:
        self.sp: Half = {}
        self.po: Half | None = {} if by_object else None
        self.forget = forget

    def add(self, s: Term, o: Term) -> None:
        _add(self.sp, s, o)
        if self.po is not None:
            _add(self.po, o, s)
            for forget in self.forget:
                forget()

    def remove(self, s: Term, o: Term) -> None:
        _take(self.sp, s, o)
        if self.po is not None:
            _take(self.po, o, s)
            for forget in self.forget:
                forget()

    def index_objects(self) -> None:
        if self.po is None:
            self.po = {}
            for s, objects in self.sp.items():
                for o in objects:
                    _add(self.po, o, s)


def _add(half: Half, key: Term, member: Term) -> None:
    members = half.get(key)
    if members is None:
        half[key] = (member,)
    elif isinstance(members, dict):
        members[member] = None
    elif member not in members:
        if len(members) < TUPLE_MAX:
            half[key] = (*members, member)
        else:
            half[key] = dict.fromkeys((*members, member))


def _take(half: Half, key: Term, member: Term) -> None:
    members = half.get(key)
    if members is None:
        return
    if isinstance(members, dict):
        members.pop(member, None)
        if len(members) <= TUPLE_MAX // 2:
            half[key] = tuple(members)
    elif len(members) > 1:
        half[key] = tuple(other for other in members if other != member)
    elif members[0] == member:
        del half[key]


class Tables:
    """The quads of one predicate: in the default graph, and in each named graph that has any.

    by_object: whether the tables have po. uses: how often the predicate is held. forget: of `Table`.
    """

    __slots__ = ("by_object", "default", "forget", "named", "uses")

    def __init__(self, by_object: bool) -> None:
        self.forget: list[Callable[[], None]] = []
        self.default = Table(by_object, self.forget)
        self.named: dict[Term, Table] = {}
        self.by_object = by_object
        self.uses = 0

    def table(self, g: Term | None) -> Table:
        """The table of a graph, created if there is none."""
        if g is None:
            return self.default
        table = self.named.get(g)
        if table is None:
            table = self.named[g] = Table(self.by_object, self.forget)
        return table

    def index_objects(self) -> None:
        self.by_object = True
        for table in (self.default, *self.named.values()):
            table.index_objects()
