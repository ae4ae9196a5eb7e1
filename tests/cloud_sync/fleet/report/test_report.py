"""The page of the report, made of what a fleet of any size and any names may have."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from lamplighter.cloud_sync.fleet.report.content import Content, Top
from lamplighter.cloud_sync.fleet.report.page import page
from tests.cloud_sync.fleet.report.report_contents import made_up

HOSTILE = """<script>alert(1)</script>"'&<!-- --> $x^{2 ]]> \u202e\x07 灯"""
VOID = {"meta", "link", "br", "img", "input"}


class Parsed(HTMLParser):
    """tags: of every element; texts: everything between them; attributes: every value by name; fails on bad nesting."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module", params=[1, 30_000])
def document(request: pytest.FixtureRequest) -> str:
    return page(made_up(request.param))


def test_page_of_any_fleet_stays_small_and_says_where_the_rest_is(document: str) -> None:
    assert 50_000 < len(document.encode()) < 1_000_000
    if "30,000</b> gateways" in document:
        assert "The grid shows the first 1000 of 30,000 gateways." in document
        assert "The first 20 of 90,000. All: " in document
        assert "The plot has the 400 farthest of 1,200,000 readings." in document


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1.7e308, -1.7e308, 1e150])
def test_absurd_readings_cost_no_plot_of_others(value: float) -> None:
    content = made_up(3)
    trends = {
        key: [{**rows[0], **dict.fromkeys(("mean", "min", "max", "p05", "p50", "p95"), value)}, *rows[1:]]
        for key, rows in content.trends.items()
    }
    only = {("absurd", None): [{**next(iter(trends.values()))[0]}]}
    points = [{**content.anomalies.rows[0], "z": value, "number": value}, *content.anomalies.rows[1:]]
    far = [{**content.gateways.rows[0], "latitude": value, "longitude": value}, *content.gateways.rows[1:]]
    changed = replace(
        content,
        trends=trends | only,
        anomalies=replace(content.anomalies, rows=points),
        gateways=replace(content.gateways, rows=far),
    )
    document = page(changed)
    assert document.count("<svg") == page(content).count("<svg"), "a plot without a point is left out"
    assert not re.search(r"\bd=\"[^\"]*(?:nan|inf)", document)


def test_page_needs_nothing_else(document: str) -> None:
    parsed = Parsed(document)
    assert not {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "base"} & set(parsed.tags)
    for name, value in parsed.attributes:
        if name in ("href", "xlink:href"):
            assert re.fullmatch(r"#\w+|[a-z-]+/[a-z_]+\.(csv|parquet)", value or ""), value
        assert name != "src" and not name.startswith("on")
    assert "url(" not in re.sub(r"url\(#\w+\)", "", document) and "@import" not in document
    assert "default-src 'none'" in document


def test_plots_have_names_and_colours_of_the_page(document: str) -> None:
    svgs = re.findall(r"<svg .*?</svg>", document, flags=re.DOTALL)
    assert len(svgs) >= 7
    for svg in svgs:
        assert re.match(r'<svg [^>]*viewBox="[^"]*" role="img"><title>[^<]+</title>', svg)
        assert not re.search("#0000[01][0-9a-f]", svg)
    names = re.findall(r'\bid="([^"]*)"', document)
    assert len(names) == len(set(names))
    assert "prefers-color-scheme: dark" in document
    for colour in set(re.findall(r"var\((--[\w-]+)\)", document)):
        assert document.count(f"{colour}: #") == 2, colour  # one by day, one by night


def test_names_are_text_and_never_markup() -> None:
    plain = made_up(3)
    document = page(hostile(made_up(3, HOSTILE)))
    parsed = Parsed(document)
    assert set(parsed.tags) == set(Parsed(page(plain)).tags)
    assert any("<script>" in text for text in parsed.texts)
    assert "<script" not in document


def hostile(content: Content) -> Content:
    """With such names for properties, units, labels, causes and reasons, too."""

    def spoilt(top: Top) -> Top:
        keep = ("health", "reason")
        rows = [{k: HOSTILE if isinstance(v, str) and k not in keep else v for k, v in row.items()} for row in top.rows]
        return Top(rows, top.all)

    return replace(
        content,
        gateways=spoilt(content.gateways),
        dead=spoilt(content.dead),
        properties=spoilt(content.properties),
        anomalies=spoilt(content.anomalies),
        anomalous=spoilt(content.anomalous),
        lamps=spoilt(content.lamps),
        reactions=spoilt(content.reactions),
        clocks=spoilt(content.clocks),
        trends={(HOSTILE, HOSTILE): next(iter(content.trends.values()))},
        by_quality={HOSTILE: 3},
    )


def test_page_of_nothing_says_so() -> None:
    nothing = Top([], 0)
    empty = Content(
        as_of=datetime(1970, 1, 1, tzinfo=UTC), since=None, until=None, gateways=nothing, by_health={},
        gap_streams=nothing, gaps=[], dead=nothing, trends={}, properties=nothing, anomalies=nothing, anomalous=nothing,
        lamp_totals=[], lamps=nothing, reactions=nothing, clocks=nothing, by_quality={},
    )  # fmt: skip
    document = page(empty)
    Parsed(document)
    assert "<svg" not in document and "None had any." in document and "<b>0</b> gateways" in document
