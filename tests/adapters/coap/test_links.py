from __future__ import annotations

import time

import pytest
from aiocoap.resource import ObservableResource, Resource, Site, WKCResource
from aiocoap.util import linkformat
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.coap.links import (
    ATTRIBUTES_MAX,
    NAME_CHARS_MAX,
    TARGET_CHARS_MAX,
    TEXT_BYTES_MAX,
    VALUE_CHARS_MAX,
    Link,
    criteria,
    filter_links,
    links_text,
    parse_links,
    resolve,
)
from lamplighter.engine.errors import PayloadError
from tests.support.tables import each_row

EXAMPLE = (
    b'</sensors>;ct=40;title="Sensor Index",'
    b'</sensors/temp>;rt="temperature-c";if="sensor",'
    b'</sensors/light>;rt="light-lux";if="sensor",'
    b'<http://www.example.com/sensors/t123>;anchor="/sensors/temp";rel="describedby",'
    b'</t>;anchor="/sensors/temp";rel="alternate"'
)
"""Of RFC 6690 section 5."""

PLAIN = st.characters(exclude_categories=("Cs", "Cc"))
TARGETS = st.text(PLAIN.filter(lambda sign: sign not in '<>"\\ '), max_size=60)
NAMES = st.from_regex(r"[A-Za-z0-9!#$&+.^_`|~-]{1,20}\*?", fullmatch=True)
LINKS = st.builds(
    Link, TARGETS, st.lists(st.tuples(NAMES, st.none() | st.text(PLAIN, max_size=40)), max_size=6).map(tuple)
)


def test_the_example_of_the_standard_is_read() -> None:
    links = parse_links(EXAMPLE)
    assert [link.target for link in links] == [
        *("/sensors", "/sensors/temp", "/sensors/light", "http://www.example.com/sensors/t123", "/t")
    ]
    assert links[0].attributes == (("ct", "40"), ("title", "Sensor Index"))
    assert links[3].first("anchor") == "/sensors/temp"
    assert links[3].words("rel") == ("describedby",)


def test_what_libcoap_lists_is_read() -> None:
    text = b'</>;title="General Info";ct=0,</time>;if="clock";rt="ticks";title="Internal Clock";ct=0;obs,</async>;ct=0'
    time_ = parse_links(text)[1]
    assert time_ == Link(
        "/time", (("if", "clock"), ("rt", "ticks"), ("title", "Internal Clock"), ("ct", "0"), ("obs", None))
    )
    assert time_.has("obs")
    assert time_.first("obs") is None
    assert not time_.has("sz")


@each_row("text", [b"", b" ", b"\r\n"])
def test_no_text_has_no_links(text: bytes) -> None:
    assert parse_links(text) == []


def test_what_aiocoap_lists_is_read_and_it_reads_what_is_written() -> None:
    class Temperature(ObservableResource):
        rt = "temperature-c"
        ct = 0

    site = Site()
    site.add_resource([".well-known", "core"], WKCResource(site.get_resources_as_linkheader))
    site.add_resource(["sensors", "temp"], Temperature())
    site.add_resource(["lamp"], Resource())
    links = parse_links(str(site.get_resources_as_linkheader()).encode())
    assert {link.target for link in links} == {"/.well-known/core", "/sensors/temp", "/lamp"}
    temperature = next(link for link in links if link.target == "/sensors/temp")
    assert (temperature.first("rt"), temperature.first("ct"), temperature.has("obs")) == ("temperature-c", "0", True)
    again = linkformat.parse(links_text(links))
    assert [(link.href, [tuple(pair) for pair in link.attr_pairs]) for link in again.links] == [
        (link.target, list(link.attributes)) for link in links
    ]


def test_spaces_and_line_breaks_between_the_parts_are_skipped() -> None:
    assert parse_links(b' </a> ; rt = "b" ;\r\n obs ,\n</c> ') == [Link("/a", (("rt", "b"), ("obs", None))), Link("/c")]


def test_escaped_quotes_separators_and_unicode_are_kept() -> None:
    link = Link("/temperatur/Malmö", (("title", 'a "b", <c>; \\d ü'), ("title*", "UTF-8'en'x")))
    assert parse_links(links_text([link]).encode()) == [link]


def test_of_a_repeated_attribute_the_first_value_counts() -> None:
    link = parse_links(b"</a>;rt=x;rt=y;sz=1;sz=2")[0]
    assert (link.first("rt"), link.first("sz")) == ("x", "1")
    assert filter_links([link], criteria(["rt=y"])) == []


def test_numbers_are_written_without_quotes() -> None:
    link = Link("/a", (("ct", "0"), ("sz", "12"), ("rt", "b"), ("obs", None)))
    assert links_text([link]) == '</a>;ct=0;sz=12;rt="b";obs'


