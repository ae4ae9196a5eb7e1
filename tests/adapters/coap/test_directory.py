from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from lamplighter.adapters.coap import directory
from lamplighter.adapters.coap.directory import (
    LIFETIME_DEFAULT_S,
    Directory,
    Registrant,
    Registration,
    RegistrationError,
    registration_id,
)
from lamplighter.adapters.coap.links import Link, links_text, parse_links
from tests.support.tables import each_row

LAMP = Registrant("coap://192.0.2.7")
TEXT = b'</3311/0/5850>;ct="0 11542";obs,</temp>;rt=temperature;if=core.s'


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def listed(found: list[Link]) -> list[str]:
    return [link.target for link in found]


def reason(run: object, *arguments: object, **named: object) -> str:
    assert callable(run)
    with pytest.raises(RegistrationError) as raised:
        run(*arguments, **named)
    assert len(str(raised.value)) < 200
    return raised.value.reason


def test_an_endpoint_registers_with_the_defaults_of_the_standard() -> None:
    clock = Clock()
    found = Directory(clock).register(["ep=lamp"], TEXT, LAMP)
    assert found == Registration(
        id=registration_id("lamp"),
        endpoint="lamp",
        sector="",
        base="coap://192.0.2.7",
        given=False,
        lifetime_s=90_000,
        expires=clock.now + 90_000,
        links=tuple(parse_links(TEXT)),
    )
    assert found.location == f"/rd/{found.id}"


def test_all_parameters_are_taken() -> None:
    query = ["ep=lamp", "d=street", "lt=600", "base=coap://[2001:db8::7]:61616", "et=core.light", "et=x", "b"]
    found = Directory(Clock()).register(query, b"", replace(LAMP, owner="hall", zone="eth0"))
    assert (found.sector, found.lifetime_s, found.base) == ("street", 600, "coap://[2001:db8::7]:61616")
    assert found.attributes == (("et", "core.light"), ("et", "x"), ("b", None))
    assert (found.given, found.owner, found.zone, found.links) == (True, "hall", "eth0", ())


def test_registering_again_replaces_the_registration_at_the_same_location() -> None:
    known = Directory(Clock())
    first = known.register(["ep=lamp", "et=x"], TEXT, LAMP)
    other = known.register(["ep=lamp", "d=2"], b"", LAMP)
    again = known.register(["ep=lamp"], b"</b>", replace(LAMP, base="coap://192.0.2.8"))
    assert first.location == again.location != other.location
    assert len(known) == 2
    assert listed(known.lookup_resources([])) == ["coap://192.0.2.8/b"]


@each_row(
    "query",
    [
        [],
        ["ep"],
        ["ep="],
        ["ep=" + "a" * 64],
        ["ep=" + "ü" * 32],
        ["ep=a\x00"],
        ["ep=a\x9b"],
        ["ep=a", "ep=b"],
        ["ep=a", "d="],
        ["ep=a", "d=\x1b[2J"],
        ["ep=a", "lt=0"],
        ["ep=a", "lt=-1"],
        ["ep=a", "lt=4294967296"],
        ["ep=a", "lt=٣"],
        ["ep=a", "lt=" + "9" * 5_000],
        ["ep=a", "base="],
        ["ep=a", "base=192.0.2.7"],
        ["ep=a", "base=coap://192.0.2.7?a"],
        ["ep=a", "base=coap://192.0.2.7#a"],
        ["ep=a", "base=coap://user@192.0.2.7"],
        ["ep=a", "base=coap://[fe80::1%25eth0]"],
        ["ep=a", "base=coap://192.0.2.7:65536"],
        ["ep=a", "base=coap://192.0.2.7:0"],
        ["ep=a", "base=coap://[::zz]"],
        ["ep=a", "base=coap://" + "a" * 300],
        ["ep=a", "rt=core.rd-ep"],
        ["ep=a", "anchor=x"],
        ["ep=a", "a b=c"],
        ["ep=a", "=c"],
        ["ep=a", "c=\x1b"],
        ["ep=a", "c=" + "d" * 300],
        ["ep=a", *(f"a{number}=b" for number in range(17))],
    ],
)
def test_bad_parameters_are_refused(query: list[str]) -> None:
    known = Directory(Clock())
    assert reason(known.register, query, b"", LAMP) == "malformed"
    assert len(known) == 0


