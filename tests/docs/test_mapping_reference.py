"""Each key and each word of the rule tables has a text in docs/mapping.md."""

from __future__ import annotations

from typing import get_args

from lamplighter.adapters.mapping import tables
from lamplighter.adapters.mapping.registers import RegisterType
from tests.docs.mapping_reference import PAGE, SECTIONS, key_texts
from tests.support.places import ROOT


def test_every_key_has_a_short_text() -> None:
    for _, table in SECTIONS:
        for key, (_, text) in key_texts(table).items():
            assert 0 < len(text.split()) <= 25, key


def test_every_word_to_choose_from_is_on_the_pages() -> None:
    pages = PAGE.read_text() + (ROOT / "docs" / "http-modbus-devices.md").read_text()
    for choices in (tables.PayloadKind, tables.FormatName, tables.OnRepeat, tables.Role, tables.ByHand, RegisterType):
        for word in get_args(choices):
            assert f"`{word}`" in pages or f'"{word}"' in pages, word
