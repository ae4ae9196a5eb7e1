"""The texts of the page: both languages have the same messages, and the views have no text of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamplighter.gateway.templates.catalogue import TEMPLATES
from lamplighter.gateway.templates.options import options_of
from tests.support.places import ROOT

SOURCE = ROOT / "gateway" / "page" / "source"
SCRIPTS = sorted(path for path in SOURCE.rglob("*.js") if path.parent.name != "messages")
LINE = re.compile(r'^    "(?P<key>[\w.-]+)": (?P<value>.+),$')
PLURALS = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*")')
LETTERS = re.compile(r"[^\W\d_]{2,}")
NAMES = {"JSON", "CSV", "Lamplighter"}
"""Texts that are the same in each language."""


def messages(language: str) -> dict[str, dict[str, str]]:
    """Key -> category of the plural -> text; a message without plurals has the category `other`."""
    found: dict[str, dict[str, str]] = {}
    lines = (SOURCE / "messages" / f"{language}.js").read_text().splitlines()
    assert lines[1] == f"export const {language} = {{"
    assert lines[-1] == "};"
    for line in filter(None, lines[2:-1]):
        match = LINE.fullmatch(line)
        assert match, line
        assert match["key"] not in found, line
        value = match["value"]
        if value.startswith("{"):
            found[match["key"]] = {name: json.loads(text) for name, text in PLURALS.findall(value)}
        else:
            found[match["key"]] = {"other": json.loads(value)}
    return found


def values(texts: dict[str, str]) -> set[str]:
    """Names of the values in the texts of a message."""
    return {name for text in texts.values() for name in re.findall(r"\{(\w+)\}", text)}


ENGLISH, GERMAN = messages("en"), messages("de")


def test_both_languages_have_the_same_messages() -> None:
    assert list(ENGLISH) == list(GERMAN)
    for key, texts in ENGLISH.items():
        assert values(texts) == values(GERMAN[key]), key
        assert texts.keys() == GERMAN[key].keys(), key  # English and German have the same plurals
        assert texts.keys() in ({"other"}, {"one", "other"}), key
        assert all(one and one.strip() for one in (*texts.values(), *GERMAN[key].values())), key


def test_each_message_is_used_and_each_used_one_is_there() -> None:
    source = "\n".join(path.read_text() for path in SCRIPTS)
    named = set(re.findall(r'"([a-z]+(?:\.[\w-]+)+)"', source))
    begun = tuple(set(re.findall(r"`([a-z]+(?:\.\w+)*\.)\$\{", source)))
    used = {key for key in ENGLISH if key in named or key.startswith(begun)}
    assert set(ENGLISH) - used == set()
    called = set(re.findall(r'\b(?:t|rich)\("([\w.]+)"', source))
    assert called - set(ENGLISH) == set()


def test_each_option_of_a_template_has_a_text_in_each_language() -> None:
    for name, template in TEMPLATES.items():
        for option in options_of(template):
            assert {f"option.{option.name}.label", f"option.{option.name}.help", f"templates.{name}"} <= set(ENGLISH)
            assert {f"choice.{one['value']}" for one in option.members()["choices"] or ()} <= set(ENGLISH)


def templates(script: str) -> Iterator[str]:
    """The texts of the templates of a script, also of those within others; for each expression there is a `\\x00`."""
    at = 0
    while (at := script.find("html`", at)) != -1:
        at += len("html`")
        text, at = _template(script, at)
        yield from text


def _template(script: str, at: int) -> tuple[list[str], int]:
    """The texts of a template that begins at a place, and where it ends."""
    own, others = "", []
    while script[at] != "`":
        if script.startswith("${", at):
            inner, at = _expression(script, at + 2)
            others += inner
            own += "\x00"
        else:
            own += script[at]
            at += 1
    return [own, *others], at + 1


def _expression(script: str, at: int) -> tuple[list[str], int]:
    found: list[str] = []
    depth = 0
    while script[at] != "}" or depth:
        if script.startswith("html`", at):
            inner, at = _template(script, at + len("html`"))
            found += inner
        elif script[at] == "`":
            _, at = _template(script, at + 1)
        elif script[at] in "\"'":
            at = script.index(script[at], at + 1) + 1
        else:
            depth += {"{": 1, "}": -1}.get(script[at], 0)
            at += 1
    return found, at + 1


def texts_of(template: str) -> list[str]:
    """What people read of a template: its text, and the attributes that name something."""
    tags = re.findall(r"<[^>]*>", template)
    attributes = [text for tag in tags for text in re.findall(r'(?:aria-label|title|placeholder|alt)="([^"]*)"', tag)]
    text = re.sub(r"<code>[^<]*</code>|<[^>]*>", "\x00", template)
    return [word for part in (text, *attributes) for word in LETTERS.findall(part) if word not in NAMES]


def test_texts_within_templates_are_found() -> None:
    script = 'html`<p class="note" title="Of that">${one ? html`Some <b>text</b>` : `${a} x`} and ${t(\'b\')}</p>`'
    assert sorted(word for text in templates(script) for word in texts_of(text)) == [
        "Of",
        "Some",
        "and",
        "text",
        "that",
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_text_is_left_in_a_script(path: Path) -> None:
    script = path.read_text()
    left = [word for text in templates(script) for word in texts_of(text)]
    assert left == []
    code = re.sub(r"^\s*//.*$|\s//\s.*$", "", script, flags=re.M)
    sentences = [
        text for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code) if re.fullmatch(r"[A-Z][a-z]+[ ,.…].*", text)
    ]
    chosen = re.findall(r'\? "(\w[\w ]*)" : "(\w[\w ]*)"\}</', code)  # as the text of an element
    assert [*sentences, *chosen] == []