@each_row(
    "text",
    [
        b"</a",
        b"\xff",
        b"<a>",
        b"<//other.example/a>",
        b"</../a>",
        b"</a>;anchor=b",
        b",".join([b"</a>"] * 201),
        b'</a>;title="' + b"a" * 17_000 + b'"',
    ],
)
def test_bad_links_are_refused(text: bytes) -> None:
    known = Directory(Clock())
    assert reason(known.register, ["ep=a"], text, LAMP) == "malformed"
    assert len(known) == 0


def test_a_simple_registration_has_the_base_of_its_sender() -> None:
    known = Directory(Clock())
    assert reason(known.register, ["ep=a", "base=coap://192.0.2.9"], b"", LAMP, simple=True) == "malformed"
    assert known.register(["ep=a", "lt=6000"], b"</a>", LAMP, simple=True).base == LAMP.base


def test_a_lifetime_ends_and_is_started_again_by_an_update() -> None:
    clock = Clock()
    known = Directory(clock)
    id_ = known.register(["ep=lamp", "lt=100"], TEXT, LAMP).id
    clock.now += 99
    assert known.due(clock.now) == []
    assert known.update(id_, [], LAMP).lifetime_s == 100
    assert known.next_due() == clock.now + 100
    clock.now += 99
    assert known.update(id_, ["lt=200"], LAMP).lifetime_s == 200
    clock.now += 199
    assert listed(known.lookup_endpoints([])) == [f"/rd/{id_}"]
    clock.now += 1
    assert known.lookup_endpoints([]) == known.lookup_resources([]) == []
    assert reason(known.update, id_, [], LAMP) == "unknown"
    assert [one.endpoint for one in known.due(clock.now)] == ["lamp"]
    assert known.due(clock.now) == []
    assert known.next_due() is None


def test_a_short_lifetime_counts_as_the_shortest_one() -> None:
    assert Directory(Clock()).register(["ep=a", "lt=1"], b"", LAMP).lifetime_s == 60


def test_an_update_changes_what_it_names() -> None:
    known = Directory(Clock())
    id_ = known.register(["ep=lamp", "et=a", "et=b", "x=1"], TEXT, LAMP).id
    moved = replace(LAMP, base="coap://192.0.2.8:40000")
    assert known.update(id_, [], moved).base == "coap://192.0.2.8:40000"
    changed = known.update(id_, ["base=coap://new.example", "et=c", "y"], LAMP)
    assert changed.base == "coap://new.example"
    assert changed.attributes == (("x", "1"), ("et", "c"), ("y", None))
    assert changed.links == tuple(parse_links(TEXT))
    assert known.update(id_, [], moved).base == "coap://new.example"
    assert listed(known.lookup_resources(["rt=temperature"])) == ["coap://new.example/temp"]


@each_row("query", [["ep=other"], ["d=other"], ["lt=0"], ["base=x"], [f"a{n}=b" for n in range(17)]])
def test_a_bad_update_changes_nothing(query: list[str]) -> None:
    known = Directory(Clock())
    before = known.register(["ep=lamp", "z=1"], TEXT, LAMP)
    assert reason(known.update, before.id, query, LAMP) == "malformed"
    assert known.get(before.id) == before


def test_a_removed_registration_is_unknown() -> None:
    known = Directory(Clock())
    before = known.register(["ep=lamp"], TEXT, LAMP)
    assert known.remove(before.id, LAMP) == before
    assert reason(known.remove, before.id, LAMP) == "unknown"
    assert reason(known.update, before.id, [], LAMP) == "unknown"
    assert reason(known.get, "") == "unknown"


def test_an_endpoint_belongs_to_its_security_context_until_it_expires() -> None:
    clock = Clock()
    known = Directory(clock)
    hall, other = replace(LAMP, owner="hall"), replace(LAMP, owner="other")
    id_ = known.register(["ep=lamp"], TEXT, LAMP).id
    assert known.register(["ep=lamp"], TEXT, hall).owner == "hall"  # nobody owned it
    for foreign in (other, LAMP):
        assert reason(known.register, ["ep=lamp"], b"", foreign) == "foreign"
        assert reason(known.update, id_, [], foreign) == "foreign"
        assert reason(known.remove, id_, foreign) == "foreign"
    assert known.update(id_, [], hall).owner == "hall"
    clock.now += LIFETIME_DEFAULT_S
    assert known.register(["ep=lamp"], b"", other).owner == "other"


