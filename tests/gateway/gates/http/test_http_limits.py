"""Large forms."""

from __future__ import annotations

from unittest import mock
from urllib.parse import urlencode

from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.gateway.gates.http.parameters import fields


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=5), st.integers(3, 9))
def test_large_forms_say_what_small_ones_say(pairs: list[tuple[str, str]], piece: int) -> None:
    for text in (urlencode(pairs).encode(), "&".join(f"{name}={value}" for name, value in pairs).encode()):
        try:
            small: object = fields(text)
        except MalformedRequestError as error:
            small = str(error)[:30]
        with mock.patch.multiple("lamplighter.gateway.gates.http.parameters", LARGE_BYTES=0, _PIECE_BYTES=piece):
            try:
                large: object = fields(text)
            except MalformedRequestError as error:
                large = str(error)[:30]
        assert large == small