@each_row(
    ("text", "position"),
    [
        (b"a", 1),
        (b"</a", 1),
        (b"</a b>", 1),
        (b"</a\x00>", 1),
        (b"</a\xc2\x85>", 1),
        (b"<</a>>", 1),
        (b"</a>,", 6),
        (b"</a></b>", 5),
        (b"</a>;", 6),
        (b"</a>;=b", 6),
        (b"</a>;rt=", 9),
        (b'</a>;rt="b', 9),
        (b'</a>;rt="b\x1b[2J"', 9),
        (b'</a>;rt="b\\', 9),
        (b"</a>;rt=b\xc3\xa4", 10),
        (b"</a>;r\xc3\xa4=b", 7),
        (b"</" + b"a" * TARGET_CHARS_MAX + b">", 1),
        (b"</a>" + b";b" * (ATTRIBUTES_MAX + 1), 38),
        (b"</a>;" + b"b" * (NAME_CHARS_MAX + 1), 6),
        (b"</a>;b=" + b"c" * (VALUE_CHARS_MAX + 1), 8),
    ],
)
def test_a_malformed_text_is_refused_with_its_position(text: bytes, position: int) -> None:
    with pytest.raises(PayloadError, match=rf"character {position}:"):
        parse_links(text)


@each_row("text", [b"\xff", b"</\xc3>", b'</a>;title="\xed\xa0\x80"'])
def test_wrong_utf_8_is_refused(text: bytes) -> None:
    with pytest.raises(PayloadError, match="UTF-8"):
        parse_links(text)


def test_too_many_links_and_bytes_are_refused() -> None:
    assert len(parse_links(b",".join([b"</a>"] * 5), links_max=5)) == 5
    with pytest.raises(PayloadError, match="more than 4 links"):
        parse_links(b",".join([b"</a>"] * 5), links_max=4)
    with pytest.raises(PayloadError, match="bytes"):
        parse_links(b" " * (TEXT_BYTES_MAX + 1))


@each_row(
    "text",
    [
        b"<" * TEXT_BYTES_MAX,
        b"</a>" + b" " * (TEXT_BYTES_MAX - 4),
        b'</a>;b="' + b"\\" * (TEXT_BYTES_MAX - 8),
        b'</a>;b="' + b"\\a" * 30_000,
        b'</a>;b="' + b"x" * 60_000,
        b"</a>;b=" + b"x" * 60_000,
        b"<" + b"x" * 60_000,
        b"</a>;" + b"x" * 60_000,
    ],
)
def test_hostile_texts_take_no_long_time(text: bytes) -> None:
    begin = time.process_time()
    try:
        parse_links(text)
    except PayloadError as error:
        assert len(str(error)) < 200
    assert time.process_time() - begin < 1


@given(st.lists(LINKS, max_size=5))
def test_what_is_written_is_read_as_the_same(links: list[Link]) -> None:
    assert parse_links(links_text(links).encode()) == links


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        links = parse_links(data)
    except PayloadError:
        return
    assert parse_links(links_text(links).encode()) == links


@each_row("link", [Link("/a b"), Link("/a>"), Link("/\x00"), Link("/a", (("b c", None),)), Link("/a", (("b", "\n"),))])
def test_what_has_no_spelling_is_not_written(link: Link) -> None:
    with pytest.raises(ValueError, match=r"target|attribute|value"):
        links_text([link])


@each_row(
    ("query", "targets"),
    [
        ([], "abcd"),
        (["rt=temperature"], "a"),
        (["rt=temp*"], "ab"),
        (["rt=x"], "a"),
        (["rt=temperature x"], "a"),
        (["rt=TEMPERATURE"], ""),
        (["rt=*"], "ab"),
        (["title=A b"], "c"),
        (["title=A"], ""),
        (["title=A*"], "c"),
        (["ct=50"], "b"),
        (["ct=5"], ""),
        (["href=/a"], "a"),
        (["href=/*"], "abcd"),
        (["obs"], "d"),
        (["obs=*"], ""),
        (["if=core.s", "ct=0"], "b"),
        (["unknown=1"], ""),
    ],
)
def test_links_are_filtered(query: list[str], targets: str) -> None:
    links = parse_links(b'</a>;rt="temperature x",</b>;rt=temp;ct="0 50";if=core.s,</c>;title="A b",</d>;obs')
    assert "".join(link.target[1:] for link in filter_links(links, criteria(query))) == targets


@each_row("query", [["=x"], [""], ["a=b"] * 17, ["a=" + "b" * 2_000]])
def test_a_filter_is_bounded(query: list[str]) -> None:
    with pytest.raises(PayloadError, match="filter"):
        criteria(query)


@each_row(
    ("reference", "uri"),
    [
        ("/a/b?c", "coap://[fd00::1]:61616/a/b?c"),
        ("/", "coap://[fd00::1]:61616/"),
        ("", "coap://[fd00::1]:61616/x"),
        ("http://other.example/a", "http://other.example/a"),
        ("/a?b=..", "coap://[fd00::1]:61616/a?b=.."),
    ],
)
def test_references_are_resolved(reference: str, uri: str) -> None:
    assert resolve(reference, "coap://[fd00::1]:61616/x") == uri


@each_row("reference", ["a", "//other.example/a", "?a", "#a", "../a", "/a/../b", "/./a"])
def test_other_references_are_refused(reference: str) -> None:
    with pytest.raises(ValueError, match=r"slash|segment"):
        resolve(reference, "coap://192.0.2.1")