def test_registrations_of_an_earlier_run_are_known_for_a_minute_at_least() -> None:
    clock = Clock()
    before = Directory(Clock()).register(["ep=lamp"], TEXT, LAMP)
    known = Directory(clock)
    known.restore(before, -5.0)
    known.restore(Directory(Clock()).register(["ep=other"], TEXT, LAMP), 500.0)
    assert known.get(before.id) == replace(before, expires=clock.now + 60)
    clock.now += 60
    assert [one.endpoint for one in known.due(clock.now)] == ["lamp"]
    assert known.next_due() == clock.now + 440


def test_the_directory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "REGISTRATIONS_MAX", 2)
    known = Directory(Clock())
    for name in "ab":
        known.register([f"ep={name}"], TEXT, LAMP)
    assert reason(known.register, ["ep=c"], TEXT, LAMP) == "full"
    assert known.register(["ep=b"], b"</x>", LAMP).links == (Link("/x"),)
    known.remove(registration_id("a"), LAMP)
    known.register(["ep=c"], TEXT, LAMP)

    monkeypatch.setattr(directory, "LINKS_ALL_MAX", 3)
    assert reason(known.register, ["ep=b"], TEXT, LAMP) == "full"
    monkeypatch.setattr(directory, "LINKS_ALL_MAX", 4)
    known.register(["ep=b"], TEXT, LAMP)
    monkeypatch.setattr(directory, "LINKS_BYTES_ALL_MAX", 2 * len(links_text(parse_links(TEXT))))
    known.register(["ep=b"], TEXT, LAMP)
    assert reason(known.register, ["ep=b"], TEXT[:-1] + b"ss", LAMP) == "full"
    assert known.get(registration_id("b")).links == tuple(parse_links(TEXT))


def test_lookups_show_full_uris_and_what_was_sent() -> None:
    known = Directory(Clock())
    text = (
        b'</sensors/temp>;rt=temperature-c;if=sensor,<http://www.example.com/t>;anchor="/sensors/temp";rel=describedby'
    )
    id_ = known.register(["ep=node1", "d=floor", "et=x", "et=y"], text, LAMP).id
    assert links_text(known.lookup_resources([])) == (
        '<coap://192.0.2.7/sensors/temp>;rt="temperature-c";if="sensor",'
        '<http://www.example.com/t>;anchor="coap://192.0.2.7/sensors/temp";rel="describedby"'
    )
    assert links_text(known.lookup_endpoints([])) == (
        f'</rd/{id_}>;ep="node1";d="floor";base="coap://192.0.2.7";rt="core.rd-ep";et="x";et="y"'
    )


def street() -> Directory:
    known = Directory(Clock())
    for number in range(3):
        text = f'</lamp>;rt="light x";if=core.a,</t/{number}>;rt=temperature;ct="0 50"'
        sender = Registrant(f"coap://192.0.2.{number}")
        known.register([f"ep=node{number}", f"d={number % 2}", "et=tag:a", "et=tag:b"], text.encode(), sender)
    return known


@each_row(
    ("query", "found"),
    [
        ([], ["0/lamp", "0/t/0", "1/lamp", "1/t/1", "2/lamp", "2/t/2"]),
        (["rt=light"], ["0/lamp", "1/lamp", "2/lamp"]),
        (["rt=temp*", "ct=50"], ["0/t/0", "1/t/1", "2/t/2"]),
        (["ep=node1"], ["1/lamp", "1/t/1"]),
        (["ep=node*", "d=0", "rt=x"], ["0/lamp", "2/lamp"]),
        (["et=tag:b", "ep=node2"], ["2/lamp", "2/t/2"]),
        (["href=coap://192.0.2.1/lamp"], ["1/lamp"]),
        (["href=/lamp"], []),
        ([f"href=/rd/{registration_id('node2', '0')}", "if=core.a"], ["2/lamp"]),
        (["ep=node1", "d=0"], []),
        (["count=2"], ["0/lamp", "0/t/0"]),
        (["page=1", "count=4"], ["2/lamp", "2/t/2"]),
        (["page=0", "count=0"], []),
        (["page=9999999999", "count=9999999999"], []),
        (["rt=light", "count=1", "page=2"], ["2/lamp"]),
    ],
)
def test_resources_are_looked_up(query: list[str], found: list[str]) -> None:
    assert [target.removeprefix("coap://192.0.2.") for target in listed(street().lookup_resources(query))] == found


