"""The pages for users are short."""

from __future__ import annotations

from tests.docs.test_names import USER_PAGES, name_of

WORDS_MAX = 47_000
"""Of all pages for users together, as `wc -w` counts."""


def test_pages_for_users_are_short() -> None:
    words = {name_of(page): len(page.read_text().split()) for page in USER_PAGES}
    longest = sorted(words.items(), key=lambda item: -item[1])[:12]
    assert sum(words.values()) <= WORDS_MAX, f"{sum(words.values())} words; the longest: {longest}"
