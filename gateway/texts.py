"""Texts of others for people: without control sequences, and cut."""

from __future__ import annotations


def cut(text: str, characters: int) -> str:
    """The text, or its beginning with an ellipsis if it is longer."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def printable(text: str) -> str:
    """A text of a client or device without control sequences: each of their characters is shown as its code."""
    return "".join(sign if sign.isprintable() else f"\\u{ord(sign):04X}" for sign in text)