@each_row(
    ("query", "numbers"),
    [
        ([], "012"),
        (["ep=node1"], "1"),
        (["et=tag:a", "d=0"], "02"),
        (["rt=core.rd-ep"], "012"),
        (["rt=light", "rt=temperature"], "012"),
        (["href=coap://192.0.2.2/lamp"], "2"),
        (["href=coap://192.0.2.2/lamp", "href=coap://192.0.2.1/lamp"], ""),
        (["base=coap://192.0.2.1"], "1"),
        (["rt=door"], ""),
        (["page=1", "count=2"], "2"),
    ],
)
def test_endpoints_are_looked_up(query: list[str], numbers: str) -> None:
    names = [link.first("ep") for link in street().lookup_endpoints(query)]
    assert names == [f"node{number}" for number in numbers]


@each_row(
    "query",
    [["page=1"], ["count=x"], ["count=-1"], ["count"], ["count=1*"], ["count=1", "count=2"], ["=x"], ["a=b"] * 17],
)
def test_a_bad_lookup_is_refused(query: list[str]) -> None:
    assert reason(street().lookup_resources, query) == "malformed"
    assert reason(street().lookup_endpoints, query) == "malformed"


def test_link_local_endpoints_are_shown_on_their_own_link_only() -> None:
    known = Directory(Clock())
    known.register(["ep=a"], b"</x>", Registrant("coap://[fe80::1]", zone="eth0"))
    known.register(["ep=b"], b"</x>", Registrant("coap://[fe80::2]"))
    assert known.lookup_endpoints([]) == known.lookup_resources([], zone="eth1") == []
    assert listed(known.lookup_resources([], zone="eth0")) == ["coap://[fe80::1]/x"]


@given(st.lists(st.text(max_size=30), max_size=5), st.binary(max_size=60))
def test_any_request_is_taken_or_refused(query: list[str], text: bytes) -> None:
    known = Directory(Clock())
    for run in (
        lambda: known.register(["ep=a", *query], text, LAMP),
        lambda: known.update(registration_id("a"), query, LAMP),
        lambda: known.lookup_endpoints(query),
        lambda: known.lookup_resources(query),
    ):
        try:
            run()
        except RegistrationError:
            continue
    assert parse_links(links_text(known.lookup_endpoints([])).encode()) == known.lookup_endpoints([])


class Registering(RuleBasedStateMachine):
    """The directory does as a plain table of names and times of expiry."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.directory = Directory(self.clock)
        self.expires: dict[str, float] = {}

    @rule(target=known, name=st.sampled_from("abc"), lifetime=st.integers(60, 300))
    def register(self, name: str, lifetime: int) -> str:
        self.directory.register([f"ep={name}", f"lt={lifetime}"], TEXT, LAMP)
        self.expires[name] = self.clock.now + lifetime
        return name

    @rule(name=known, lifetime=st.integers(60, 300))
    def update(self, name: str, lifetime: int) -> None:
        try:
            self.directory.update(registration_id(name), [f"lt={lifetime}"], LAMP)
        except RegistrationError:
            assert self.expires.get(name, 0) <= self.clock.now
        else:
            assert self.expires[name] > self.clock.now
            self.expires[name] = self.clock.now + lifetime

    @rule(name=known)
    def remove(self, name: str) -> None:
        try:
            self.directory.remove(registration_id(name), LAMP)
        except RegistrationError:
            assert self.expires.get(name, 0) <= self.clock.now
        else:
            del self.expires[name]

    @rule(seconds=st.integers(1, 200))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        gone = {one.endpoint for one in self.directory.due(self.clock.now)}
        assert gone == {name for name, at in self.expires.items() if at <= self.clock.now}
        for name in gone:
            del self.expires[name]

    @invariant()
    def lookups_show_what_lives(self) -> None:
        living = sorted(name for name, at in self.expires.items() if at > self.clock.now)
        assert sorted(link.first("ep") or "" for link in self.directory.lookup_endpoints([])) == living
        assert len(self.directory.lookup_resources([])) == 2 * len(living)


TestRegistering = Registering.TestCase


def test_a_base_is_proven_by_a_verified_source_that_names_no_other() -> None:
    found = Directory(lambda: 0.0)
    verified = Registrant("coap://192.0.2.7:5683", verified=True)
    assert found.register(["ep=a"], b"</t>", verified).proven
    assert not found.register(["ep=b", "base=coap://192.0.2.7"], b"</t>", verified).proven
    assert not found.register(["ep=c"], b"</t>", Registrant("coap://192.0.2.7:5683")).proven
    one = found.register(["ep=d"], b"</t>", Registrant("coap://192.0.2.7:5683"))
    assert found.update(one.id, [], verified).proven
    assert not found.update(one.id, ["base=coap://192.0.2.9"], verified).proven
